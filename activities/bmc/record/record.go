// Package record keeps in the database what all processes of a site know together of a BMC: its session, its login budget,
// the TLS key trusted, and its credential.
//
// Invariant: a session's token and a password are sealed before they reach the database; what two processes change at once
// is changed one after the other. Not here: what the state means (package bmc), the rotation (package credential).
package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/credential"
	"gpupool/schema"
	"gpupool/schema/secret"
	"gpupool/schema/store"
)

// Shared is a bmc.Shared over the database.
type Shared struct {
	store *store.Store
	keys  *secret.Ring
}

var _ bmc.Shared = (*Shared)(nil)

// NewShared makes one.
func NewShared(s *store.Store, keys *secret.Ring) *Shared { return &Shared{s, keys} }

// sealed is the part of a state that nobody may read in the database.
type sealed struct {
	Token      string                 `json:"token,omitempty"`
	SessionURI string                 `json:"session_uri,omitempty"`
	Revision   string                 `json:"revision,omitempty"` // a hash of a password
	Refused    map[string]bmc.Refusal `json:"refused,omitempty"`
	Trying     string                 `json:"trying,omitempty"`
	TryingTill time.Time              `json:"trying_till,omitzero"`
	DownTill   time.Time              `json:"down_till,omitzero"`
	DownWhy    string                 `json:"down_why,omitempty"`
	Resets     map[string][]time.Time `json:"resets,omitempty"`
	Wishes     map[string]bmc.Wish    `json:"wishes,omitempty"`
}

// place binds the sealed state to its BMC.
func place(address string) string { return "bmc-state/" + address }

// Update is bmc.Shared's.
func (s *Shared) Update(ctx context.Context, address string, change func(*bmc.State) error) error {
	return s.store.UpdateBMCState(ctx, address, func(row *store.BMCState) error {
		var in sealed
		if row.Sealed != "" {
			plain, err := s.keys.Open(row.KeyID, row.Sealed, place(address))
			if err != nil {
				// A key that is gone costs a session, which the BMC ends by itself, and the count of refused logins.
				in = sealed{}
			} else if err := json.Unmarshal(plain, &in); err != nil {
				return fmt.Errorf("shared state of bmc %s: %w", address, err)
			}
		}
		before, err := json.Marshal(in)
		if err != nil {
			return err
		}
		st := bmc.State{Token: bmc.Secret(in.Token), SessionURI: in.SessionURI, Revision: in.Revision, Refused: maps.Clone(in.Refused), Trying: in.Trying, TryingTill: in.TryingTill,
			Pin: row.TLSKey, Offered: row.OfferedKey, DownTill: in.DownTill, DownWhy: in.DownWhy, Resets: maps.Clone(in.Resets), Wishes: in.Wishes}
		if err := change(&st); err != nil {
			return err
		}
		row.TLSKey, row.OfferedKey = st.Pin, st.Offered
		after, err := json.Marshal(sealed{Token: string(st.Token), SessionURI: st.SessionURI, Revision: st.Revision, Refused: st.Refused, Trying: st.Trying, TryingTill: st.TryingTill,
			DownTill: st.DownTill, DownWhy: st.DownWhy, Resets: st.Resets, Wishes: st.Wishes})
		if err != nil || string(after) == string(before) {
			return err
		}
		row.KeyID, row.Sealed, err = s.keys.Seal(after, place(address))
		return err
	})
}

// Rows is a credential.Rows over the database.
type Rows struct{ Store *store.Store }

var _ credential.Rows = Rows{}

// Get reads a server's row.
func (r Rows) Get(ctx context.Context, server string) (credential.Row, error) {
	l, err := r.Store.BMCLogin(ctx, server)
	return credential.Row{Holder: l.Server, User: l.Username, KeyID: l.KeyID, Sealed: l.Sealed, PendingKeyID: l.PendingKeyID, Pending: l.Pending, Version: l.Version}, err
}

// Put writes it; credential.ErrChanged where another writer was faster. A row whose pending password became the one that
// holds is a rotation that came through.
func (r Rows) Put(ctx context.Context, server string, row credential.Row) error {
	was, err := r.Store.BMCLogin(ctx, server)
	if err != nil {
		return err
	}
	rotated := was.Pending != "" && row.Pending == "" && was.Sealed != row.Sealed
	was.Username, was.KeyID, was.Sealed, was.PendingKeyID, was.Pending, was.Version = row.User, row.KeyID, row.Sealed, row.PendingKeyID, row.Pending, row.Version
	err = r.Store.PutBMCLogin(ctx, was, rotated, "credential")
	if schema.Is(err, schema.CodeStale) {
		return errors.Join(credential.ErrChanged, err)
	}
	return err
}
