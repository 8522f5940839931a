-- What holds for tenants and projects whatever the model: their weight in fair share, how many jobs run at once, the cap of
-- priorities. A job keeps the priority that was asked for, so that a cap that is raised gives it back.

-- +goose Up
ALTER TABLE tenants ADD COLUMN weight INTEGER NOT NULL DEFAULT 1;
ALTER TABLE tenants ADD COLUMN max_running_jobs INTEGER NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN weight INTEGER NOT NULL DEFAULT 1;
ALTER TABLE projects ADD COLUMN max_running_jobs INTEGER NOT NULL DEFAULT 0;
ALTER TABLE projects ADD COLUMN max_priority INTEGER NOT NULL DEFAULT 1000;
ALTER TABLE jobs ADD COLUMN asked_priority INTEGER NOT NULL DEFAULT 0;
UPDATE jobs SET asked_priority = priority;
