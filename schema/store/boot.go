package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"gpupool/schema"
)

// HashToken is how every token is kept: hex SHA-256. Tokens are 32 random bytes, so no salt or stretching is needed.
func HashToken(token string) string {
	h := sha256.Sum256([]byte(token))
	return hex.EncodeToString(h[:])
}

// Arm lets the server's next network boot install it, under this attempt only, until ttl has passed. At most limit
// servers of a site are armed at a time (0 = no limit): beyond it the error is CodeLimited, and the caller comes again.
// Arming again renews the time, and lets a disk that was written be written again.
func (s *Store) Arm(ctx context.Context, server string, attempt int, ttl time.Duration, limit int) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if err := tx.mayDestroy(v, attempt); err != nil {
			return err
		}
		if err := tx.exclusive("armed at " + v.Site); err != nil {
			return err
		}
		var others int
		if err := tx.db.Raw("SELECT count(*) FROM armed a JOIN servers s ON s.id = a.server WHERE s.site = ? AND a.server <> ? AND a.expires_at > ?", v.Site, v.ID, tx.now).Scan(&others).Error; err != nil {
			return err
		}
		if limit > 0 && others >= limit {
			return &schema.Error{Code: schema.CodeLimited, Message: fmt.Sprintf("%d servers of site %s are being installed", others, v.Site), Hint: "it is installed as soon as one of them is done"}
		}
		c, err := tx.installChoice(v)
		if err != nil {
			return err
		}
		_, err = tx.exec("INSERT INTO armed (server, attempt, profile, vals, at, expires_at) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (server) DO UPDATE SET attempt = excluded.attempt, profile = excluded.profile, vals = excluded.vals, at = excluded.at, expires_at = excluded.expires_at, installed_at = 0, failure = '', sanitise = FALSE",
			v.ID, attempt, c.Profile, c.Vals, tx.now, tx.now.Add(ttl))
		return err
	})
}

// Disarm takes Arm back and revokes the attempt's tokens.
func (s *Store) Disarm(ctx context.Context, server string, attempt int) error {
	return s.Write(ctx, func(tx *Tx) error { return tx.disarm(server, attempt) })
}

func (tx *Tx) disarm(server string, attempt int) error {
	if _, err := tx.exec("DELETE FROM armed WHERE server = ? AND attempt = ?", server, attempt); err != nil {
		return err
	}
	_, err := tx.exec("UPDATE boot_tokens SET revoked_at = ? WHERE server = ? AND attempt = ? AND revoked_at = 0 AND used_at = 0", tx.now, server, attempt)
	return err
}

// Booting is a server as its network boot goes by it, all of one moment.
type Booting struct {
	MAC                  string // by which it was asked for; empty otherwise
	ID, Name, Arch, MACs string
	Phase                schema.Phase
	Protected            bool
	Armed                *schema.Armed   // as [Store.Armed], and when it has expired too: who boots late is told so
	Runs                 *schema.Running // as [Store.RunningSystem]
}

// BootingByMAC is the servers that have one of the MACs (lower case, colons), in no order. It is asked for each packet of a
// boot, so it is one statement, for any number of packets.
func (s *Store) BootingByMAC(ctx context.Context, macs ...string) ([]Booting, error) {
	macs = padded(macs)
	if len(macs) == 0 {
		return nil, nil
	}
	return s.booting(ctx, "JOIN server_macs m ON m.server = s.id", "m.mac", "m.mac IN ("+marks(len(macs))+")", asAny(macs)...)
}

// BootingByID is the server of an id or name; none where there is none.
func (s *Store) BootingByID(ctx context.Context, idOrName string) ([]Booting, error) {
	return s.booting(ctx, "", "''", "s.id = ? OR s.name = ?", idOrName, idOrName)
}

// BootingByUUID is the servers that have one of the SMBIOS UUIDs, in lower case; at most two: boards that were made with one
// UUID can't be told apart by it.
func (s *Store) BootingByUUID(ctx context.Context, uuids ...string) ([]Booting, error) {
	uuids = padded(uuids)
	if len(uuids) == 0 {
		return nil, nil
	}
	return s.booting(ctx, "", "''", "s.uuid <> '' AND s.uuid IN ("+marks(len(uuids))+") LIMIT 2", asAny(uuids)...)
}

