-- What jobs may mount, what they do, and what their servers must not lack for it.

-- +goose Up
CREATE TABLE volumes (
  name TEXT PRIMARY KEY, path TEXT NOT NULL, claim TEXT NOT NULL, tenant TEXT NOT NULL, writable BOOLEAN NOT NULL, user_id INTEGER NOT NULL, created_at BIGINT NOT NULL
);
ALTER TABLE jobs ADD COLUMN mounts TEXT; -- JSON; NULL = none
ALTER TABLE jobs ADD COLUMN needs INTEGER NOT NULL DEFAULT 0; -- a set, see schema.Ability
UPDATE jobs SET needs = 1 WHERE kind = 'service';
ALTER TABLE clusters ADD COLUMN can INTEGER NOT NULL DEFAULT 0; -- a set: what its jobs can have beside what is usual for its kind
