-- What a site's processes know together of their BMCs: the way in, the key trusted, what the watch saw last, what a person
-- asked of one.

-- +goose Up
ALTER TABLE bmc_credentials ADD COLUMN pending_key_id TEXT NOT NULL DEFAULT '';
ALTER TABLE bmc_credentials ADD COLUMN pending TEXT NOT NULL DEFAULT '';
ALTER TABLE bmc_credentials ADD COLUMN version BIGINT NOT NULL DEFAULT 0;
ALTER TABLE bmc_credentials ADD COLUMN rotated_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE bmc_credentials DROP COLUMN tls_pin;

CREATE TABLE bmc_states (
  address TEXT PRIMARY KEY, key_id TEXT NOT NULL DEFAULT '', sealed TEXT NOT NULL DEFAULT '',
  tls_key TEXT NOT NULL DEFAULT '', offered_key TEXT NOT NULL DEFAULT '', updated_at BIGINT NOT NULL
);
CREATE TABLE bmc_sightings (
  server TEXT PRIMARY KEY REFERENCES servers (id), power TEXT NOT NULL, progress TEXT NOT NULL, health TEXT NOT NULL,
  trouble TEXT NOT NULL, text TEXT NOT NULL, since BIGINT NOT NULL, at BIGINT NOT NULL
);
CREATE TABLE bmc_acts (
  id TEXT PRIMARY KEY, server TEXT NOT NULL REFERENCES servers (id), verb TEXT NOT NULL, args TEXT NOT NULL,
  "by" TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', asked_at BIGINT NOT NULL, started_at BIGINT NOT NULL DEFAULT 0, ended_at BIGINT NOT NULL DEFAULT 0,
  result TEXT NOT NULL DEFAULT '', failure_code TEXT NOT NULL DEFAULT '', failure TEXT NOT NULL DEFAULT '', hint TEXT NOT NULL DEFAULT '',
  version BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX bmc_acts_server ON bmc_acts (server, asked_at);
CREATE TABLE bmc_files (act TEXT PRIMARY KEY REFERENCES bmc_acts (id), name TEXT NOT NULL, content TEXT NOT NULL, at BIGINT NOT NULL);
CREATE TABLE bmc_found (
  address TEXT PRIMARY KEY, site TEXT NOT NULL, protocol TEXT NOT NULL, vendor TEXT NOT NULL, product TEXT NOT NULL, uuid TEXT NOT NULL,
  serial TEXT NOT NULL DEFAULT '', mac TEXT NOT NULL DEFAULT '', tls_key TEXT NOT NULL, via TEXT NOT NULL, first_seen BIGINT NOT NULL, last_seen BIGINT NOT NULL
);
