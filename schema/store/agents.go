package store

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// RegisterAgent is the phone-home: it uses up the attempt's token, keeps the agent's public key, disarms the server
// and tells the onboarding. The same key may register again with the same token (its answer was lost); another may not.
//
// A server whose system lives in memory registers anew after each boot, under the same attempt: with the token that this
// boot was given, and once its earlier agent is silent, so that nobody takes the place of one that lives.
func (s *Store) RegisterAgent(ctx context.Context, tokenHash string, r agentproto.Register) error {
	key, err := base64.StdEncoding.DecodeString(r.PublicKey)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return schema.Invalid("public_key", r.PublicKey, "base64 of a 32-byte Ed25519 public key")
	}
	return s.Write(ctx, func(tx *Tx) error {
		var before int64
		if err := tx.db.Raw(`SELECT count(*) FROM agents a JOIN boot_tokens t ON t.server = a.server AND t.attempt = a.attempt
			WHERE t.hash = ? AND t.purpose = ? AND t.used_at <> 0 AND a.server = ? AND a.public_key = ?`, tokenHash, schema.PurposePhoneHome, r.Server, r.PublicKey).Scan(&before).Error; err != nil {
			return err
		}
		if before > 0 {
			return nil
		}
		t, err := tx.bootToken(tokenHash, schema.PurposePhoneHome, true)
		if err != nil {
			return err
		}
		if t.Server != r.Server || t.Attempt != r.Attempt {
			return errBootToken()
		}
		v, err := tx.server(t.Server)
		if err != nil {
			return err
		}
		if v.UUID != "" && r.UUID != "" && !strings.EqualFold(v.UUID, r.UUID) {
			return schema.Unsafe(fmt.Sprintf("the machine that phoned home has UUID %s, the BMC of %s says %s", r.UUID, v.Name, v.UUID), "is the BMC cabled to another machine?")
		}
		again, err := tx.runs(v, t.Attempt)
		if err != nil {
			return err
		}
		if again {
			if err := tx.startedAnew(v); err != nil {
				return err
			}
		} else if err := tx.keepSystem(v); err != nil {
			return err
		}
		if _, err := tx.exec(`INSERT INTO agents (server, public_key, attempt, boot_id, version, registered_at) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (server) DO UPDATE SET public_key = excluded.public_key, attempt = excluded.attempt, boot_id = excluded.boot_id, version = excluded.version, registered_at = excluded.registered_at`,
			v.ID, r.PublicKey, t.Attempt, r.BootID, r.Version, tx.now); err != nil {
			return err
		}
		if err := tx.disarm(v.ID, t.Attempt); err != nil {
			return err
		}
		v.BootID, v.AgentSeen = r.BootID, tx.now
		tx.Emit(schema.Event{Kind: schema.EventServerPhonedHome, Subject: v.ID, Server: v.ID}, map[string]any{"attempt": t.Attempt, "boot_id": r.BootID, "serial": r.Serial, "again": again})
		return tx.saveServer(&v)
	})
}

// keepSystem keeps what the server was armed with as the system that it has.
func (tx *Tx) keepSystem(v schema.Server) error {
	_, err := tx.exec(`INSERT INTO running_systems (server, attempt, profile, vals, at) SELECT server, attempt, profile, vals, ? FROM armed WHERE server = ? AND attempt = ?
		ON CONFLICT (server) DO UPDATE SET attempt = excluded.attempt, profile = excluded.profile, vals = excluded.vals, at = excluded.at`, tx.now, v.ID, v.Attempt)
	return err
}

// startedAnew ends what a server did whose memory is gone, the agent's included. It refuses while an agent of it may live:
// whoever registers then is another.
func (tx *Tx) startedAnew(v schema.Server) error {
	if silent, enough := tx.now.Sub(v.AgentSeen), 2*tx.s.seen; silent < enough {
		return &schema.Error{Code: schema.CodeLimited, Message: fmt.Sprintf("the agent of server %s was heard of %s ago: another takes its place after %s of silence", v.Name, schema.Setting(silent.Round(time.Second)), schema.Setting(enough)),
			Hint: "ask again; where this is not the server's own restart, find who has taken its address"}
	}
	var open []schema.Task
	if err := tx.db.Where("server = ? AND ended = 0 AND cluster = ''", v.ID).Order("created, id").Find(&open).Error; err != nil {
		return err
	}
	for _, t := range open {
		if t.Claimed == 0 {
			continue // it has not been begun, and is by the new agent
		}
		if err := tx.report(v.ID, agentproto.TaskReport{Task: t.ID, Seq: t.Seq + 1, State: schema.TaskFailed, Text: "the server was restarted while it ran, and its system lives in memory", NoneLeft: true}); err != nil {
			return err
		}
	}
	return nil
}

// PhonedHome reports whether the attempt's agent has registered.
func (s *Store) PhonedHome(ctx context.Context, server string, attempt int) (bool, error) {
	var n int64
	err := s.read(ctx).Raw("SELECT count(*) FROM agents WHERE server = ? AND attempt = ?", server, attempt).Scan(&n).Error
	return n > 0, err
}

