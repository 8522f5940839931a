-- What the watch must not forget when its process dies, and evidence that came by two paths.

-- +goose Up
CREATE TABLE bmc_memories (server TEXT PRIMARY KEY REFERENCES servers (id), memory TEXT NOT NULL, at BIGINT NOT NULL);
CREATE TABLE fault_twins (dedupe TEXT PRIMARY KEY, source TEXT NOT NULL, fault TEXT NOT NULL REFERENCES faults (id), at BIGINT NOT NULL);
CREATE INDEX fault_twins_fault ON fault_twins (fault);
