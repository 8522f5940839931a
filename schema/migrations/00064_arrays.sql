-- Arrays that are submitted in one call: each of their jobs has an index.

-- +goose Up
ALTER TABLE jobs ADD COLUMN array_index INTEGER; -- NULL = it is of no array, or joined one by its name
CREATE INDEX jobs_array ON jobs (tenant, project, array_name, seq) WHERE array_name <> '';
