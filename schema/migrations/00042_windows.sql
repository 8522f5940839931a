-- Times when servers are not for everybody: maintenance, or a reservation for a tenant or project.

-- +goose Up
CREATE TABLE windows (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, from_at BIGINT NOT NULL, until_at BIGINT NOT NULL DEFAULT 0,
  tenant TEXT NOT NULL DEFAULT '', project TEXT NOT NULL DEFAULT '', note TEXT NOT NULL DEFAULT '', "by" TEXT NOT NULL, created_at BIGINT NOT NULL
);
CREATE TABLE window_servers ("window" TEXT NOT NULL REFERENCES windows (id), server TEXT NOT NULL REFERENCES servers (id), PRIMARY KEY ("window", server));
CREATE INDEX window_servers_server ON window_servers (server);