// AgentKey is the key that the server's agent registered.
func (s *Store) AgentKey(ctx context.Context, server string) (ed25519.PublicKey, error) {
	var enc string
	if err := s.read(ctx).Raw("SELECT public_key FROM agents WHERE server = ?", server).Scan(&enc).Error; err != nil {
		return nil, err
	}
	key, err := base64.StdEncoding.DecodeString(enc)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, &schema.Error{Code: schema.CodeUnauthenticated, Message: fmt.Sprintf("no agent of server %q has registered", server), Hint: "an agent registers when its server is onboarded"}
	}
	return key, nil
}

// Heartbeat keeps what an agent reads: devices as they are, evidence once. It writes only what changed.
func (s *Store) Heartbeat(ctx context.Context, server string, h agentproto.Heartbeat) (agentproto.HeartbeatReply, error) {
	var reply agentproto.HeartbeatReply
	if err := h.Check(); err != nil {
		return reply, err
	}
	v, err := s.Server(ctx, server)
	if err != nil {
		return reply, err
	}
	same := false
	if len(h.Evidence) == 0 && h.BootID == v.BootID && shared(h) == v.Shared && s.Now().Sub(v.AgentSeen) < s.seen {
		if same, err = s.devicesUnchanged(ctx, v, h.Devices); err != nil {
			return reply, err
		}
	}
	if !same {
		if err := s.Write(ctx, func(tx *Tx) error { return tx.heartbeat(server, h) }); err != nil {
			return reply, err
		}
	}
	for _, e := range h.Evidence {
		reply.Acknowledged = append(reply.Acknowledged, e.ID)
	}
	if len(h.Running) > 0 {
		var open []string
		if err := s.read(ctx).Raw("SELECT id FROM tasks WHERE server = ? AND id IN ? AND ended = 0", v.ID, h.Running).Scan(&open).Error; err != nil {
			return reply, err
		}
		is := map[string]bool{}
		for _, id := range open {
			is[id] = true
		}
		for _, id := range h.Running {
			if !is[id] {
				reply.Unknown = append(reply.Unknown, id)
			}
		}
	}
	return reply, nil
}

// devicesUnchanged is the usual case: the same devices in the same state as the inventory says.
func (s *Store) devicesUnchanged(ctx context.Context, v schema.Server, devices []agentproto.Device) (bool, error) {
	if devices == nil {
		return true, nil
	}
	known, err := s.Accelerators(ctx, AcceleratorFilter{Server: v.ID})
	if err != nil {
		return false, err
	}
	byIdentity := map[string]schema.Accelerator{}
	for _, a := range known {
		byIdentity[a.Identity] = a
	}
	for _, d := range devices {
		a, ok := byIdentity[schema.IdentityOf(d.Vendor, d.Serial, d.UUID, d.PCI, v.ID)]
		if !ok || d.Error != "" || a.Health == schema.HealthAbsent || a.Health == schema.HealthUnknown && a.InstalledAt != 0 || a.PCI != d.PCI || a.Slot != d.Slot || a.Index != d.Index || a.Firmware != d.Firmware || a.Model != d.Model {
			return false, nil
		}
		delete(byIdentity, a.Identity)
	}
	for _, a := range byIdentity {
		if a.Health != schema.HealthAbsent {
			return false, nil
		}
	}
	return true, nil
}

func (tx *Tx) heartbeat(server string, h agentproto.Heartbeat) error {
	v, err := tx.server(server)
	if err != nil {
		return err
	}
	if h.Devices != nil {
		if err := tx.recordDevices(v, h.Devices); err != nil {
			return err
		}
	}
	for _, e := range h.Evidence {
		f := schema.Fault{Source: "agent", Kind: e.Kind, Code: e.Code, Part: e.Part, Value: e.Value, Severity: e.Severity, Text: strings.ToValidUTF8(e.Text[:min(len(e.Text), agentproto.MaxText)], ""), At: e.At, Dedupe: "agent/" + v.ID + "/" + e.ID}
		if !f.Severity.Valid() { // of an agent that is newer: it keeps its evidence until it is taken
			f.Severity = schema.SeverityWarning
		}
		if e.Device != "" {
			if err := tx.db.Raw("SELECT id FROM accelerators WHERE server = ? AND removed_at = 0 AND (serial = ? OR uuid = ? OR pci = ?) LIMIT 1", v.ID, e.Device, e.Device, e.Device).Scan(&f.Accelerator).Error; err != nil {
				return err
			}
		}
		tell := tx.reportFault
		if e.Clear {
			tell = tx.clearFaults
		}
		if err := tell(v, f); err != nil {
			return err
		}
	}
	if h.BootID != v.BootID {
		v.BootID = h.BootID
		tx.Emit(schema.Event{Kind: schema.EventServerAgent, Subject: v.ID, Server: v.ID}, map[string]any{"boot_id": h.BootID})
	}
	if why := shared(h); why != v.Shared {
		v.Shared = why
		tx.Emit(schema.Event{Kind: schema.EventServerAgent, Subject: v.ID, Server: v.ID}, map[string]any{"boot_id": h.BootID, "shared": why})
	}
	v.AgentSeen = tx.now
	return tx.saveServer(&v)
}

// shared is why an agent does not keep jobs apart. One that says nothing of it is of a version that didn't.
func shared(h agentproto.Heartbeat) string {
	switch {
	case h.Apart:
		return ""
	case h.Shared != "":
		return h.Shared
	}
	return "its agent does not say that it keeps them apart: upgrade it"
}
