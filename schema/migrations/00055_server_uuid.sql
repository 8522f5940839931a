-- +goose Up
-- A machine that boots over IPv6 may say no more than its UUID.
CREATE INDEX servers_uuid ON servers (uuid);

-- +goose Down
DROP INDEX servers_uuid;
