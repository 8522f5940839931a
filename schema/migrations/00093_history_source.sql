-- Who read an hour of a device: its server's agent, or the server's BMC. A process writes for one of them under a name of its own.

-- +goose Up
ALTER TABLE device_hours ADD COLUMN source TEXT NOT NULL DEFAULT 'agent';
