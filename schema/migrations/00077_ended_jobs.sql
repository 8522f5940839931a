-- How jobs ended within a part of an hour, as days of zones that are off by half an hour begin with, is counted from the jobs.

-- +goose Up
CREATE INDEX jobs_ended ON jobs (ended_at) WHERE ended_at > 0;
