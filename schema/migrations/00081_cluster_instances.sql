-- What a connector has to remember of a part over its restarts.

-- +goose Up
ALTER TABLE tasks ADD COLUMN instance TEXT NOT NULL DEFAULT ''; -- of a service: which of its instances runs
ALTER TABLE tasks ADD COLUMN output_read BIGINT NOT NULL DEFAULT 0; -- bytes of its output that were read
