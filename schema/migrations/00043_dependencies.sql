-- Jobs that start after others, and arrays: jobs of one name in a project of which only so many run at once.

-- +goose Up
ALTER TABLE jobs ADD COLUMN depends_on TEXT; -- JSON; NULL = on nothing
ALTER TABLE jobs ADD COLUMN array_name TEXT NOT NULL DEFAULT '';
ALTER TABLE jobs ADD COLUMN array_limit INTEGER NOT NULL DEFAULT 0;
