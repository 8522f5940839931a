-- The time of an hour in which jobs waited for accelerators, and in which some of those were idle. region and model '' stand
-- for all of them together: such times don't sum.

-- +goose Up
CREATE TABLE queue_hours (
  hour BIGINT NOT NULL, region TEXT NOT NULL, model TEXT NOT NULL, waited_ms BIGINT NOT NULL, while_idle_ms BIGINT NOT NULL, PRIMARY KEY (hour, region, model)
);
