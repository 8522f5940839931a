-- Address ranges that people had a worker of a site probe for BMCs.

-- +goose Up
CREATE TABLE bmc_probes (
  id TEXT PRIMARY KEY, site TEXT NOT NULL, prefix TEXT NOT NULL, port INTEGER NOT NULL DEFAULT 0, plain_http BOOLEAN NOT NULL DEFAULT FALSE,
  "by" TEXT NOT NULL, asked_at BIGINT NOT NULL, started_at BIGINT NOT NULL DEFAULT 0, ended_at BIGINT NOT NULL DEFAULT 0,
  found TEXT NOT NULL DEFAULT '[]', failure_code TEXT NOT NULL DEFAULT '', failure TEXT NOT NULL DEFAULT '', version BIGINT NOT NULL DEFAULT 0
);

-- +goose Down
DROP TABLE bmc_probes;
