package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gpupool/schema"
	"gpupool/schema/secret"
)

// BMCLogin is the row of a BMC's credential, one for all servers behind it. Passwords are sealed; the pending one is there only
// while a rotation is under way. Version rises with every write.
type BMCLogin struct {
	Server       string // the one that holds the row; passwords are sealed for it
	Username     string
	KeyID        string
	Sealed       string
	PendingKeyID string
	Pending      string
	Version      int64
	RotatedAt    schema.Instant
}

// loginOf finds the credential of the BMC of a server, whichever of its servers holds it.
const loginOf = `SELECT c.* FROM bmc_credentials c JOIN servers h ON h.id = c.server WHERE h.bmc_address = (SELECT bmc_address FROM servers WHERE id = ?) ORDER BY c.server LIMIT 1`

// BMCLogin reads it.
func (s *Store) BMCLogin(ctx context.Context, server string) (BMCLogin, error) {
	var row BMCLogin
	if err := s.read(ctx).Raw(loginOf, server).Scan(&row).Error; err != nil {
		return row, err
	}
	if row.Server == "" {
		return row, schema.NotFound("BMC credential of server", server)
	}
	return row, nil
}

// PutBMCLogin writes a row that was read at row.Version; a CodeStale error where another writer was faster. rotated says
// that the password is a new one, proven at the BMC. It tells of the change, never of what changed.
func (s *Store) PutBMCLogin(ctx context.Context, row BMCLogin, rotated bool, by string) error {
	return s.Write(ctx, func(tx *Tx) error {
		if rotated {
			row.RotatedAt = tx.now
		}
		n, err := tx.exec(`UPDATE bmc_credentials SET username = ?, key_id = ?, sealed = ?, pending_key_id = ?, pending = ?, rotated_at = ?, version = version + 1, updated_at = ? WHERE server = ? AND version = ?`,
			row.Username, row.KeyID, row.Sealed, row.PendingKeyID, row.Pending, row.RotatedAt, tx.now, row.Server, row.Version)
		if err == nil && n != 1 {
			err = schema.Stale("the BMC credential of server " + row.Server + " was changed meanwhile")
		}
		if err == nil && rotated {
			tx.Emit(schema.Event{Kind: schema.EventServerBMC, Subject: row.Server, Server: row.Server, By: by}, map[string]any{"what": "password-rotated"})
		}
		return err
	})
}

// SetBMCLogin keeps the credential that an operator gives; empty user keeps the user. A rotation under way is forgotten.
func (s *Store) SetBMCLogin(ctx context.Context, server, user, password string, ring *secret.Ring, by string) error {
	if password == "" {
		return &schema.Error{Code: schema.CodeInvalid, Field: "password", Message: "is empty", Hint: "the BMC account's password"}
	}
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		var held BMCLogin
		if err := tx.db.Raw(loginOf, v.ID).Scan(&held).Error; err != nil {
			return err
		}
		keyID, sealed, err := ring.Seal([]byte(password), held.Server)
		if err != nil {
			return err
		}
		if err := tx.update("BMC credential of server", v.Name, `UPDATE bmc_credentials SET username = CASE WHEN ? = '' THEN username ELSE ? END, key_id = ?, sealed = ?, pending_key_id = '', pending = '',
			version = version + 1, updated_at = ? WHERE server = ?`, user, user, keyID, sealed, tx.now, held.Server); err != nil {
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventServerBMC, Subject: v.ID, Server: v.ID, By: by}, map[string]any{"what": "credential-set"})
		return nil
	})
}

// BMCLoginsDue lists a server of each BMC of a site whose password was not changed since before, or whose rotation was cut off,
// the oldest first. Retired servers are nobody's any more.
func (s *Store) BMCLoginsDue(ctx context.Context, site string, before schema.Instant) ([]string, error) {
	var out []string
	return out, s.read(ctx).Raw(`SELECT MIN(v.id) FROM bmc_credentials c JOIN servers h ON h.id = c.server JOIN servers v ON v.bmc_address = h.bmc_address
		WHERE v.site = ? AND v.phase IN ('available','draining','repairing') AND (c.pending <> '' OR CASE WHEN c.rotated_at > 0 THEN c.rotated_at ELSE h.created_at END < ?)
		GROUP BY c.server, c.rotated_at ORDER BY c.rotated_at, c.server`, site, before).Scan(&out).Error
}

// BMCState is what all processes of a site know of one BMC. Sealed holds its session and login budget, as keys.
type BMCState struct {
	Address    string
	KeyID      string
	Sealed     string
	TLSKey     string `gorm:"column:tls_key"` // SHA-256 of the public key that is trusted, hex; "" trusts the next one seen
	OfferedKey string // another key that was seen and refused
	UpdatedAt  schema.Instant
}

