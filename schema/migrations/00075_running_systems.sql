-- What system a server's agent registered from: one that lives in memory is given to the server again at each boot.

-- +goose Up
CREATE TABLE running_systems (server TEXT PRIMARY KEY REFERENCES servers (id), attempt INTEGER NOT NULL, profile TEXT NOT NULL, vals TEXT NOT NULL DEFAULT '', at BIGINT NOT NULL);

-- +goose Down
DROP TABLE running_systems;