// booting reads by hand: reflection would cost more than the database.
func (s *Store) booting(ctx context.Context, join, mac, where string, args ...any) ([]Booting, error) {
	before := []any{schema.PhaseOnboarding, schema.PhaseRetiring}
	for _, p := range bootsItsOwn {
		before = append(before, p)
	}
	rows, err := s.read(ctx).Raw(`SELECT `+mac+`, s.id, s.name, s.arch, s.macs, s.phase, s.protected,
		a.attempt, COALESCE(a.profile, ''), COALESCE(a.vals, ''), COALESCE(a.at, 0), COALESCE(a.expires_at, 0), COALESCE(a.installed_at, 0), COALESCE(a.failure, ''), COALESCE(a.sanitise, FALSE), COALESCE(a.overwrite, FALSE),
		r.attempt, COALESCE(r.profile, ''), COALESCE(r.vals, ''), COALESCE(r.at, 0)
		FROM servers s `+join+`
		LEFT JOIN armed a ON a.server = s.id AND a.attempt = s.attempt AND (s.phase = ? AND NOT a.sanitise OR s.phase = ? AND a.sanitise) AND NOT s.protected
		LEFT JOIN running_systems r ON r.server = s.id AND r.attempt = s.attempt AND s.phase IN (`+marks(len(bootsItsOwn))+`)
		WHERE `+where, append(before, args...)...).Rows()
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Booting
	for rows.Next() {
		var b Booting
		var a schema.Armed
		var r schema.Running
		var armed, runs *int
		if err := rows.Scan(&b.MAC, &b.ID, &b.Name, &b.Arch, &b.MACs, &b.Phase, &b.Protected,
			&armed, &a.Profile, &a.Vals, &a.At, &a.ExpiresAt, &a.InstalledAt, &a.Failure, &a.Sanitise, &a.Overwrite,
			&runs, &r.Profile, &r.Vals, &r.At); err != nil {
			return nil, err
		}
		if armed != nil {
			a.Server, a.Attempt = b.ID, *armed
			b.Armed = &a
		}
		if runs != nil {
			r.Server, r.Attempt = b.ID, *runs
			b.Runs = &r
		}
		out = append(out, b)
	}
	return out, rows.Err()
}

func asAny(values []string) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = v
	}
	return out
}

// Armed is the live arming of a server, if any. It holds only while the server is onboarding under that attempt.
func (s *Store) Armed(ctx context.Context, server string) (schema.Armed, bool, error) {
	var a schema.Armed
	err := s.read(ctx).Raw(`SELECT a.* FROM armed a JOIN servers s ON s.id = a.server AND s.attempt = a.attempt
		WHERE a.server = ? AND a.expires_at > ? AND (s.phase = ? AND NOT a.sanitise OR s.phase = ? AND a.sanitise) AND NOT s.protected`, server, s.Now(), schema.PhaseOnboarding, schema.PhaseRetiring).Scan(&a).Error
	return a, a.Server != "", err
}

// ReportInstall keeps what the installer of an armed attempt tells. Progress shows at the running step. Once it is done,
// the arming lets no disk be written any more; a failure ends the wait for the phone-home.
func (s *Store) ReportInstall(ctx context.Context, server string, attempt int, r schema.InstallReport) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if again, err := tx.runs(v, attempt); err != nil {
			return err
		} else if again { // a system that lives in memory is brought again
			return tx.reportAgain(v, r)
		}
		var a schema.Armed
		if err := tx.lock(&a, "server = ? AND attempt = ? AND expires_at > ?", v.ID, attempt, tx.now); err != nil {
			if isNoRows(err) {
				return schema.Stale(fmt.Sprintf("server %s is not armed for attempt %d", v.ID, attempt))
			}
			return err
		}
		if err := underway(v, attempt); err != nil {
			return err
		}
		doing := "installing: "
		if a.Sanitise {
			doing = ""
			if r.State == schema.InstallDone && a.InstalledAt == 0 { // told once more where its answer was lost
				if err := tx.sanitised(v, attempt, r.Drives); err != nil {
					return err
				}
			}
		}
		switch r.State {
		case schema.InstallRunning:
			if a.InstalledAt != 0 { // an older report that was late
				return nil
			}
			return tx.stepWaits(v, doing+r.Text)
		case schema.InstallDone:
			_, err = tx.exec("UPDATE armed SET installed_at = ?, failure = '' WHERE server = ?", tx.now, v.ID)
		case schema.InstallFailed:
			_, err = tx.exec("UPDATE armed SET failure = ? WHERE server = ?", r.Text, v.ID)
		default:
			return schema.Invalid("state", string(r.State), "running, installed or failed")
		}
		if err != nil {
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventServerInstall, Subject: v.ID, Server: v.ID}, map[string]any{"attempt": attempt, "state": r.State, "text": r.Text})
		return tx.stepWaits(v, doing+r.Text)
	})
}

