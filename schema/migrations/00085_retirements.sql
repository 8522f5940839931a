-- Servers that are taken out for good, and what became of each of their drives.

-- +goose Up
CREATE TABLE retirements (
  server TEXT PRIMARY KEY REFERENCES servers (id), reason TEXT NOT NULL, asked_by TEXT NOT NULL, at BIGINT NOT NULL, overwrite BOOLEAN NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0, left_at BIGINT NOT NULL DEFAULT 0, closed_at BIGINT NOT NULL DEFAULT 0, outcome TEXT NOT NULL DEFAULT ''
);
CREATE TABLE drive_certificates (
  id TEXT PRIMARY KEY, server TEXT NOT NULL REFERENCES servers (id), server_name TEXT NOT NULL, server_serial TEXT NOT NULL, attempt INTEGER NOT NULL,
  serial TEXT NOT NULL, model TEXT NOT NULL, name TEXT NOT NULL, bus TEXT NOT NULL, bytes BIGINT NOT NULL, method TEXT NOT NULL, outcome TEXT NOT NULL,
  trouble TEXT NOT NULL, verified TEXT NOT NULL, not_reached TEXT NOT NULL, words TEXT NOT NULL, started BIGINT NOT NULL, ended BIGINT NOT NULL, at BIGINT NOT NULL
);
CREATE INDEX drive_certificates_server ON drive_certificates (server, at);
CREATE INDEX drive_certificates_serial ON drive_certificates (serial);
ALTER TABLE armed ADD COLUMN sanitise BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE armed ADD COLUMN overwrite BOOLEAN NOT NULL DEFAULT FALSE;
