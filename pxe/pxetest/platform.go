// Package pxetest is a small platform around the boot service, in memory: an inventory, tokens and a record of the
// evidence, for tests and for trying the service out by hand. They keep what the interfaces in pxe/boot promise.
//
// Not here: anything a production process should use. Nothing in it outlives the process.
package pxetest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"gpupool/pxe/boot"
	"gpupool/schema"
)

// Platform implements boot.Inventory, boot.Tokens and boot.Recorder.
type Platform struct {
	Now func() time.Time

	mu       sync.Mutex
	machines map[string]boot.Machine // by id
	macs     map[string]string       // to the id
	uuids    map[string]string       // to the id
	tokens   map[string]*token       // by hash
	evidence []schema.BootEvidence
	more     chan struct{} // closed and renewed whenever evidence comes
}

type token struct {
	boot.Grant
	expires time.Time
	revoked bool
	used    map[string]bool
}

// TokenTTL is how long a minted token lives.
const TokenTTL = time.Hour

// New returns an empty platform.
func New() *Platform {
	return &Platform{Now: time.Now, machines: map[string]boot.Machine{}, macs: map[string]string{}, uuids: map[string]string{}, tokens: map[string]*token{}, more: make(chan struct{})}
}

// Put adds or replaces a machine and its boot interfaces.
func (p *Platform) Put(m boot.Machine, macs ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.machines[m.ID] = m
	for _, mac := range macs {
		p.macs[mac] = m.ID
	}
}

// Arm puts a machine into onboarding, armed for an attempt.
func (p *Platform) Arm(id string, attempt int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.machines[id]
	m.Phase = schema.PhaseOnboarding
	m.Armed = &schema.Armed{Server: id, Attempt: attempt, Profile: "image", At: schema.At(p.Now()), ExpiresAt: schema.At(p.Now().Add(time.Hour))}
	p.machines[id] = m
}

// Disarm ends a machine's attempt and revokes its tokens.
func (p *Platform) Disarm(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.machines[id]
	m.Armed = nil
	p.machines[id] = m
	for _, t := range p.tokens {
		t.revoked = t.revoked || t.Server == id
	}
}

// ByMAC implements boot.Inventory.
func (p *Platform) ByMAC(ctx context.Context, mac string) (boot.Machine, bool, error) {
	p.mu.Lock()
	id, ok := p.macs[mac]
	p.mu.Unlock()
	if !ok {
		return boot.Machine{}, false, nil
	}
	return p.ByID(ctx, id)
}

// MACs implements boot.Lister.
func (p *Platform) MACs(context.Context) ([]string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.macs)), nil
}

// SetUUID gives a machine its SMBIOS UUID.
func (p *Platform) SetUUID(id, uuid string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.uuids[uuid] = id
}

// ByUUID implements boot.ByUUID.
func (p *Platform) ByUUID(_ context.Context, uuids ...string) (boot.Machine, string, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found := map[string]bool{}
	for _, u := range uuids {
		if id, ok := p.uuids[u]; ok {
			found[id] = true
		}
	}
	for id := range found {
		for _, mac := range slices.Sorted(maps.Keys(p.macs)) {
			if p.macs[mac] == id {
				return p.machines[id], mac, len(found) == 1, nil
			}
		}
	}
	return boot.Machine{}, "", false, nil
}

// ByID implements boot.Inventory.
func (p *Platform) ByID(_ context.Context, id string) (boot.Machine, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.machines[id]
	if m.Armed != nil {
		a := *m.Armed
		m.Armed = &a
	}
	return m, ok, nil
}

// Mint implements boot.Tokens.
func (p *Platform) Mint(_ context.Context, server string, attempt int, purpose schema.BootPurpose) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.machines[server]
	if (m.Armed == nil || m.Armed.Attempt != attempt) && (m.Runs == nil || m.Runs.Attempt != attempt) {
		return "", fmt.Errorf("attempt %d of %s is not armed", attempt, server)
	}
	g := boot.Grant{Server: server, Attempt: attempt, Purpose: purpose}
	for _, t := range p.tokens {
		t.revoked = t.revoked || t.Grant == g
	}
	b := make([]byte, 32)
	rand.Read(b)
	plain := base64.RawURLEncoding.EncodeToString(b)
	p.tokens[hash(plain)] = &token{Grant: g, expires: p.Now().Add(TokenTTL), used: map[string]bool{}}
	return plain, nil
}

// Check implements boot.Tokens.
func (p *Platform) Check(_ context.Context, plain string) (boot.Grant, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, err := p.live(plain)
	if err != nil {
		return boot.Grant{}, err
	}
	return t.Grant, nil
}

// Use implements boot.Tokens.
func (p *Platform) Use(_ context.Context, plain, item string) (boot.Grant, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, err := p.live(plain)
	if err != nil {
		return boot.Grant{}, err
	}
	if t.used[item] {
		return boot.Grant{}, boot.ErrTokenUsed
	}
	t.used[item] = true
	return t.Grant, nil
}

func (p *Platform) live(plain string) (*token, error) {
	t := p.tokens[hash(plain)]
	if t == nil || t.revoked || !p.Now().Before(t.expires) {
		return nil, boot.ErrToken
	}
	return t, nil
}

func hash(plain string) string {
	h := sha256.Sum256([]byte(plain))
	return hex.EncodeToString(h[:])
}

// Record implements boot.Recorder.
func (p *Platform) Record(_ context.Context, _ []time.Time, e []schema.BootEvidence) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.evidence = append(p.evidence, e...)
	close(p.more)
	p.more = make(chan struct{})
	return nil
}

// Evidence is what was recorded so far.
func (p *Platform) Evidence() []schema.BootEvidence {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.evidence)
}

// Wait returns the first evidence that fits, waiting for it until ctx ends.
func (p *Platform) Wait(ctx context.Context, fits func(schema.BootEvidence) bool) (schema.BootEvidence, error) {
	for {
		p.mu.Lock()
		all, more := p.evidence, p.more
		p.mu.Unlock()
		for _, e := range all {
			if fits(e) {
				return e, nil
			}
		}
		select {
		case <-more:
		case <-ctx.Done():
			return schema.BootEvidence{}, fmt.Errorf("no such evidence among %d: %w", len(all), ctx.Err())
		}
	}
}