// reportAgain keeps what the installer of a server tells that brings its system into memory again, where it is more than
// progress.
func (tx *Tx) reportAgain(v schema.Server, r schema.InstallReport) error {
	switch r.State {
	case schema.InstallRunning:
	case schema.InstallDone, schema.InstallFailed:
		tx.Emit(schema.Event{Kind: schema.EventServerInstall, Subject: v.ID, Server: v.ID}, map[string]any{"attempt": v.Attempt, "state": r.State, "text": r.Text, "again": true})
	default:
		return schema.Invalid("state", string(r.State), "running, installed or failed")
	}
	return nil
}

// RunningSystem is the system that a server has, if any: that of its present attempt, in a phase in which it may boot it.
func (s *Store) RunningSystem(ctx context.Context, server string) (schema.Running, bool, error) {
	var r schema.Running
	err := s.read(ctx).Raw(`SELECT r.* FROM running_systems r JOIN servers s ON s.id = r.server AND s.attempt = r.attempt
		WHERE r.server = ? AND s.phase IN ?`, server, bootsItsOwn).Scan(&r).Error
	return r, r.Server != "", err
}

// bootsItsOwn are the phases in which a server boots the system that it has. In all others it is new, or on its way out.
var bootsItsOwn = []schema.Phase{schema.PhaseOnboarding, schema.PhaseAvailable, schema.PhaseDraining, schema.PhaseRepairing}

// runs reports whether the attempt's system is the one that the server has and may boot.
func (tx *Tx) runs(v schema.Server, attempt int) (bool, error) {
	if v.Attempt != attempt || !slices.Contains(bootsItsOwn, v.Phase) {
		return false, nil
	}
	var n int64
	err := tx.db.Raw("SELECT count(*) FROM running_systems WHERE server = ? AND attempt = ?", v.ID, attempt).Scan(&n).Error
	return n > 0, err
}

// MintBootToken keeps the hash of a fresh token; an earlier one of the same server and purpose is revoked. The server
// must be armed for the attempt at this moment, or run its system: the caller sees to it that it only gives that again
// which lives in memory.
func (s *Store) MintBootToken(ctx context.Context, server string, attempt int, purpose schema.BootPurpose, hash string, ttl time.Duration) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		again, err := tx.runs(v, attempt)
		if err != nil {
			return err
		}
		if !again {
			if err := tx.armedFor(v, attempt); err != nil {
				return err
			}
		}
		if _, err := tx.exec("UPDATE boot_tokens SET revoked_at = ? WHERE server = ? AND purpose = ? AND revoked_at = 0 AND used_at = 0", tx.now, v.ID, purpose); err != nil {
			return err
		}
		until := tx.now.Add(ttl)
		if v.Phase == schema.PhaseRetiring { // a large disk takes longer than any install: as long as the arming itself
			if purpose == schema.PurposePhoneHome {
				return schema.Stale("server " + v.Name + " is retiring: nothing phones home from it")
			}
			if err := tx.db.Raw("SELECT expires_at FROM armed WHERE server = ?", v.ID).Scan(&until).Error; err != nil {
				return err
			}
		}
		return tx.db.Create(&schema.BootToken{Hash: hash, Server: v.ID, Attempt: attempt, Purpose: purpose, MintedAt: tx.now, ExpiresAt: until}).Error
	})
}

// armedFor refuses where the attempt has not armed the server, or may not wipe it now.
func (tx *Tx) armedFor(v schema.Server, attempt int) error {
	var a schema.Armed
	if err := tx.lock(&a, "server = ? AND attempt = ? AND expires_at > ?", v.ID, attempt, tx.now); err != nil {
		if isNoRows(err) {
			return schema.Stale(fmt.Sprintf("server %s is not armed for attempt %d", v.ID, attempt))
		}
		return err
	}
	if err := underway(v, attempt); err != nil {
		return err
	}
	return tx.destructible(v)
}

