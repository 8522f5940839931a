-- Webhooks: who is told of events, and each message to one from the event to the answer.

-- +goose Up
CREATE TABLE webhooks (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, url TEXT NOT NULL, events TEXT NOT NULL, tenant TEXT NOT NULL DEFAULT '', project TEXT NOT NULL DEFAULT '',
  "by" TEXT NOT NULL, created_at BIGINT NOT NULL, cursor BIGINT NOT NULL, succeeded_at BIGINT NOT NULL DEFAULT 0, failing_since BIGINT NOT NULL DEFAULT 0,
  last_error TEXT NOT NULL DEFAULT '', disabled_at BIGINT NOT NULL DEFAULT 0, disabled_why TEXT NOT NULL DEFAULT '', key_id TEXT NOT NULL, sealed TEXT NOT NULL,
  UNIQUE (tenant, name)
);
CREATE TABLE webhook_deliveries (
  id TEXT PRIMARY KEY, webhook TEXT NOT NULL REFERENCES webhooks (id), event BIGINT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL,
  state TEXT NOT NULL, at BIGINT NOT NULL, tries INTEGER NOT NULL DEFAULT 0, first_at BIGINT NOT NULL DEFAULT 0, tried_at BIGINT NOT NULL DEFAULT 0, next_at BIGINT NOT NULL, ended_at BIGINT NOT NULL DEFAULT 0,
  status INTEGER NOT NULL DEFAULT 0, error TEXT NOT NULL DEFAULT ''
);
-- The next message to a hook about each subject.
CREATE INDEX webhook_deliveries_pending ON webhook_deliveries (webhook, subject, event) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_newest ON webhook_deliveries (webhook, at);
