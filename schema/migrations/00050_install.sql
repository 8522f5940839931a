-- Which install profile a server, the servers of a rack or those of a model get, with what is set of it; an arming keeps
-- what it was armed with, so that an install that runs is not changed under its feet.

-- +goose Up
CREATE TABLE install_choices (
  scope TEXT NOT NULL, name TEXT NOT NULL, profile TEXT NOT NULL, vals TEXT NOT NULL DEFAULT '',
  "by" TEXT NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (scope, name)
);
ALTER TABLE armed ADD COLUMN vals TEXT NOT NULL DEFAULT '';
-- The default's name was written at enrolment; from now on it is left open, so that a choice for the rack or model holds.
UPDATE servers SET profile = '' WHERE profile = 'image';
