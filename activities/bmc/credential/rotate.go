package credential

import (
	"context"
	"errors"
	"fmt"

	"gpupool/activities/bmc"
)

// Rotate gives a BMC a new password. The client must be one whose credential is For(server) of this store. Called again
// after a kill or an error it first finds out how far the last one came. A factory password that is good for nothing but
// being changed is changed.
func (s *Store) Rotate(ctx context.Context, c bmc.Account, server string) error {
	if err := s.Settle(ctx, c, server); err != nil && !errors.Is(err, bmc.ErrPasswordChange) {
		return fmt.Errorf("rotate bmc password of %s: %w", server, err)
	}
	row, err := s.rows.Get(ctx, server)
	if err != nil {
		return fmt.Errorf("rotate bmc password of %s: %w", server, err)
	}
	next, err := Generate(c.LongestPassword())
	if err != nil {
		return err
	}
	if row.PendingKeyID, row.Pending, err = s.keys.Seal([]byte(next), pendingContext(row.holder(server))); err != nil {
		return fmt.Errorf("rotate bmc password of %s: %w", server, err)
	}
	if err := s.rows.Put(ctx, server, row); err != nil {
		return fmt.Errorf("rotate bmc password of %s: keep the pending one: %w", server, err)
	}
	set := c.SetPassword(ctx, row.User, next)
	if errors.Is(set, bmc.ErrRefused) {
		// It said no, so the old one holds. Forgetting the pending one is safe only if that is proven.
		if err := s.Settle(ctx, c, server); err != nil {
			return errors.Join(fmt.Errorf("rotate bmc password of %s: %w", server, set), err)
		}
		return fmt.Errorf("rotate bmc password of %s: %w", server, set)
	}
	// Set, or cut off on the way: the logins tell.
	settled := s.settle(ctx, c, server, true)
	if settled == nil && set != nil {
		l, err := s.Login(ctx, server)
		if err == nil && l.Password == next {
			return nil // the answer was lost, the effect wasn't
		}
		return errors.Join(fmt.Errorf("rotate bmc password of %s: %w", server, set), err)
	}
	if settled != nil {
		return fmt.Errorf("rotate bmc password of %s: %w", server, settled)
	}
	return nil
}

// Settle makes the record of a rotation that was cut off say what is true: it tries the old password and the pending one,
// each once, and keeps the one that works. With nothing pending it does nothing. If neither works both are kept: an
// operator has to look.
func (s *Store) Settle(ctx context.Context, c bmc.Account, server string) error {
	return s.settle(ctx, c, server, false)
}

func (s *Store) settle(ctx context.Context, c bmc.Account, server string, pendingFirst bool) error {
	row, err := s.rows.Get(ctx, server)
	if err != nil || row.Pending == "" {
		return err
	}
	l, err := s.open(server, row)
	if err != nil {
		return err
	}
	old := bmc.Login{User: l.User, Password: l.Password}
	order := []bmc.Login{old, *l.Pending}
	if pendingFirst {
		order = []bmc.Login{*l.Pending, old}
	}
	var refused error
	for _, try := range order {
		err := c.TryLogin(ctx, try)
		if errors.Is(err, bmc.ErrCredential) {
			refused = err
			continue
		}
		if err != nil {
			return err // it can't be told now; the record stays as it is
		}
		if try.Password == l.Pending.Password {
			if row.KeyID, row.Sealed, err = s.keys.Seal([]byte(try.Password), row.holder(server)); err != nil {
				return err
			}
		}
		row.PendingKeyID, row.Pending = "", ""
		return s.rows.Put(ctx, server, row)
	}
	return refused
}
