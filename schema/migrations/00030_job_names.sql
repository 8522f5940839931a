-- Jobs are found by their name. Those without one are not in the index.

-- +goose Up
CREATE INDEX jobs_name ON jobs (name, seq) WHERE name <> '';

-- +goose Down
DROP INDEX jobs_name;
