-- Serials of the machines that a site was sent; and the passwords of probes that read serials, until a worker takes them.

-- +goose Up
CREATE TABLE allowed_serials (
  site TEXT NOT NULL, serial TEXT NOT NULL, "by" TEXT NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (site, serial)
);
CREATE TABLE bmc_probe_logins (
  probe TEXT PRIMARY KEY REFERENCES bmc_probes (id), username TEXT NOT NULL, key_id TEXT NOT NULL, sealed TEXT NOT NULL
);
ALTER TABLE bmc_probes ADD COLUMN logs_in BOOLEAN NOT NULL DEFAULT FALSE;

-- +goose Down
ALTER TABLE bmc_probes DROP COLUMN logs_in;
DROP TABLE bmc_probe_logins;
DROP TABLE allowed_serials;
