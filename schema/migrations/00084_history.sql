-- What is asked for while a pool serves is found without reading its history. SQLite uses an index of some rows only for
-- statements that name those in the index's own words, which those about a job's tasks do not: theirs has all rows.

-- +goose Up
DROP INDEX tasks_job;
CREATE INDEX tasks_job ON tasks (job, attempt);
CREATE INDEX jobs_live_tenant ON jobs (tenant, seq) WHERE ended_at = 0;
CREATE INDEX jobs_live_seq ON jobs (seq) WHERE ended_at = 0;
CREATE INDEX allocations_released ON allocations (released_at) WHERE released_at > 0;
