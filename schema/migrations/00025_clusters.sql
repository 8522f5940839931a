-- Clusters: Slurm and Kubernetes control planes that run jobs on servers of the pool.

-- +goose Up
ALTER TABLE servers ADD COLUMN cluster TEXT NOT NULL DEFAULT '';
-- Whoever a task is given to: a cluster's connector, or with '' the server's agent. devices is what was really bound.
ALTER TABLE tasks ADD COLUMN cluster TEXT NOT NULL DEFAULT '';
ALTER TABLE tasks ADD COLUMN devices TEXT NOT NULL DEFAULT '';
CREATE INDEX tasks_cluster_open ON tasks (cluster, job, attempt) WHERE ended = 0 AND cluster <> '';
CREATE TABLE clusters (
  name TEXT PRIMARY KEY, kind TEXT NOT NULL, epoch BIGINT NOT NULL, holder TEXT NOT NULL, taken_at BIGINT NOT NULL,
  seen_at BIGINT NOT NULL DEFAULT 0, down_since BIGINT NOT NULL DEFAULT 0, up_since BIGINT NOT NULL DEFAULT 0, why TEXT NOT NULL DEFAULT ''
);
CREATE TABLE cluster_runs (
  job TEXT NOT NULL REFERENCES jobs (id), attempt INTEGER NOT NULL, cluster TEXT NOT NULL, native TEXT NOT NULL DEFAULT '',
  submitted_at BIGINT NOT NULL DEFAULT 0, claimed_at BIGINT NOT NULL, started_at BIGINT NOT NULL DEFAULT 0, ended_at BIGINT NOT NULL DEFAULT 0,
  native_state TEXT NOT NULL DEFAULT '', PRIMARY KEY (job, attempt, cluster)
);
-- A cluster gives its ids out again: only with the moment of submitting they name one run.
CREATE UNIQUE INDEX cluster_runs_native ON cluster_runs (cluster, native, submitted_at) WHERE native <> '';
