-- When an attempt last told that it has saved its work: what is lost where it is stopped is the work since.

-- +goose Up
ALTER TABLE attempts ADD COLUMN checkpoint_at BIGINT NOT NULL DEFAULT 0;
