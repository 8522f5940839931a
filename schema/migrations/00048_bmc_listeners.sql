-- Where BMCs push their events to: one secret address for each, and who has called since the watch last asked.

-- +goose Up
CREATE TABLE bmc_listeners (
  server TEXT PRIMARY KEY REFERENCES servers (id), secret_hash TEXT NOT NULL, made_at BIGINT NOT NULL,
  heard_at BIGINT NOT NULL DEFAULT 0, waiting BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX bmc_listeners_waiting ON bmc_listeners (server) WHERE waiting = 1;
