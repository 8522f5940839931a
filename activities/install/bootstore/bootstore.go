// Package bootstore connects the boot service's small interfaces to the record: machines, boot tokens, evidence, leases.
//
// Invariant: what is read is read from the database after it was asked for, so that an arming is seen by the very next packet; a token
// leaves this package once, when it is minted, and only its hash is kept. Not here: what a document holds
// (activities/install), packets and scripts (pxe).
package bootstore

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"time"

	"gpupool/pxe/batch"
	"gpupool/pxe/boot"
	"gpupool/pxe/lease"
	"gpupool/schema"
	"gpupool/schema/store"
)

// Store is boot.Inventory, boot.Tokens, boot.Recorder, boot.Reports and, by Leases, lease.Store.
type Store struct {
	db   *store.Store
	macs batch.Group[string, *store.Booting]
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
	b := &Store{db: s, ttl: ttl}
	b.macs.Call = b.byMACs
	return b
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

// ByMAC finds the server that has the MAC, by one query together with others that are asked for at the same time.
func (s *Store) ByMAC(ctx context.Context, mac string) (boot.Machine, bool, error) {
	found, err := s.macs.Do(ctx, mac)
	if err != nil || found == nil {
		return boot.Machine{}, false, err
	}
	return machine(*found), true, nil
}

// byMACs answers for each MAC; nil where no server has it.
func (s *Store) byMACs(ctx context.Context, macs []string) ([]*store.Booting, error) {
	all, err := s.db.BootingByMAC(ctx, macs...)
	if err != nil {
		return nil, err
	}
	found := make([]*store.Booting, len(macs))
	for i, mac := range macs {
		if at := slices.IndexFunc(all, func(b store.Booting) bool { return b.MAC == mac }); at >= 0 {
			found[i] = &all[at]
		}
	}
	return found, nil
}

// ByID finds a server by its id.
func (s *Store) ByID(ctx context.Context, id string) (boot.Machine, bool, error) {
	all, err := s.db.BootingByID(ctx, id)
	if err != nil || len(all) == 0 {
		return boot.Machine{}, false, err
	}
	return machine(all[0]), true, nil
}

// ByUUID finds the one server that has one of the UUIDs, and its first MAC.
func (s *Store) ByUUID(ctx context.Context, uuids ...string) (boot.Machine, string, bool, error) {
	all, err := s.db.BootingByUUID(ctx, uuids...)
	if err != nil || len(all) != 1 {
		return boot.Machine{}, "", false, err
	}
	mac, _, _ := strings.Cut(all[0].MACs, ",")
	return machine(all[0]), mac, mac != "", nil
}

// MACs is every MAC of the inventory.
func (s *Store) MACs(ctx context.Context) ([]string, error) { return s.db.ServerMACs(ctx) }

func machine(b store.Booting) boot.Machine {
	return boot.Machine{ID: b.ID, Name: b.Name, Phase: b.Phase, Protected: b.Protected, Arch: b.Arch, Armed: b.Armed, Runs: b.Runs}
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
