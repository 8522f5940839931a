// Package bootstore connects the boot service's small interfaces to the record: machines, boot tokens, evidence, leases.
//
// Invariant: what is read is read now, from the database, so that an arming is seen by the very next packet; a token
// leaves this package once, when it is minted, and only its hash is kept. Not here: what a document holds
// (activities/install), packets and scripts (pxe).
package bootstore

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"gpupool/pxe/boot"
	"gpupool/pxe/lease"
	"gpupool/schema"
	"gpupool/schema/store"
)

// Store is boot.Inventory, boot.Tokens, boot.Recorder, boot.Reports and, by Leases, lease.Store.
type Store struct {
	db *store.Store
	// ttl bounds a token's life beside its arming; it must outlast an install.
	ttl time.Duration
}

// DefaultTokenTTL is longer than an install takes; a token ends earlier with its attempt.
const DefaultTokenTTL = 2 * time.Hour

// New connects to a record. ttl of 0 is DefaultTokenTTL.
func New(s *store.Store, ttl time.Duration) *Store {
	if ttl <= 0 {
		ttl = DefaultTokenTTL
	}
	return &Store{db: s, ttl: ttl}
}

var (
	_ boot.Inventory = (*Store)(nil)
	_ boot.Lister    = (*Store)(nil)
	_ boot.ByUUID    = (*Store)(nil)
	_ boot.Tokens    = (*Store)(nil)
	_ boot.Recorder  = (*Store)(nil)
	_ boot.Reports   = (*Store)(nil)
	_ lease.Store    = Leases{}
)

// ByMAC finds the server that has the MAC.
func (s *Store) ByMAC(ctx context.Context, mac string) (boot.Machine, bool, error) {
	v, err := s.db.ServerByMAC(ctx, mac)
	return s.machine(ctx, v, err)
}

// ByID finds a server by its id.
func (s *Store) ByID(ctx context.Context, id string) (boot.Machine, bool, error) {
	v, err := s.db.Server(ctx, id)
	return s.machine(ctx, v, err)
}

// ByUUID finds the one server that has one of the UUIDs, and its first MAC.
func (s *Store) ByUUID(ctx context.Context, uuids ...string) (boot.Machine, string, bool, error) {
	v, err := s.db.ServerByUUID(ctx, uuids...)
	m, found, err := s.machine(ctx, v, err)
	mac, _, _ := strings.Cut(v.MACs, ",")
	return m, mac, found && mac != "", err
}

// MACs is every MAC of the inventory.
func (s *Store) MACs(ctx context.Context) ([]string, error) { return s.db.ServerMACs(ctx) }

func (s *Store) machine(ctx context.Context, v schema.Server, err error) (boot.Machine, bool, error) {
	if schema.Is(err, schema.CodeNotFound) {
		return boot.Machine{}, false, nil
	}
	if err != nil {
		return boot.Machine{}, false, err
	}
	m := boot.Machine{ID: v.ID, Name: v.Name, Phase: v.Phase, Protected: v.Protected, Arch: v.Arch}
	runs, ok, err := s.db.RunningSystem(ctx, v.ID)
	if err != nil {
		return boot.Machine{}, false, err
	}
	if ok {
		m.Runs = &runs
	}
	if v.Phase != schema.PhaseOnboarding {
		return m, true, nil // no other phase is ever armed
	}
	armed, ok, err := s.db.Armed(ctx, v.ID)
	if ok {
		m.Armed = &armed
	}
	return m, err == nil, err
}

// Mint makes a token of 32 random bytes and keeps its hash.
func (s *Store) Mint(ctx context.Context, server string, attempt int, purpose schema.BootPurpose) (string, error) {
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return "", err
	}
	token := base64.RawURLEncoding.EncodeToString(raw)
	if err := s.db.MintBootToken(ctx, server, attempt, purpose, store.HashToken(token), s.ttl); err != nil {
		return "", err
	}
	return token, nil
}

// Check says what a token stands for.
func (s *Store) Check(ctx context.Context, token string) (boot.Grant, error) {
	return grant(s.db.BootGrant(ctx, store.HashToken(token)))
}

// Use is Check, and marks item as fetched.
func (s *Store) Use(ctx context.Context, token, item string) (boot.Grant, error) {
	return grant(s.db.UseBootToken(ctx, store.HashToken(token), item))
}

func grant(t schema.BootToken, err error) (boot.Grant, error) {
	switch {
	case schema.Is(err, schema.CodeForbidden):
		return boot.Grant{}, errors.Join(boot.ErrToken, err)
	case schema.Is(err, schema.CodeConflict):
		return boot.Grant{}, errors.Join(boot.ErrTokenUsed, err)
	}
	return boot.Grant{Server: t.Server, Attempt: t.Attempt, Purpose: t.Purpose}, err
}

// ReportInstall keeps what an installer tells of its attempt.
func (s *Store) ReportInstall(ctx context.Context, server string, attempt int, r schema.InstallReport) error {
	return s.db.ReportInstall(ctx, server, attempt, r)
}

// Record keeps evidence as events.
func (s *Store) Record(ctx context.Context, at []time.Time, evidence []schema.BootEvidence) error {
	if len(evidence) == 0 {
		return nil
	}
	if err := s.db.RecordBoots(ctx, at, evidence); err != nil {
		return err
	}
	if found := bmcsAmong(evidence); found != nil {
		return s.db.FoundBMCs(ctx, found)
	}
	return nil
}

// Leases is lease.Store in the record.
type Leases struct{ DB *store.Store }

// Find implements lease.Store.
func (l Leases) Find(ctx context.Context, keys []lease.Key) ([]schema.Lease, error) {
	var macs, ips []string
	for _, k := range keys {
		if k.MAC != "" {
			macs = append(macs, k.MAC)
		}
		ips = append(ips, k.IPs...)
	}
	return l.DB.FindLeases(ctx, macs, ips)
}

// Commit implements lease.Store: it returns once the database has the batch.
func (l Leases) Commit(ctx context.Context, now time.Time, batch []schema.Lease) ([]error, error) {
	taken, err := l.DB.CommitLeases(ctx, now, lease.Skew, batch)
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(batch))
	for i, t := range taken {
		if t {
			errs[i] = lease.ErrTaken
		}
	}
	return errs, nil
}

// List implements lease.Store.
func (l Leases) List(ctx context.Context, subnet string) ([]schema.Lease, error) {
	return l.DB.Leases(ctx, subnet)
}