// BMCState reads it; the zero state where a BMC was never spoken to.
func (s *Store) BMCState(ctx context.Context, address string) (BMCState, error) {
	var b BMCState
	return b, s.read(ctx).Raw("SELECT * FROM bmc_states WHERE address = ?", address).Scan(&b).Error
}

// UpdateBMCState lets change alter a BMC's state, one caller at a time over all processes. What change leaves as it was is
// not written; an error of change is returned, and nothing is written.
func (s *Store) UpdateBMCState(ctx context.Context, address string, change func(*BMCState) error) error {
	return s.Write(ctx, func(tx *Tx) error {
		if err := tx.exclusive("bmc " + address); err != nil {
			return err
		}
		var b BMCState
		if err := tx.db.Raw("SELECT * FROM bmc_states WHERE address = ?", address).Scan(&b).Error; err != nil {
			return err
		}
		was := b
		if err := change(&b); err != nil || b == was {
			return err
		}
		_, err := tx.exec(`INSERT INTO bmc_states (address, key_id, sealed, tls_key, offered_key, updated_at) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (address) DO UPDATE SET key_id = excluded.key_id, sealed = excluded.sealed, tls_key = excluded.tls_key, offered_key = excluded.offered_key, updated_at = excluded.updated_at`,
			address, b.KeyID, b.Sealed, b.TLSKey, b.OfferedKey, tx.now)
		return err
	})
}

// TrustBMCKey is the operator's acknowledgement of a BMC's TLS key. It must be the key that the BMC offers, in full, so that
// nobody trusts what he has not looked at; or one of a BMC not yet spoken to.
func (s *Store) TrustBMCKey(ctx context.Context, server, key, by string) error {
	key = strings.ToLower(strings.ReplaceAll(key, ":", ""))
	if len(key) != 64 || strings.Trim(key, "0123456789abcdef") != "" {
		return schema.Invalid("key", key, "the SHA-256 of the BMC's public key, 64 hexadecimal digits, as the refusal and `gpupool bmc show` tell it")
	}
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if err := tx.exclusive("bmc " + v.BMCAddress); err != nil {
			return err
		}
		var b BMCState
		if err := tx.db.Raw("SELECT * FROM bmc_states WHERE address = ?", v.BMCAddress).Scan(&b).Error; err != nil {
			return err
		}
		switch {
		case b.TLSKey == key:
			return nil
		case b.OfferedKey != "" && b.OfferedKey != key:
			return schema.Unsafe(fmt.Sprintf("the BMC of server %s offers the key %s", v.Name, b.OfferedKey), "compare it with the one that the BMC shows at its own console, then name that one")
		}
		if _, err := tx.exec(`INSERT INTO bmc_states (address, tls_key, updated_at) VALUES (?, ?, ?)
			ON CONFLICT (address) DO UPDATE SET tls_key = excluded.tls_key, offered_key = '', key_id = '', sealed = '', updated_at = excluded.updated_at`, v.BMCAddress, key, tx.now); err != nil {
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventServerBMC, Subject: v.ID, Server: v.ID, By: by}, map[string]any{"what": "key-trusted", "key": key, "before": b.TLSKey})
		return nil
	})
}

// BMCSightings are what the watch saw last, of one server or, where server is empty, of all.
func (s *Store) BMCSightings(ctx context.Context, server string) ([]schema.BMCSighting, error) {
	q := s.read(ctx).Order("server")
	if server != "" {
		q = q.Where("server = ?", server)
	}
	var out []schema.BMCSighting
	return out, q.Find(&out).Error
}

// SawBMC keeps what the watch sees, and tells of a change of power or trouble.
func (s *Store) SawBMC(ctx context.Context, now schema.BMCSighting) error {
	return s.Write(ctx, func(tx *Tx) error {
		var was schema.BMCSighting
		if err := tx.db.Raw("SELECT * FROM bmc_sightings WHERE server = ?", now.Server).Scan(&was).Error; err != nil {
			return err
		}
		now.At, now.Since = tx.now, was.Since
		if was.Server == "" || was.Power != now.Power || was.Trouble != now.Trouble {
			now.Since = tx.now
			tx.Emit(schema.Event{Kind: schema.EventServerBMC, Subject: now.Server, Server: now.Server}, map[string]any{"what": "seen", "power": now.Power, "trouble": now.Trouble, "text": now.Text, "before": map[string]any{"power": was.Power, "trouble": was.Trouble}})
		}
		_, err := tx.exec(`INSERT INTO bmc_sightings (server, power, progress, health, trouble, text, since, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (server) DO UPDATE SET power = excluded.power, progress = excluded.progress, health = excluded.health, trouble = excluded.trouble, text = excluded.text, since = excluded.since, at = excluded.at`,
			now.Server, now.Power, now.Progress, now.Health, now.Trouble, now.Text, now.Since, now.At)
		return err
	})
}

