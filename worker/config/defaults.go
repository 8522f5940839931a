package config

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// fill puts the default in the place of what was left out, and makes paths absolute. A field's
// "zero" tag says in words what is done here.
func (c *Config) fill(environ []string) (err error) {
	if c.DataDir == "" {
		if c.DataDir, err = dataDir(environ); err != nil {
			return err
		}
	}
	if c.DataDir, err = filepath.Abs(c.DataDir); err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	c.Durability = cmp.Or(c.Durability, DurabilityFull)
	if len(c.Roles) == 0 {
		c.Roles = Roles()
	}
	if len(c.Regions) == 0 {
		c.Regions = []string{"default"}
	}
	if len(c.Sites) == 0 {
		c.Sites = []string{"default"}
	}

	c.Database.Driver = cmp.Or(c.Database.Driver, SQLite)
	c.Database.MaxConnections = cmp.Or(c.Database.MaxConnections, 20)
	if err := c.fillDSN(); err != nil {
		return err
	}

	c.Temporal.Mode = cmp.Or(c.Temporal.Mode, Embedded)
	c.Temporal.Namespace = cmp.Or(c.Temporal.Namespace, "gpupool")
	c.Temporal.Retention = cmp.Or(c.Temporal.Retention, 72*time.Hour)
	if c.Temporal.Mode == Embedded {
		c.Temporal.Address = cmp.Or(c.Temporal.Address, "127.0.0.1:0")
		c.Temporal.PayloadKeyFile = cmp.Or(c.Temporal.PayloadKeyFile, filepath.Join(c.DataDir, "payload.keys"))
	} else {
		c.Temporal.Address = cmp.Or(c.Temporal.Address, "127.0.0.1:7233")
	}
	t := &c.Temporal.TLS
	t.Enabled = t.Enabled || t.CA != "" || t.Cert != "" || t.ServerName != ""

	c.API.Listen = cmp.Or(c.API.Listen, "127.0.0.1:8080")
	if c.Database.Driver == SQLite {
		c.Secrets.KeyFile = cmp.Or(c.Secrets.KeyFile, filepath.Join(c.DataDir, "secrets.keys"))
	}

	c.BMC.fill()
	c.Timing.fill()
	c.Webhooks.fill()
	c.Mail.fill()
	c.Limits.InstallsPerSite = cmp.Or(c.Limits.InstallsPerSite, 64)

	c.PXE.Mode = cmp.Or(c.PXE.Mode, PXEOff)
	c.PXE.DHCPListen = cmp.Or(c.PXE.DHCPListen, ":67")
	c.PXE.TFTPListen = cmp.Or(c.PXE.TFTPListen, ":69")
	c.PXE.HTTPListen = cmp.Or(c.PXE.HTTPListen, ":8081")
	c.PXE.BootDir = cmp.Or(c.PXE.BootDir, filepath.Join(c.DataDir, "boot"))
	c.PXE.IPv6.DHCPListen = cmp.Or(c.PXE.IPv6.DHCPListen, "[::]:547")
	c.PXE.IPv6.TFTPListen = cmp.Or(c.PXE.IPv6.TFTPListen, "[::]:69")
	c.PXE.LeaseTime = cmp.Or(c.PXE.LeaseTime, time.Hour)
	c.PXE.BootLeaseTime = cmp.Or(c.PXE.BootLeaseTime, min(10*time.Minute, c.PXE.LeaseTime))
	c.PXE.OfferHold = cmp.Or(c.PXE.OfferHold, time.Minute)
	c.PXE.Quarantine = cmp.Or(c.PXE.Quarantine, time.Hour)
	c.PXE.TFTPPerClient = cmp.Or(c.PXE.TFTPPerClient, 8)
	if c.PXE.BootListen == "" {
		c.PXE.BootListen = ":4011"
		if c.PXE.Mode == PXERelay {
			c.PXE.BootListen = Off
		}
	}
	if _, port, err := net.SplitHostPort(c.PXE.HTTPListen); err == nil && port != "0" && c.PXE.ServerID != "" && c.PXE.ExternalURL == "" {
		scheme := "http://"
		if c.PXE.TLSCert != "" {
			scheme = "https://"
		}
		c.PXE.ExternalURL = scheme + net.JoinHostPort(c.PXE.ServerID, port)
	}

	c.Log.Level = cmp.Or(c.Log.Level, LevelInfo)
	c.Log.Format = cmp.Or(c.Log.Format, FormatAuto)
	return nil
}

func (c *Config) fillDSN() error {
	switch d := &c.Database; {
	case d.DSN != "":
	case d.DSNFile != "":
		b, err := os.ReadFile(d.DSNFile)
		if err != nil {
			return fmt.Errorf("database.dsn_file: %w", err)
		}
		d.DSN = strings.TrimSpace(string(b))
	case d.Driver == SQLite:
		d.DSN = filepath.Join(c.DataDir, "gpupool.db")
	}
	return nil
}

// Has says whether this process has the role.
func (c *Config) Has(r Role) bool { return slices.Contains(c.Roles, r) }

// UsesSecrets says whether this process seals or opens BMC passwords.
func (c *Config) UsesSecrets() bool { return c.Has(RoleAPI) || c.Has(RoleWorker) }

// UsesTemporal says whether this process speaks to Temporal: all but a boot service alone.
func (c *Config) UsesTemporal() bool {
	return c.Has(RoleAPI) || c.Has(RoleWorker) || c.Has(RoleAllocator)
}

func (c *Config) hasAll(roles []Role) bool {
	return !slices.ContainsFunc(roles, func(r Role) bool { return !c.Has(r) })
}

// TemporalDir is the embedded Temporal's folder.
func (c *Config) TemporalDir() string { return filepath.Join(c.DataDir, "temporal") }

// URL is the address by which the API is reached from outside: external_url, or what listen says.
// bound is the address the listener got, for a listen of port 0; empty means listen.
func (c *Config) URL(bound string) string {
	if c.API.ExternalURL != "" {
		return strings.TrimSuffix(c.API.ExternalURL, "/")
	}
	host, port, err := net.SplitHostPort(cmp.Or(bound, c.API.Listen))
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if c.API.TLSCert != "" {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}
