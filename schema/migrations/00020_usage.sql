-- The books of accelerator time: states of installed accelerators, hourly sums, facts of attempts and jobs, prices, budgets.

-- +goose Up
-- The newest moment in the record: the ledger's clock never goes back behind it.
ALTER TABLE event_seq ADD COLUMN at BIGINT NOT NULL DEFAULT 0;
UPDATE event_seq SET at = (SELECT coalesce(max(at), 0) FROM events);

ALTER TABLE ledger ADD COLUMN queued_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE ledger ADD COLUMN amount BIGINT NOT NULL DEFAULT 0;

CREATE TABLE capacity_spans (
  accelerator TEXT NOT NULL REFERENCES accelerators (id), server TEXT NOT NULL, state TEXT NOT NULL, start_at BIGINT NOT NULL, end_at BIGINT NOT NULL,
  CHECK (end_at = 0 OR end_at >= start_at)
);
CREATE UNIQUE INDEX capacity_spans_open ON capacity_spans (accelerator) WHERE end_at = 0;
CREATE INDEX capacity_spans_accelerator ON capacity_spans (accelerator, end_at);
CREATE INDEX capacity_spans_time ON capacity_spans (end_at, start_at);
-- What states are worked out from is few among all events.
CREATE INDEX events_capacity ON events (seq) WHERE kind IN ('accelerator.seen', 'accelerator.health', 'accelerator.installed', 'accelerator.gone', 'server.phase', 'server.cordoned', 'server.uncordoned');
-- What is in the pool already has been in it since it was proven; its states until now were not kept.
INSERT INTO events (seq, at, kind, subject, server)
  SELECT (SELECT seq FROM event_seq) + row_number() OVER (ORDER BY id), installed_at, 'accelerator.installed', id, server FROM accelerators WHERE installed_at > 0 AND removed_at = 0;
UPDATE event_seq SET seq = seq + (SELECT count(*) FROM accelerators WHERE installed_at > 0 AND removed_at = 0);
INSERT INTO capacity_spans (accelerator, server, state, start_at, end_at)
  SELECT id, server, 'idle', installed_at, 0 FROM accelerators WHERE installed_at > 0 AND removed_at = 0;

-- Sums by hour of UTC. What they are sums of is in the ledger; usage_fold in cursors says how far they have come.
CREATE TABLE usage_hours (
  hour BIGINT NOT NULL, tenant TEXT NOT NULL, project TEXT NOT NULL, spec TEXT NOT NULL, model TEXT NOT NULL, region TEXT NOT NULL, outcome TEXT NOT NULL,
  launch_ms BIGINT NOT NULL, run_ms BIGINT NOT NULL, drain_ms BIGINT NOT NULL, credit_ms BIGINT NOT NULL, adjust_ms BIGINT NOT NULL, row_count BIGINT NOT NULL,
  PRIMARY KEY (hour, tenant, project, spec, model, region, outcome)
);
CREATE TABLE capacity_hours (
  hour BIGINT NOT NULL, region TEXT NOT NULL, model TEXT NOT NULL, installed BIGINT NOT NULL, allocated BIGINT NOT NULL, idle BIGINT NOT NULL,
  reserved BIGINT NOT NULL, draining BIGINT NOT NULL, unhealthy BIGINT NOT NULL, repair BIGINT NOT NULL, PRIMARY KEY (hour, region, model)
);
CREATE TABLE usage_findings (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, accelerator TEXT NOT NULL, at BIGINT NOT NULL, milliseconds BIGINT NOT NULL, text TEXT NOT NULL, found_at BIGINT NOT NULL
);
-- How long attempts waited and why, and how they ended; and how jobs ended.
CREATE TABLE attempt_facts (
  job TEXT NOT NULL, attempt INTEGER NOT NULL, tenant TEXT NOT NULL, project TEXT NOT NULL, spec TEXT NOT NULL, model TEXT NOT NULL, region TEXT NOT NULL,
  queued_at BIGINT NOT NULL, allocated_at BIGINT NOT NULL, wait_ms BIGINT NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (job, attempt)
);
CREATE INDEX attempt_facts_time ON attempt_facts (allocated_at);
CREATE TABLE job_hours (
  hour BIGINT NOT NULL, tenant TEXT NOT NULL, project TEXT NOT NULL, spec TEXT NOT NULL, model TEXT NOT NULL, region TEXT NOT NULL, state TEXT NOT NULL, cause TEXT NOT NULL,
  jobs BIGINT NOT NULL, PRIMARY KEY (hour, tenant, project, spec, model, region, state, cause)
);
-- How busy the accelerators of an attempt on one server were: known + unknown is what was allocated while anybody looked.
CREATE TABLE utilization_hours (
  hour BIGINT NOT NULL, job TEXT NOT NULL, attempt INTEGER NOT NULL, server TEXT NOT NULL, tenant TEXT NOT NULL, project TEXT NOT NULL, spec TEXT NOT NULL, model TEXT NOT NULL, region TEXT NOT NULL,
  known_ms BIGINT NOT NULL, idle_ms BIGINT NOT NULL, busy_ppm_ms BIGINT NOT NULL, covered_until BIGINT NOT NULL, idle_since BIGINT NOT NULL, PRIMARY KEY (hour, job, attempt, server)
);

CREATE TABLE charge_policies (from_at BIGINT PRIMARY KEY, document TEXT NOT NULL, "by" TEXT NOT NULL);
CREATE TABLE prices (spec TEXT NOT NULL, from_at BIGINT NOT NULL, currency TEXT NOT NULL, micros BIGINT NOT NULL, "by" TEXT NOT NULL, PRIMARY KEY (spec, from_at));
CREATE TABLE budgets (
  id TEXT PRIMARY KEY, tenant TEXT NOT NULL REFERENCES tenants (name), project TEXT NOT NULL, model TEXT NOT NULL, amount_ms BIGINT NOT NULL, zone TEXT NOT NULL, warn TEXT NOT NULL, updated_at BIGINT NOT NULL,
  UNIQUE (tenant, project, model)
);
-- What was told once: a budget's threshold in a month, a stretch of idleness.
CREATE TABLE usage_warnings (subject TEXT NOT NULL, since BIGINT NOT NULL, percent INTEGER NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (subject, since, percent));
