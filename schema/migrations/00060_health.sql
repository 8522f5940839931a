-- What a fault asks for and by which rule; a repair's cures, owner, next step and deadline; what operators change of the
-- rules; breakers; photos; parts that go back to their maker.

-- +goose Up
ALTER TABLE faults ADD COLUMN part TEXT NOT NULL DEFAULT '';
ALTER TABLE faults ADD COLUMN value DOUBLE PRECISION NOT NULL DEFAULT 0;
ALTER TABLE faults ADD COLUMN rule TEXT NOT NULL DEFAULT '';
ALTER TABLE faults ADD COLUMN cure TEXT NOT NULL DEFAULT '';
CREATE INDEX faults_seen ON faults (seen_at);
CREATE INDEX faults_repair ON faults (repair) WHERE repair <> '';

ALTER TABLE repairs ADD COLUMN did TEXT NOT NULL DEFAULT '';
ALTER TABLE repairs ADD COLUMN action TEXT NOT NULL DEFAULT 'repair';
ALTER TABLE repairs ADD COLUMN cure TEXT NOT NULL DEFAULT 'technician';
ALTER TABLE repairs ADD COLUMN tried TEXT NOT NULL DEFAULT '';
ALTER TABLE repairs ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE repairs ADD COLUMN next_step TEXT NOT NULL DEFAULT '';
ALTER TABLE repairs ADD COLUMN deadline BIGINT NOT NULL DEFAULT 0;
ALTER TABLE repairs ADD COLUMN claimed_by TEXT NOT NULL DEFAULT '';
ALTER TABLE repairs ADD COLUMN first_sign_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE repairs ADD COLUMN claimed_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE repairs ADD COLUMN probation_until BIGINT NOT NULL DEFAULT 0;
CREATE INDEX repairs_closed ON repairs (closed_at);
UPDATE repairs SET first_sign_at = opened_at;

CREATE TABLE rule_changes (
  rule TEXT PRIMARY KEY, mode TEXT NOT NULL DEFAULT '', count INTEGER NOT NULL DEFAULT 0, within_ms BIGINT NOT NULL DEFAULT 0,
  above DOUBLE PRECISION NOT NULL DEFAULT 0, action TEXT NOT NULL DEFAULT '', cure TEXT NOT NULL DEFAULT '',
  "by" TEXT NOT NULL, reason TEXT NOT NULL, at BIGINT NOT NULL
);
CREATE TABLE silences (
  id TEXT PRIMARY KEY, rule TEXT NOT NULL DEFAULT '', kind TEXT NOT NULL DEFAULT '', code TEXT NOT NULL DEFAULT '',
  server TEXT NOT NULL DEFAULT '', accelerator TEXT NOT NULL DEFAULT '', until BIGINT NOT NULL, "by" TEXT NOT NULL, reason TEXT NOT NULL,
  at BIGINT NOT NULL, ended_at BIGINT NOT NULL DEFAULT 0, ended_by TEXT NOT NULL DEFAULT ''
);
CREATE TABLE breakers (
  id TEXT PRIMARY KEY, scope TEXT NOT NULL, why TEXT NOT NULL, opened_at BIGINT NOT NULL,
  reset_at BIGINT NOT NULL DEFAULT 0, reset_by TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT ''
);
-- One breaker a scope is open at a time.
CREATE UNIQUE INDEX breakers_open ON breakers (scope) WHERE reset_at = 0;
CREATE TABLE repair_photos (
  repair TEXT NOT NULL, number INTEGER NOT NULL, content_type TEXT NOT NULL, sha256 TEXT NOT NULL, data TEXT NOT NULL, -- base64
  "by" TEXT NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (repair, number)
);
CREATE TABLE rmas (
  id TEXT PRIMARY KEY, repair TEXT NOT NULL DEFAULT '', accelerator TEXT NOT NULL DEFAULT '', vendor TEXT NOT NULL DEFAULT '', model TEXT NOT NULL DEFAULT '',
  serial_out TEXT NOT NULL, serial_in TEXT NOT NULL DEFAULT '', vendor_case TEXT NOT NULL DEFAULT '', state TEXT NOT NULL, note TEXT NOT NULL DEFAULT '',
  opened_by TEXT NOT NULL, opened_at BIGINT NOT NULL, shipped_at BIGINT NOT NULL DEFAULT 0, closed_at BIGINT NOT NULL DEFAULT 0, version BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX rmas_open ON rmas (serial_out) WHERE closed_at = 0;
