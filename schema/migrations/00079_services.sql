-- Services: jobs that are kept running.

-- +goose Up
ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT 'batch';
ALTER TABLE jobs ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0; -- of a service: how often it was begun again where it ran
ALTER TABLE tasks ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0; -- how often its part was begun again before, in its attempt
ALTER TABLE tasks ADD COLUMN not_before BIGINT NOT NULL DEFAULT 0; -- ms; it is handed out no earlier
