-- What servers of one kind are ordered with, part by part, and which of these a server was ordered as.

-- +goose Up
CREATE TABLE builds (name TEXT PRIMARY KEY, parts TEXT NOT NULL, set_by TEXT NOT NULL, set_at BIGINT NOT NULL);
ALTER TABLE servers ADD COLUMN build TEXT NOT NULL DEFAULT '';
