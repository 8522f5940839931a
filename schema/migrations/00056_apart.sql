-- Why jobs of a server are not kept apart, as its agent says; empty = they are.

-- +goose Up
ALTER TABLE servers ADD COLUMN shared TEXT NOT NULL DEFAULT '';
