-- What an armed attempt's installer told last: that the disk is written (from then on no other may be), or why it gave up.

-- +goose Up
ALTER TABLE armed ADD COLUMN installed_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE armed ADD COLUMN failure TEXT NOT NULL DEFAULT '';
