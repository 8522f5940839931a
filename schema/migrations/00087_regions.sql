-- The regions that there are servers in, of which a submitted job's is one, without reading every server.

-- +goose Up
CREATE INDEX servers_region ON servers (region);
