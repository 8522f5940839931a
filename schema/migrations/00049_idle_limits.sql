-- Idle limits of a tenant or project, in ms: 0 = never, -1 = what holds above it.

-- +goose Up
ALTER TABLE tenants ADD COLUMN idle_warn BIGINT NOT NULL DEFAULT -1;
ALTER TABLE tenants ADD COLUMN idle_reclaim BIGINT NOT NULL DEFAULT -1;
ALTER TABLE projects ADD COLUMN idle_warn BIGINT NOT NULL DEFAULT -1;
ALTER TABLE projects ADD COLUMN idle_reclaim BIGINT NOT NULL DEFAULT -1;