// FoundBMCs keeps what a probe or a DHCP server saw. Addresses that a server is enrolled with are no find, and neither is a
// machine whose serial is known and not on its site's allow-list.
func (s *Store) FoundBMCs(ctx context.Context, found []schema.BMCFound) error {
	return s.Write(ctx, func(tx *Tx) error {
		for _, f := range found {
			var enrolled int64
			if err := tx.db.Raw("SELECT count(*) FROM servers WHERE bmc_address = ?", f.Address).Scan(&enrolled).Error; err != nil {
				return err
			}
			is, err := tx.listed(f.Site, f.Serial)
			if err != nil {
				return err
			}
			if enrolled > 0 || is == schema.ListedNo {
				continue
			}
			if _, err := tx.exec(`INSERT INTO bmc_found (address, site, protocol, vendor, product, uuid, serial, mac, tls_key, via, first_seen, last_seen) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
				ON CONFLICT (address) DO UPDATE SET site = excluded.site, protocol = excluded.protocol, vendor = excluded.vendor, product = excluded.product, uuid = excluded.uuid,
					serial = excluded.serial, mac = excluded.mac, tls_key = excluded.tls_key, via = excluded.via, last_seen = excluded.last_seen`,
				f.Address, f.Site, f.Protocol, f.Vendor, f.Product, f.UUID, f.Serial, f.MAC, f.TLSKey, f.Via, tx.now, tx.now); err != nil {
				return err
			}
		}
		return nil
	})
}

// BMCsFound lists what was found and is not enrolled since, each with what its site's allow-list says of it now.
func (s *Store) BMCsFound(ctx context.Context, site string) ([]schema.BMCFound, error) {
	q := s.read(ctx).Where("address NOT IN (SELECT bmc_address FROM servers)").Order("address")
	if site != "" {
		q = q.Where("site = ?", site)
	}
	var out []schema.BMCFound
	if err := q.Find(&out).Error; err != nil {
		return nil, err
	}
	lists := map[string][]string{}
	for _, f := range out {
		if _, read := lists[f.Site]; !read {
			list, err := s.AllowedSerials(ctx, f.Site)
			if err != nil {
				return nil, err
			}
			slices.Sort(list) // the database's order may be its locale's
			lists[f.Site] = list
		}
	}
	mark(out, lists)
	return out, nil
}

// BMCEvidence is evidence that a BMC gave, about the accelerator of that serial, else of that slot, else about the server.
type BMCEvidence struct {
	Serial, Slot string
	Over         bool         // what was told of the same device, kind and part is over
	Fault        schema.Fault // without server and accelerator
}

// ReportBMCEvidence stores what the watch sees as faults of source redfish, or clears them. memory is what the watch must know to tell news
// from history after a restart; it is kept in the same transaction, so that nothing is told twice or lost. nil keeps the one
// kept before.
func (s *Store) ReportBMCEvidence(ctx context.Context, server string, evidence []BMCEvidence, memory []byte) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		for _, e := range evidence {
			f := e.Fault
			f.Source = "redfish"
			if f.Accelerator, err = tx.acceleratorBy(v.ID, e.Serial, e.Slot); err != nil {
				return err
			}
			report := tx.reportFault
			if e.Over {
				report = tx.clearFaults
			}
			if err := report(v, f); err != nil {
				return err
			}
		}
		if memory == nil {
			return nil
		}
		_, err = tx.exec(`INSERT INTO bmc_memories (server, memory, at) VALUES (?, ?, ?) ON CONFLICT (server) DO UPDATE SET memory = excluded.memory, at = excluded.at`, v.ID, string(memory), tx.now)
		return err
	})
}

// acceleratorBy joins what a BMC shows with the inventory: by serial, then by slot; "" where neither is known.
func (tx *Tx) acceleratorBy(server, serial, slot string) (string, error) {
	for _, k := range []struct{ where, value string }{{"upper(serial) = upper(?)", serial}, {"upper(slot) = upper(?)", slot}} {
		if k.value == "" {
			continue
		}
		var ids []string
		if err := tx.db.Raw("SELECT id FROM accelerators WHERE server = ? AND removed_at = 0 AND "+k.where+" ORDER BY id", server, k.value).Scan(&ids).Error; err != nil {
			return "", err
		}
		if len(ids) == 1 {
			return ids[0], nil
		}
	}
	return "", nil
}

// BMCMemories are what the watch kept of the servers of a site.
func (s *Store) BMCMemories(ctx context.Context, site string) (map[string][]byte, error) {
	var rows []struct{ Server, Memory string }
	if err := s.read(ctx).Raw("SELECT m.server, m.memory FROM bmc_memories m JOIN servers v ON v.id = m.server WHERE v.site = ?", site).Scan(&rows).Error; err != nil {
		return nil, err
	}
	out := make(map[string][]byte, len(rows))
	for _, r := range rows {
		out[r.Server] = []byte(r.Memory)
	}
	return out, nil
}
