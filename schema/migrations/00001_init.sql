-- One schema for SQLite and PostgreSQL: moments are BIGINT Unix milliseconds (0 = not yet), documents are JSON in TEXT.
-- What each database needs to guard for itself in its own dialect is in guards.go.

-- +goose Up
CREATE TABLE event_seq (one INTEGER PRIMARY KEY CHECK (one = 1), seq BIGINT NOT NULL);
INSERT INTO event_seq (one, seq) VALUES (1, 0);

CREATE TABLE events (
  seq BIGINT PRIMARY KEY, at BIGINT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL,
  server TEXT NOT NULL DEFAULT '', job TEXT NOT NULL DEFAULT '', tenant TEXT NOT NULL DEFAULT '',
  "by" TEXT NOT NULL DEFAULT '', data TEXT
);
CREATE INDEX events_server ON events (server, seq) WHERE server <> '';
CREATE INDEX events_job ON events (job, seq) WHERE job <> '';
CREATE INDEX events_tenant ON events (tenant, seq) WHERE tenant <> '';
CREATE INDEX events_kind ON events (kind, seq);

CREATE TABLE cursors (name TEXT PRIMARY KEY, seq BIGINT NOT NULL);

CREATE TABLE servers (
  id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, region TEXT NOT NULL, site TEXT NOT NULL, rack TEXT NOT NULL,
  unit INTEGER NOT NULL DEFAULT 0, serial TEXT NOT NULL UNIQUE, uuid TEXT NOT NULL DEFAULT '',
  manufacturer TEXT NOT NULL DEFAULT '', product TEXT NOT NULL DEFAULT '', macs TEXT NOT NULL DEFAULT '',
  arch TEXT NOT NULL, bmc_address TEXT NOT NULL UNIQUE, bmc_protocol TEXT NOT NULL,
  model TEXT NOT NULL, accelerators INTEGER NOT NULL, cpus INTEGER NOT NULL, memory_bytes BIGINT NOT NULL,
  profile TEXT NOT NULL, backend TEXT NOT NULL, nvlink_domain TEXT NOT NULL DEFAULT '',
  phase TEXT NOT NULL, attempt INTEGER NOT NULL DEFAULT 0, step TEXT NOT NULL DEFAULT '', protected BOOLEAN NOT NULL DEFAULT FALSE,
  failure_code TEXT NOT NULL DEFAULT '', failure_text TEXT NOT NULL DEFAULT '', failure_retryable BOOLEAN NOT NULL DEFAULT FALSE,
  epoch BIGINT NOT NULL DEFAULT 0, agent_seen BIGINT NOT NULL DEFAULT 0, boot_id TEXT NOT NULL DEFAULT '',
  created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, version BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE server_macs (mac TEXT PRIMARY KEY, server TEXT NOT NULL REFERENCES servers (id));
CREATE TABLE bmc_credentials (
  server TEXT PRIMARY KEY REFERENCES servers (id), username TEXT NOT NULL, key_id TEXT NOT NULL, sealed TEXT NOT NULL,
  tls_pin TEXT NOT NULL DEFAULT '', updated_at BIGINT NOT NULL
);
CREATE TABLE step_runs (
  server TEXT NOT NULL, attempt INTEGER NOT NULL, step TEXT NOT NULL, try INTEGER NOT NULL, state TEXT NOT NULL,
  detail TEXT NOT NULL, started BIGINT NOT NULL, ended BIGINT NOT NULL, PRIMARY KEY (server, attempt, step)
);
CREATE TABLE cordons (
  id TEXT PRIMARY KEY, server TEXT NOT NULL REFERENCES servers (id), accelerator TEXT NOT NULL DEFAULT '',
  owner TEXT NOT NULL, "by" TEXT NOT NULL, reason TEXT NOT NULL, at BIGINT NOT NULL,
  lifted_at BIGINT NOT NULL DEFAULT 0, lifted_by TEXT NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX cordons_live ON cordons (server, accelerator, owner) WHERE lifted_at = 0;

CREATE TABLE accelerators (
  id TEXT PRIMARY KEY, identity TEXT NOT NULL UNIQUE, vendor TEXT NOT NULL, model TEXT NOT NULL,
  serial TEXT NOT NULL, uuid TEXT NOT NULL, pci TEXT NOT NULL, slot TEXT NOT NULL, device_index INTEGER NOT NULL,
  memory_bytes BIGINT NOT NULL, firmware TEXT NOT NULL, server TEXT NOT NULL,
  health TEXT NOT NULL, health_why TEXT NOT NULL, health_at BIGINT NOT NULL,
  first_seen BIGINT NOT NULL, last_seen BIGINT NOT NULL, installed_at BIGINT NOT NULL DEFAULT 0, removed_at BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX accelerators_server ON accelerators (server);

CREATE TABLE agents (
  server TEXT PRIMARY KEY REFERENCES servers (id), public_key TEXT NOT NULL, attempt INTEGER NOT NULL, boot_id TEXT NOT NULL,
  version TEXT NOT NULL, registered_at BIGINT NOT NULL
);
CREATE TABLE tasks (
  id TEXT PRIMARY KEY, server TEXT NOT NULL, workflow TEXT NOT NULL, kind TEXT NOT NULL, job TEXT NOT NULL DEFAULT '',
  attempt INTEGER NOT NULL, epoch BIGINT NOT NULL, payload TEXT NOT NULL, state TEXT NOT NULL, text TEXT NOT NULL DEFAULT '',
  exit_code INTEGER, signal TEXT NOT NULL DEFAULT '', none_left BOOLEAN NOT NULL DEFAULT FALSE, result TEXT NOT NULL DEFAULT '',
  seq BIGINT NOT NULL DEFAULT 0, stop_at BIGINT NOT NULL DEFAULT 0, stop_with TEXT NOT NULL DEFAULT '', grace_ms BIGINT NOT NULL DEFAULT 0,
  created BIGINT NOT NULL, delivered BIGINT NOT NULL DEFAULT 0, claimed BIGINT NOT NULL DEFAULT 0, running BIGINT NOT NULL DEFAULT 0, ended BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX tasks_open ON tasks (server) WHERE ended = 0;
CREATE INDEX tasks_job ON tasks (job, attempt) WHERE job <> '';
CREATE TABLE task_output (task TEXT NOT NULL, seq BIGINT NOT NULL, at BIGINT NOT NULL, output TEXT NOT NULL, PRIMARY KEY (task, seq));

CREATE TABLE armed (server TEXT PRIMARY KEY REFERENCES servers (id), attempt INTEGER NOT NULL, profile TEXT NOT NULL, at BIGINT NOT NULL, expires_at BIGINT NOT NULL);
CREATE TABLE boot_tokens (
  hash TEXT PRIMARY KEY, server TEXT NOT NULL REFERENCES servers (id), attempt INTEGER NOT NULL, purpose TEXT NOT NULL,
  minted_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, used_at BIGINT NOT NULL DEFAULT 0, revoked_at BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE boot_token_uses (hash TEXT NOT NULL REFERENCES boot_tokens (hash), item TEXT NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (hash, item));
CREATE INDEX boot_tokens_server ON boot_tokens (server, attempt, purpose);
CREATE TABLE leases (
  ip TEXT PRIMARY KEY, subnet TEXT NOT NULL, mac TEXT NOT NULL, client_id TEXT NOT NULL DEFAULT '', server TEXT NOT NULL DEFAULT '',
  state TEXT NOT NULL, offered_at BIGINT NOT NULL, bound_at BIGINT NOT NULL, expires_at BIGINT NOT NULL
);
CREATE INDEX leases_mac ON leases (mac);

CREATE TABLE specs (
  name TEXT PRIMARY KEY, model TEXT NOT NULL, accelerators INTEGER NOT NULL, cpus INTEGER NOT NULL, memory_bytes BIGINT NOT NULL,
  description TEXT NOT NULL, created_at BIGINT NOT NULL, retired_at BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE tenants (name TEXT PRIMARY KEY, max_priority INTEGER NOT NULL, created_at BIGINT NOT NULL);
CREATE TABLE projects (tenant TEXT NOT NULL REFERENCES tenants (name), name TEXT NOT NULL, created_at BIGINT NOT NULL, PRIMARY KEY (tenant, name));
CREATE TABLE quotas (
  tenant TEXT NOT NULL REFERENCES tenants (name), project TEXT NOT NULL, model TEXT NOT NULL,
  guaranteed INTEGER NOT NULL, max INTEGER NOT NULL, updated_at BIGINT NOT NULL, PRIMARY KEY (tenant, project, model)
);
CREATE TABLE tokens (
  id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, hash TEXT NOT NULL UNIQUE, role TEXT NOT NULL, tenant TEXT NOT NULL DEFAULT '', project TEXT NOT NULL DEFAULT '',
  created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL DEFAULT 0, revoked_at BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE job_seq (one INTEGER PRIMARY KEY CHECK (one = 1), seq BIGINT NOT NULL);
INSERT INTO job_seq (one, seq) VALUES (1, 0);
CREATE TABLE jobs (
  id TEXT PRIMARY KEY, seq BIGINT NOT NULL UNIQUE, tenant TEXT NOT NULL, project TEXT NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL, model TEXT NOT NULL,
  nodes INTEGER NOT NULL, per_node INTEGER NOT NULL, priority INTEGER NOT NULL, preemptible BOOLEAN NOT NULL,
  same TEXT NOT NULL DEFAULT '', same_required BOOLEAN NOT NULL DEFAULT FALSE, region TEXT NOT NULL,
  command TEXT NOT NULL, env TEXT NOT NULL, work_dir TEXT NOT NULL DEFAULT '',
  time_limit BIGINT NOT NULL DEFAULT 0, max_queue BIGINT NOT NULL DEFAULT 0, grace BIGINT NOT NULL DEFAULT 0, not_before BIGINT NOT NULL DEFAULT 0,
  held BOOLEAN NOT NULL DEFAULT FALSE, held_by TEXT NOT NULL DEFAULT '', requeue_limit INTEGER NOT NULL,
  state TEXT NOT NULL, attempt INTEGER NOT NULL DEFAULT 0, requeues INTEGER NOT NULL DEFAULT 0, cause TEXT NOT NULL DEFAULT '', exit_code INTEGER,
  reason TEXT NOT NULL DEFAULT '', submitted_by TEXT NOT NULL, submitted_at BIGINT NOT NULL, started_at BIGINT NOT NULL DEFAULT 0, ended_at BIGINT NOT NULL DEFAULT 0,
  version BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX jobs_live ON jobs (region, seq) WHERE ended_at = 0;
CREATE INDEX jobs_tenant ON jobs (tenant, seq);
CREATE TABLE idempotency (
  scope TEXT NOT NULL, key TEXT NOT NULL, body_hash TEXT NOT NULL, result TEXT NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (scope, key)
);
CREATE TABLE attempts (
  job TEXT NOT NULL REFERENCES jobs (id), attempt INTEGER NOT NULL, outcome TEXT NOT NULL DEFAULT '', cause TEXT NOT NULL DEFAULT '', exit_code INTEGER,
  epoch BIGINT NOT NULL, allocated_at BIGINT NOT NULL, running_at BIGINT NOT NULL DEFAULT 0, stopping_at BIGINT NOT NULL DEFAULT 0,
  stop_why TEXT NOT NULL DEFAULT '', released_at BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (job, attempt)
);
CREATE TABLE allocator_epochs (region TEXT PRIMARY KEY, epoch BIGINT NOT NULL, holder TEXT NOT NULL, taken_at BIGINT NOT NULL, cycle BIGINT NOT NULL DEFAULT 0);
CREATE TABLE allocations (
  id TEXT PRIMARY KEY, job TEXT NOT NULL REFERENCES jobs (id), attempt INTEGER NOT NULL, accelerator TEXT NOT NULL REFERENCES accelerators (id),
  server TEXT NOT NULL, region TEXT NOT NULL, allocated_at BIGINT NOT NULL, released_at BIGINT NOT NULL DEFAULT 0
);
-- The database itself refuses a second live allocation of an accelerator.
CREATE UNIQUE INDEX allocations_live ON allocations (accelerator) WHERE released_at = 0;
CREATE INDEX allocations_job ON allocations (job, attempt);
CREATE INDEX allocations_server_live ON allocations (server) WHERE released_at = 0;
CREATE TABLE ledger (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, job TEXT NOT NULL, attempt INTEGER NOT NULL, accelerator TEXT NOT NULL, server TEXT NOT NULL,
  tenant TEXT NOT NULL, project TEXT NOT NULL, spec TEXT NOT NULL, model TEXT NOT NULL, region TEXT NOT NULL,
  start_at BIGINT NOT NULL, running_at BIGINT NOT NULL, stopping_at BIGINT NOT NULL, end_at BIGINT NOT NULL, outcome TEXT NOT NULL, note TEXT NOT NULL DEFAULT '',
  CHECK (end_at >= start_at)
);
CREATE INDEX ledger_time ON ledger (end_at, start_at);
CREATE INDEX ledger_tenant ON ledger (tenant, end_at);
CREATE INDEX ledger_job ON ledger (job);

CREATE TABLE faults (
  id TEXT PRIMARY KEY, server TEXT NOT NULL, accelerator TEXT NOT NULL DEFAULT '', source TEXT NOT NULL, kind TEXT NOT NULL, code TEXT NOT NULL DEFAULT '',
  severity TEXT NOT NULL, text TEXT NOT NULL, dedupe TEXT NOT NULL UNIQUE, epoch BIGINT NOT NULL, at BIGINT NOT NULL, seen_at BIGINT NOT NULL,
  verdict TEXT NOT NULL DEFAULT '', repair TEXT NOT NULL DEFAULT '', cleared_at BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX faults_server ON faults (server, seen_at);
CREATE TABLE repairs (
  id TEXT PRIMARY KEY, server TEXT NOT NULL REFERENCES servers (id), accelerator TEXT NOT NULL DEFAULT '', state TEXT NOT NULL, cause TEXT NOT NULL,
  part TEXT NOT NULL, location TEXT NOT NULL, old_serial TEXT NOT NULL DEFAULT '', new_serial TEXT NOT NULL DEFAULT '', note TEXT NOT NULL DEFAULT '',
  done_by TEXT NOT NULL DEFAULT '', returns INTEGER NOT NULL DEFAULT 0, waiting_why TEXT NOT NULL DEFAULT '',
  opened_at BIGINT NOT NULL, drained_at BIGINT NOT NULL DEFAULT 0, done_at BIGINT NOT NULL DEFAULT 0, closed_at BIGINT NOT NULL DEFAULT 0, version BIGINT NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX repairs_live ON repairs (server) WHERE closed_at = 0;
