-- What was read of each device by the hour: a row for each process that heard it, which that process alone writes, so that an
-- hour is never counted twice.

-- +goose Up
CREATE TABLE device_hours (
  hour BIGINT NOT NULL, identity TEXT NOT NULL, writer TEXT NOT NULL, server TEXT NOT NULL, metrics TEXT NOT NULL,
  PRIMARY KEY (hour, identity, writer)
);
CREATE INDEX device_hours_server ON device_hours (server, hour);
