-- What a server has other than was ordered, and who accepted it; and an onboarding that a person holds before a step.

-- +goose Up
CREATE TABLE differences (
  id TEXT PRIMARY KEY, serial TEXT NOT NULL, item TEXT NOT NULL, ordered TEXT NOT NULL, found TEXT NOT NULL, missing INTEGER NOT NULL, words TEXT NOT NULL,
  server TEXT NOT NULL REFERENCES servers (id), attempt INTEGER NOT NULL, step TEXT NOT NULL, there BOOLEAN NOT NULL, seen_at BIGINT NOT NULL,
  accepted_at BIGINT NOT NULL DEFAULT 0, accepted_by TEXT NOT NULL DEFAULT '', reason TEXT NOT NULL DEFAULT '',
  UNIQUE (serial, item, ordered, found)
);
ALTER TABLE servers ADD COLUMN pause_before TEXT NOT NULL DEFAULT '';
ALTER TABLE servers ADD COLUMN pause_by TEXT NOT NULL DEFAULT '';
ALTER TABLE servers ADD COLUMN pause_reason TEXT NOT NULL DEFAULT '';
ALTER TABLE servers ADD COLUMN pause_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE servers ADD COLUMN pause_held_at BIGINT NOT NULL DEFAULT 0;