// BootToken is a token that is good now for purpose: known, not expired, not revoked, of the server's live attempt.
// use marks it used, and a used one is refused. Every refusal is the same CodeForbidden error.
func (s *Store) BootToken(ctx context.Context, hash string, purpose schema.BootPurpose, use bool) (schema.BootToken, error) {
	var t schema.BootToken
	err := s.Write(ctx, func(tx *Tx) error {
		var err error
		t, err = tx.bootToken(hash, purpose, use)
		return err
	})
	return t, err
}

// errBootToken says the same whatever is wrong with a token: who guesses learns nothing.
func errBootToken() error {
	return &schema.Error{Code: schema.CodeForbidden, Message: "the boot token is not good (unknown, used, expired, or of an attempt that has passed)", Hint: "start the server's onboarding again"}
}

func (tx *Tx) bootToken(hash string, purpose schema.BootPurpose, use bool) (schema.BootToken, error) {
	refused := errBootToken()
	var t schema.BootToken
	if err := tx.lock(&t, "hash = ? AND purpose = ?", hash, purpose); err != nil {
		if isNoRows(err) {
			return t, refused
		}
		return t, err
	}
	if t.UsedAt != 0 || t.RevokedAt != 0 || t.ExpiresAt <= tx.now {
		return t, refused
	}
	v, err := tx.server(t.Server)
	if err != nil {
		return t, err
	}
	again, err := tx.runs(v, t.Attempt)
	if err != nil {
		return t, err
	}
	good := underway // a script's; nobody enrols an agent on a server that is on its way out
	if purpose == schema.PurposePhoneHome {
		good = current
	}
	if !again && good(v, t.Attempt) != nil {
		return t, refused
	}
	if use {
		t.UsedAt = tx.now
		if _, err := tx.exec("UPDATE boot_tokens SET used_at = ? WHERE hash = ?", tx.now, hash); err != nil {
			return t, err
		}
	}
	return t, nil
}

// BootGrant is what a live token stands for, whatever its purpose; it changes nothing. Every refusal is the same
// CodeForbidden error.
func (s *Store) BootGrant(ctx context.Context, hash string) (schema.BootToken, error) {
	var t schema.BootToken
	err := s.read(ctx).Raw(`SELECT t.* FROM boot_tokens t JOIN servers s ON s.id = t.server AND s.attempt = t.attempt
		WHERE t.hash = ? AND t.used_at = 0 AND t.revoked_at = 0 AND t.expires_at > ?
		AND (s.phase IN ? OR s.phase IN ? AND EXISTS (SELECT 1 FROM running_systems r WHERE r.server = s.id AND r.attempt = s.attempt))`, hash, s.Now(), []schema.Phase{schema.PhaseOnboarding, schema.PhaseRetiring}, bootsItsOwn).Scan(&t).Error
	if err == nil && t.Hash == "" {
		err = errBootToken()
	}
	return t, err
}

// UseBootToken marks item as fetched with a live script token. Of any number of calls with one token and item exactly
// one succeeds; the others get a CodeConflict error.
func (s *Store) UseBootToken(ctx context.Context, hash, item string) (schema.BootToken, error) {
	var t schema.BootToken
	err := s.Write(ctx, func(tx *Tx) error {
		var err error
		if t, err = tx.bootToken(hash, schema.PurposeScript, false); err != nil {
			return err
		}
		n, err := tx.exec("INSERT INTO boot_token_uses (hash, item, at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", hash, item, tx.now)
		if err == nil && n == 0 {
			err = schema.Conflict(fmt.Sprintf("%s was fetched with this boot token already", item), "each secret is given once")
		}
		return err
	})
	return t, err
}

// RecordBoots keeps evidence of boots as events, in the order given; at[i] is when evidence[i] was seen.
func (s *Store) RecordBoots(ctx context.Context, at []time.Time, evidence []schema.BootEvidence) error {
	return s.Write(ctx, func(tx *Tx) error {
		for i, e := range evidence {
			subject := e.Server
			if subject == "" {
				subject = e.MAC
			}
			tx.Emit(schema.Event{Kind: schema.EventBoot, Subject: subject, Server: e.Server}, e)
			if i < len(at) {
				tx.events[len(tx.events)-1].At = schema.At(at[i])
			}
		}
		return nil
	})
}

// BootEvidence is what was seen of a server's boots since a moment, oldest first.
func (s *Store) BootEvidence(ctx context.Context, server string, since schema.Instant) ([]schema.Event, error) {
	var out []schema.Event
	return out, s.read(ctx).Where("server = ? AND kind = ? AND at >= ?", server, schema.EventBoot, since).Order("seq").Limit(2000).Find(&out).Error
}
