-- The limits of a tenant hold over all regions together: each commit that starts jobs of a limited tenant moves its version, and
-- one that rests on an older version is refused.

-- +goose Up
CREATE TABLE limit_versions (tenant TEXT PRIMARY KEY REFERENCES tenants (name), version BIGINT NOT NULL);
