-- Which breaker holds a fault back.

-- +goose Up
ALTER TABLE faults ADD COLUMN breaker TEXT NOT NULL DEFAULT '';
CREATE INDEX faults_breaker ON faults (breaker) WHERE breaker <> '';
