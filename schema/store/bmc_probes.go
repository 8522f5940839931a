package store

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"gpupool/schema"
	"gpupool/schema/secret"
)

// probeID begins the ids of probes: they go the way of a person's acts at BMCs, to a worker of the site.
const probeID = "probe"

// IsBMCProbe tells a probe's id from that of an act at one BMC.
func IsBMCProbe(id string) bool { return strings.HasPrefix(id, probeID) }

// NewBMCProbe is what a person asks of a probe. With a username, those that answer are logged in to, once, to read their serials.
type NewBMCProbe struct {
	Site, Range        string
	Port               int // 0 = 443
	PlainHTTP          bool
	Username, Password string
}

func (n NewBMCProbe) check() (netip.Prefix, error) {
	p, err := netip.ParsePrefix(n.Range)
	switch {
	case !NamePattern.MatchString(n.Site):
		return p, schema.Invalid("site", n.Site, nameRight)
	case err != nil:
		return p, schema.Invalid("range", n.Range, "an address and the length of its network, like 10.20.0.0/24")
	case p.Addr().BitLen()-p.Bits() > schema.MostProbed:
		return p, schema.Invalid("range", n.Range, fmt.Sprintf("at most %d addresses: probe it in parts", 1<<schema.MostProbed))
	case n.Port < 0 || n.Port > 65535:
		return p, schema.Invalid("port", n.Port, "1 to 65535, or 0 for 443")
	case n.Username == "" && n.Password != "":
		return p, schema.Invalid("username", n.Username, "the account that the password is of")
	case n.Username != "" && n.Password == "":
		return p, &schema.Error{Code: schema.CodeInvalid, Field: "password", Message: "is empty", Hint: "the account's password; without a username nothing is logged in to"}
	}
	return p.Masked(), nil
}

// AskBMCProbe keeps that a range is to be probed by a worker of a site; the event that tells of it starts the process. A password is
// given to machines that nobody has looked at yet, so it takes an allow-list that says which are ours.
func (s *Store) AskBMCProbe(ctx context.Context, n NewBMCProbe, ring *secret.Ring, by string) (schema.BMCProbe, error) {
	prefix, err := n.check()
	if err != nil {
		return schema.BMCProbe{}, err
	}
	var out schema.BMCProbe
	return out, s.Write(ctx, func(tx *Tx) error {
		out = schema.BMCProbe{ID: NewID(probeID, tx.now), Site: n.Site, Range: prefix.String(), Port: n.Port, PlainHTTP: n.PlainHTTP, LogsIn: n.Username != "", By: by, AskedAt: tx.now, Found: []schema.BMCFound{}}
		if err := tx.db.Create(&out).Error; err != nil {
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventBMCAsked, Subject: out.ID, By: by}, map[string]any{"verb": "probe", "range": out.Range, "site": n.Site, "logs_in": out.LogsIn})
		if !out.LogsIn {
			return nil
		}
		switch is, err := tx.listed(n.Site, ""); {
		case err != nil:
			return err
		case is == schema.ListedNone:
			return schema.Conflict("site "+n.Site+" has no allow-list of serials", "say first which machines are yours: `gpupool bmc allow`; or probe without a username")
		}
		keyID, sealed, err := ring.Seal([]byte(n.Password), out.ID)
		if err != nil {
			return err
		}
		_, err = tx.exec("INSERT INTO bmc_probe_logins (probe, username, key_id, sealed) VALUES (?, ?, ?, ?)", out.ID, n.Username, keyID, sealed)
		return err
	})
}

// TakeBMCProbeLogin gives the account of a probe that logs in, once: whoever is killed after it has tried the password somewhere, so
// the probe ends and is asked for again by a person. taken is false where it was given already, or there is none.
func (s *Store) TakeBMCProbeLogin(ctx context.Context, id string, ring *secret.Ring) (username, password string, taken bool, err error) {
	err = s.Write(ctx, func(tx *Tx) error {
		var row struct{ Probe, Username, KeyID, Sealed string }
		if err := tx.db.Raw("SELECT * FROM bmc_probe_logins WHERE probe = ?", id).Scan(&row).Error; err != nil || row.Probe == "" {
			return err
		}
		n, err := tx.exec("DELETE FROM bmc_probe_logins WHERE probe = ?", id)
		if err != nil || n != 1 {
			return err
		}
		plain, err := ring.Open(row.KeyID, row.Sealed, id)
		username, password, taken = row.Username, string(plain), err == nil
		return err
	})
	return username, password, taken, err
}

// BMCProbe finds one by id.
func (s *Store) BMCProbe(ctx context.Context, id string) (schema.BMCProbe, error) {
	var p schema.BMCProbe
	return p, one(s.read(ctx).Where("id = ?", id).Take(&p).Error, "BMC probe", id)
}

// BeginBMCProbe says that a worker took it. It is false where it has ended already.
func (s *Store) BeginBMCProbe(ctx context.Context, id string) (p schema.BMCProbe, live bool, err error) {
	err = s.Write(ctx, func(tx *Tx) error {
		if err := one(tx.lock(&p, "id = ?", id), "BMC probe", id); err != nil || p.EndedAt != 0 {
			return err
		}
		live = true
		if p.StartedAt != 0 {
			return nil
		}
		p.StartedAt, p.Version = tx.now, p.Version+1
		return tx.db.Save(&p).Error
	})
	return p, live, err
}

// EndBMCProbe keeps what came of it, once. What was found is kept among the BMCs found too.
func (s *Store) EndBMCProbe(ctx context.Context, id string, found []schema.BMCFound, failure error) error {
	if failure == nil {
		if err := s.FoundBMCs(ctx, found); err != nil {
			return err
		}
	}
	return s.Write(ctx, func(tx *Tx) error {
		var p schema.BMCProbe
		if err := one(tx.lock(&p, "id = ?", id), "BMC probe", id); err != nil || p.EndedAt != 0 {
			return err
		}
		if _, err := tx.exec("DELETE FROM bmc_probe_logins WHERE probe = ?", id); err != nil { // of one that no worker took
			return err
		}
		for i, f := range found {
			var err error
			if found[i].Listed, err = tx.listed(f.Site, f.Serial); err != nil {
				return err
			}
		}
		p.EndedAt, p.Version, p.Found = tx.now, p.Version+1, append([]schema.BMCFound{}, found...)
		if failure != nil {
			p.FailureCode, p.Failure = schema.CodeOf(failure), failure.Error()
		}
		tx.Emit(schema.Event{Kind: schema.EventBMCEnded, Subject: p.ID, By: p.By}, map[string]any{"verb": "probe", "range": p.Range, "found": len(found), "failure": p.Failure, "code": p.FailureCode})
		return tx.db.Save(&p).Error
	})
}
