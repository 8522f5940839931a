package store

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"gpupool/schema"
)

// probeID begins the ids of probes: they go the way of a person's acts at BMCs, to a worker of the site.
const probeID = "probe"

// IsBMCProbe tells a probe's id from that of an act at one BMC.
func IsBMCProbe(id string) bool { return strings.HasPrefix(id, probeID) }

// AskBMCProbe keeps that a range is to be probed by a worker of a site; the event that tells of it starts the process.
func (s *Store) AskBMCProbe(ctx context.Context, site, prefix string, port int, plain bool, by string) (schema.BMCProbe, error) {
	if !NamePattern.MatchString(site) {
		return schema.BMCProbe{}, schema.Invalid("site", site, nameRight)
	}
	p, err := netip.ParsePrefix(prefix)
	if err != nil {
		return schema.BMCProbe{}, schema.Invalid("range", prefix, "an address and the length of its network, like 10.20.0.0/24")
	}
	if bits := p.Addr().BitLen() - p.Bits(); bits > schema.MostProbed {
		return schema.BMCProbe{}, schema.Invalid("range", prefix, fmt.Sprintf("at most %d addresses: probe it in parts", 1<<schema.MostProbed))
	}
	if port < 0 || port > 65535 {
		return schema.BMCProbe{}, schema.Invalid("port", port, "1 to 65535, or 0 for 443")
	}
	var out schema.BMCProbe
	return out, s.Write(ctx, func(tx *Tx) error {
		out = schema.BMCProbe{ID: NewID(probeID, tx.now), Site: site, Range: p.Masked().String(), Port: port, PlainHTTP: plain, By: by, AskedAt: tx.now, Found: []schema.BMCFound{}}
		tx.Emit(schema.Event{Kind: schema.EventBMCAsked, Subject: out.ID, By: by}, map[string]any{"verb": "probe", "range": out.Range, "site": site})
		return tx.db.Create(&out).Error
	})
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
		p.EndedAt, p.Version, p.Found = tx.now, p.Version+1, append([]schema.BMCFound{}, found...)
		if failure != nil {
			p.FailureCode, p.Failure = schema.CodeOf(failure), failure.Error()
		}
		tx.Emit(schema.Event{Kind: schema.EventBMCEnded, Subject: p.ID, By: p.By}, map[string]any{"verb": "probe", "range": p.Range, "found": len(found), "failure": p.Failure, "code": p.FailureCode})
		return tx.db.Save(&p).Error
	})
}
