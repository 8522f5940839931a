// Package credential keeps BMC passwords: sealed at rest, rotated so that no kill can lock us out.
//
// A rotation writes the new password as pending, sets it at the BMC, proves it by a login, and commits. Whatever is cut
// off in between, either the old or the pending one works: [For] offers both to the login, each is tried once, and
// [Settle] makes the record say which it was.
//
// Invariants: a password is durable before a BMC learns it; the old one is kept until the new one is proven; a password
// is in no log, payload, event or error; more than one refused login for each of the two is never caused.
//
// Not here: the database (see [Rows]), when to rotate (a schedule's business).
package credential

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"

	"gpupool/activities/bmc"
	"gpupool/schema/secret"
)

// Row is one server's credential as a database keeps it. Pending fields are empty outside of a rotation.
type Row struct {
	Holder                string // the server that the passwords are sealed for, where a BMC serves several; "" = the one asked for
	User                  string
	KeyID, Sealed         string
	PendingKeyID, Pending string
	Version               int64 // rises with every write
}

func (r Row) holder(server string) string { return cmp.Or(r.Holder, server) }

// Rows is where rows are kept. Put fails with [ErrChanged] when the row isn't at row.Version any more; else it is durable
// when Put returns, at row.Version+1.
type Rows interface {
	Get(ctx context.Context, server string) (Row, error)
	Put(ctx context.Context, server string, row Row) error
}

// ErrChanged says that another writer was faster.
var ErrChanged = errors.New("the bmc credential was changed meanwhile")

// Store seals and opens the rows.
type Store struct {
	rows Rows
	keys *secret.Ring
}

// NewStore makes a store over rows, sealed with keys.
func NewStore(rows Rows, keys *secret.Ring) *Store { return &Store{rows: rows, keys: keys} }

// pendingContext binds a pending password to its place: a sealed text can't be moved to another server or column.
func pendingContext(server string) string { return server + "/pending" }

// Set keeps a credential that an operator gave. A rotation under way is forgotten.
func (s *Store) Set(ctx context.Context, server, user string, password bmc.Secret) error {
	row, err := s.rows.Get(ctx, server)
	if err != nil {
		return fmt.Errorf("set bmc credential of %s: %w", server, err)
	}
	if row.KeyID, row.Sealed, err = s.keys.Seal([]byte(password), row.holder(server)); err != nil {
		return fmt.Errorf("set bmc credential of %s: %w", server, err)
	}
	row.User, row.PendingKeyID, row.Pending = user, "", ""
	return s.rows.Put(ctx, server, row)
}

// Login opens a server's credential, with the pending password if a rotation was cut off.
func (s *Store) Login(ctx context.Context, server string) (bmc.Login, error) {
	row, err := s.rows.Get(ctx, server)
	if err != nil {
		return bmc.Login{}, fmt.Errorf("bmc credential of %s: %w", server, err)
	}
	return s.open(server, row)
}

func (s *Store) open(server string, row Row) (bmc.Login, error) {
	plain, err := s.keys.Open(row.KeyID, row.Sealed, row.holder(server))
	if err != nil {
		return bmc.Login{}, fmt.Errorf("bmc credential of %s: %w", server, err)
	}
	l := bmc.Login{User: row.User, Password: bmc.Secret(plain)}
	if row.Pending == "" {
		return l, nil
	}
	pending, err := s.keys.Open(row.PendingKeyID, row.Pending, pendingContext(row.holder(server)))
	if err != nil {
		return bmc.Login{}, fmt.Errorf("pending bmc credential of %s: %w", server, err)
	}
	l.Pending = &bmc.Login{User: row.User, Password: bmc.Secret(pending)}
	return l, nil
}

// For is the Credential of a server's BMC: it reads the store at each login, so that a changed secret needs no restart.
func (s *Store) For(server string) bmc.Credential {
	return func(ctx context.Context) (bmc.Login, error) { return s.Login(ctx, server) }
}

// Reseal seals a row under the ring's present key: after a key was added in front. It reports whether there was something
// to do.
func (s *Store) Reseal(ctx context.Context, server string) (bool, error) {
	row, err := s.rows.Get(ctx, server)
	if err != nil {
		return false, fmt.Errorf("reseal bmc credential of %s: %w", server, err)
	}
	if row.KeyID == s.keys.KeyID() && (row.Pending == "" || row.PendingKeyID == s.keys.KeyID()) {
		return false, nil
	}
	l, err := s.open(server, row)
	if err != nil {
		return false, err
	}
	if row.KeyID, row.Sealed, err = s.keys.Seal([]byte(l.Password), row.holder(server)); err != nil {
		return false, err
	}
	if l.Pending != nil {
		if row.PendingKeyID, row.Pending, err = s.keys.Seal([]byte(l.Pending.Password), pendingContext(row.holder(server))); err != nil {
			return false, err
		}
	}
	return true, s.rows.Put(ctx, server, row)
}

// The characters of a generated password: no quote, backslash, space or shell sign, which some web forms and tools break
// on. Each class occurs, as the policies of makers ask.
const (
	lower   = "abcdefghijkmnopqrstuvwxyz"
	upper   = "ABCDEFGHJKLMNPQRSTUVWXYZ"
	figures = "23456789"
	signs   = "-_."
)

// Generate makes a password of length bytes, each of almost 6 bits: more than 90 bits at 16.
func Generate(length int) (bmc.Secret, error) {
	pick := func(from string) (byte, error) {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(from))))
		if err != nil {
			return 0, fmt.Errorf("generate bmc password: %w", err)
		}
		return from[n.Int64()], nil
	}
	for {
		b := make([]byte, length)
		var has [4]bool
		for i := range b {
			c, err := pick(lower + upper + figures + signs)
			if err != nil {
				return "", err
			}
			b[i] = c
			for k, class := range []string{lower, upper, figures, signs} {
				for j := range len(class) {
					has[k] = has[k] || class[j] == c
				}
			}
		}
		if has == [4]bool{true, true, true, true} && b[0] != '-' && b[0] != '.' {
			return bmc.Secret(b), nil
		}
	}
}
