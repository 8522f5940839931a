-- Questions to a region's allocator: what would become of a job if it were submitted now. A row lives until its answer is read.

-- +goose Up
CREATE TABLE dry_runs (id TEXT PRIMARY KEY, region TEXT NOT NULL, job TEXT NOT NULL, asked_at BIGINT NOT NULL, answer TEXT NOT NULL DEFAULT '');
CREATE INDEX dry_runs_open ON dry_runs (region, asked_at) WHERE answer = '';
