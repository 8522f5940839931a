-- A job's own container image, and the network that it has.

-- +goose Up
ALTER TABLE jobs ADD COLUMN image TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN network TEXT NOT NULL DEFAULT '';
