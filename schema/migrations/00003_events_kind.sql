-- Nobody asks for events by their kind alone: readers follow the sequence, a server, a job or a tenant.

-- +goose Up
DROP INDEX events_kind;
