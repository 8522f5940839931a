-- Several servers may stand behind one BMC (blades, two-node chassis). A server's place there is its system's id, or where none is
-- told its own serial; the BMC's credential is one row, held by the first of them.

-- +goose Up
ALTER TABLE servers RENAME COLUMN bmc_address TO bmc_place;
ALTER TABLE servers ADD COLUMN bmc_address TEXT NOT NULL DEFAULT '';
ALTER TABLE servers ADD COLUMN bmc_system TEXT NOT NULL DEFAULT '';
UPDATE servers SET bmc_address = bmc_place;
UPDATE servers SET bmc_place = bmc_address || '#' || upper(serial);
CREATE INDEX servers_bmc ON servers (bmc_address);

-- +goose Down
DROP INDEX servers_bmc;
UPDATE servers SET bmc_place = bmc_address;
ALTER TABLE servers DROP COLUMN bmc_system;
ALTER TABLE servers DROP COLUMN bmc_address;
ALTER TABLE servers RENAME COLUMN bmc_place TO bmc_address;
