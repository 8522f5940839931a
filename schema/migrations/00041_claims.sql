-- The job that an attempt was preempted for: who claims what it frees is known after a restart of the allocator too.

-- +goose Up
ALTER TABLE attempts ADD COLUMN stop_for TEXT NOT NULL DEFAULT '';
