-- Queues that are stopped, and the longest that a job of a spec may run.

-- +goose Up
CREATE TABLE stops (
  id TEXT PRIMARY KEY, tenant TEXT NOT NULL DEFAULT '', project TEXT NOT NULL DEFAULT '', spec TEXT NOT NULL DEFAULT '', region TEXT NOT NULL DEFAULT '',
  why TEXT NOT NULL, until_at BIGINT NOT NULL DEFAULT 0, "by" TEXT NOT NULL, created_at BIGINT NOT NULL
);
ALTER TABLE specs ADD COLUMN max_time BIGINT NOT NULL DEFAULT 0; -- ms; 0 = none
