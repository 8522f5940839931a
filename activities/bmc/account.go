package bmc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// SetPassword changes the password of the account that the client logs in as, and proves nothing about the new one: the
// rotation does that by logging in, see package credential. It works with a factory login that is allowed nothing else.
func (c *Client) SetPassword(ctx context.Context, user string, password Secret) (err error) {
	defer c.conn.named("set password at", &err)
	uri, err := c.account(ctx, user)
	if err != nil {
		return err
	}
	change := map[string]any{"Password": string(password)}
	etag := "*" // an account that must change its password may not be allowed to read itself
	if r, err := c.conn.get(ctx, uri); err == nil {
		etag = r.etag
	} else if !isKind(err, ErrPasswordChange) && !isKind(err, ErrRefused) {
		return err
	}
	body, err := marshalSecret(change)
	if err != nil {
		return err
	}
	return c.conn.withTag(ctx, http.MethodPatch, uri, etag, body)
}

// LongestPassword is 20: most firmware takes more, and the same account is often IPMI's too (IPMI 2.0 section 22.30).
func (c *Client) LongestPassword() int { return 20 }

// account finds the account of a user name. Slots that are empty are skipped (Dell lists 16).
func (c *Client) account(ctx context.Context, user string) (string, error) {
	root, err := c.conn.root(ctx)
	if err != nil {
		return "", err
	}
	service := orDefault(root.link("AccountService"), "/redfish/v1/AccountService")
	accounts := service + "/Accounts"
	if r, err := c.conn.get(ctx, service); err == nil {
		accounts = orDefault(r.link("Accounts"), accounts)
	} else if !isKind(err, ErrPasswordChange) && !isKind(err, ErrRefused) {
		return "", err
	}
	list, err := c.conn.collect(ctx, accounts, lenient)
	var barred *Error
	if errors.As(err, &barred) && errors.Is(barred.Kind, ErrPasswordChange) {
		// Barred from looking, and told where to go: the message's argument is the account (Base registry).
		for _, arg := range barred.Args {
			if strings.HasPrefix(arg, "/redfish/") {
				return arg, nil
			}
		}
		return accounts + "/" + user, nil // bmcweb names accounts by user
	}
	if err != nil {
		return "", err
	}
	for _, r := range list {
		if r.str("UserName") == user {
			return r.uri, nil
		}
	}
	return "", &Error{Kind: ErrNotFound, Address: c.conn.address, URI: accounts, Detail: fmt.Sprintf("none of its %d accounts is %q", len(list), user)}
}
