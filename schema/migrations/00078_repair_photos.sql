-- Photos of repairs, and since when a repair waits for the technician. The table of 60 was never written to. SQLite keeps a BLOB as
-- it is in a column of any type, so BYTEA serves both.

-- +goose Up
DROP TABLE repair_photos;
CREATE TABLE repair_photos (
  repair TEXT NOT NULL REFERENCES repairs (id), id TEXT NOT NULL, type TEXT NOT NULL, bytes BIGINT NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL,
  note TEXT NOT NULL DEFAULT '', "by" TEXT NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (repair, id)
);
CREATE TABLE repair_photo_files (repair TEXT NOT NULL, id TEXT NOT NULL, content BYTEA NOT NULL, PRIMARY KEY (repair, id));
ALTER TABLE repairs ADD COLUMN waiting_at BIGINT NOT NULL DEFAULT 0;
