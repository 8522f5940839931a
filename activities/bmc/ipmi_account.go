package bmc

import (
	"context"
	"errors"
	"fmt"

	ipmi "github.com/bougou/go-ipmi/pkg/client"
)

const (
	// thisChannel is the channel that the request came by (IPMI 2.0 section 6.3).
	thisChannel = 0x0e
	// ipmiPassword is how long a password may be. The standard has 20 bytes (section 22.30), but there are BMCs that take 20 and
	// keep 16 (OpenIPMI's is one): then nobody gets in any more.
	ipmiPassword = 16
)

// LongestPassword is Account's.
func (c *IPMIClient) LongestPassword() int { return ipmiPassword }

// TryLogin proves a secret by opening a session with it, within the BMC's login budget.
func (c *IPMIClient) TryLogin(ctx context.Context, l Login) error {
	select {
	case c.slot <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("try a login at %s: waiting for another session: %w", c.address, context.Cause(ctx))
	}
	defer func() { <-c.slot }()
	s, err := c.login(ctx, "try a login at", l)
	if err != nil {
		return err
	}
	c.end(ctx, s)
	return nil
}

// SetPassword changes the password of an account, and proves nothing about the new one: see Client.SetPassword.
func (c *IPMIClient) SetPassword(ctx context.Context, user string, password Secret) error {
	const op = "set password at"
	if len(password) > ipmiPassword {
		return &Error{Kind: ErrUnsupported, Op: op, Address: c.address, Detail: fmt.Sprintf("a password over ipmi has at most %d bytes: some BMCs drop the rest", ipmiPassword)}
	}
	return c.session(ctx, op, func(ctx context.Context, s *ipmi.Client) error {
		id, err := ipmiUser(ctx, s, user)
		if err != nil {
			return err
		}
		if id == 0 {
			return &Error{Kind: ErrNotFound, Op: op, Address: c.address, Detail: fmt.Sprintf("none of its accounts is %q", user)}
		}
		if _, err := s.SetUserPassword(ctx, id, string(password), false); err != nil {
			if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
				return c.fail(op, ErrUnreachable, nil) // the library's words could hold what was sent
			}
			return c.fail(op, ErrRefused, nil)
		}
		return nil
	})
}

// ipmiUser finds the number of a user name; 0 where there is none. Number 1 is the user without a name (section 6.9).
func ipmiUser(ctx context.Context, s *ipmi.Client, name string) (uint8, error) {
	access, err := s.GetUserAccess(ctx, thisChannel, 1)
	if err != nil {
		return 0, err
	}
	for id := uint8(2); id <= access.MaxUsersIDCount; id++ {
		if u, err := s.GetUsername(ctx, id); err == nil && u.Username == name { // a slot that isn't used may be an error
			return id, nil
		} else if ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
	return 0, nil
}

// end closes a session, even if the caller has gone.
func (c *IPMIClient) end(ctx context.Context, s *ipmi.Client) {
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.pool.cfg.Timing.Dial)
	defer cancel()
	if err := s.Close(closing); err != nil {
		c.pool.log.DebugContext(ctx, "ipmi session not closed", "bmc", c.address, "err", err)
	}
}
