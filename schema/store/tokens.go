package store

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"

	"gpupool/schema"
)

// TokenPrefix begins every API token, so that a leaked one is recognised by people and scanners.
const TokenPrefix = "gpt_"

// NewToken is a token as it is asked for.
type NewToken struct {
	Name            string
	Role            schema.Role
	Tenant, Project string
	ExpiresAt       schema.Instant // 0 = never
}

func (n NewToken) check(now schema.Instant) error {
	if !NamePattern.MatchString(n.Name) {
		return schema.Invalid("name", n.Name, nameRight)
	}
	switch n.Role {
	case schema.RoleOperator, schema.RoleTechnician:
		if n.Tenant != "" {
			return schema.Invalid("tenant", n.Tenant, fmt.Sprintf("nothing: the role %s is not of a tenant", n.Role))
		}
	case schema.RoleTenantAdmin, schema.RoleTenantMember:
		if n.Tenant == "" {
			return schema.Invalid("tenant", "", fmt.Sprintf("the tenant: the role %s is of one", n.Role))
		}
	case schema.RoleViewer:
	default:
		return schema.Invalid("role", string(n.Role), schema.OneOf(schema.Roles))
	}
	if n.Project != "" && n.Role != schema.RoleTenantMember && (n.Role != schema.RoleViewer || n.Tenant == "") {
		return schema.Invalid("project", n.Project, "nothing: only a tenant's member or viewer is narrowed to a project")
	}
	if n.ExpiresAt != 0 && n.ExpiresAt <= now {
		return schema.Invalid("expires_at", n.ExpiresAt.String(), "a moment to come, or nothing")
	}
	return nil
}

// CreateToken makes a token and returns its secret, which is kept nowhere.
func (s *Store) CreateToken(ctx context.Context, by string, n NewToken) (t schema.Token, secret string, err error) {
	if err := n.check(s.Now()); err != nil {
		return t, "", err
	}
	err = s.Write(ctx, func(tx *Tx) error {
		t, secret, err = tx.createToken(by, n)
		return err
	})
	return t, secret, err
}

func (tx *Tx) createToken(by string, n NewToken) (schema.Token, string, error) {
	if n.Tenant != "" {
		if err := tx.hasProject(n.Tenant, n.Project); err != nil {
			return schema.Token{}, "", err
		}
	}
	var taken int64
	if err := tx.db.Raw("SELECT count(*) FROM tokens WHERE name = ?", n.Name).Scan(&taken).Error; err != nil {
		return schema.Token{}, "", err
	}
	if taken > 0 {
		return schema.Token{}, "", schema.Conflict(fmt.Sprintf("there is a token %q already", n.Name), "names are not used again, also after a revocation, so that the audit stays clear")
	}
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		return schema.Token{}, "", err
	}
	secret := TokenPrefix + base64.RawURLEncoding.EncodeToString(b)
	t := schema.Token{ID: NewID("tok", tx.now), Name: n.Name, Hash: HashToken(secret), Role: n.Role, Tenant: n.Tenant, Project: n.Project, CreatedAt: tx.now, ExpiresAt: n.ExpiresAt}
	tx.Emit(schema.Event{Kind: schema.EventAudit, Subject: t.ID, Tenant: t.Tenant, By: by}, map[string]any{"act": "token created", "name": t.Name, "role": t.Role})
	return t, secret, tx.db.Create(&t).Error
}

// EnsureFirstToken makes an operator's token named "first-operator" where there is no token yet, and returns its secret; an
// empty secret says that there are tokens. Of processes that start at once only one makes it.
func (s *Store) EnsureFirstToken(ctx context.Context) (secret string, err error) {
	err = s.Write(ctx, func(tx *Tx) error {
		secret = ""
		// The event counter's row is the lock: PostgreSQL would let two transactions both see no token.
		if _, err := tx.exec("UPDATE event_seq SET seq = seq WHERE one = 1"); err != nil {
			return err
		}
		var n int64
		if err := tx.db.Raw("SELECT count(*) FROM tokens").Scan(&n).Error; err != nil || n > 0 {
			return err
		}
		_, secret, err = tx.createToken("gpupool", NewToken{Name: "first-operator", Role: schema.RoleOperator})
		return err
	})
	return secret, err
}

// TokenByHash finds a token by HashToken of its secret, whether or not it is still good.
func (s *Store) TokenByHash(ctx context.Context, hash string) (schema.Token, error) {
	var t schema.Token
	return t, one(s.read(ctx).Where("hash = ?", hash).Take(&t).Error, "token", "…")
}

// Tokens lists by name; those of one tenant where it is not empty.
func (s *Store) Tokens(ctx context.Context, tenant string) ([]schema.Token, error) {
	q := s.read(ctx).Order("name")
	if tenant != "" {
		q = q.Where("tenant = ?", tenant)
	}
	var out []schema.Token
	return out, q.Find(&out).Error
}

// RevokeToken ends a token, found by id or name, for ever; of one tenant only where it is not empty. Doing it again is
// no error. The last operator's token can't be revoked: nobody could make another.
func (s *Store) RevokeToken(ctx context.Context, by, idOrName, tenant string) (schema.Token, error) {
	var t schema.Token
	err := s.Write(ctx, func(tx *Tx) error {
		if err := one(tx.lock(&t, "id = ? OR name = ?", idOrName, idOrName), "token", idOrName); err != nil {
			return err
		}
		if tenant != "" && t.Tenant != tenant {
			return schema.NotFound("token", idOrName)
		}
		if t.RevokedAt != 0 {
			return nil
		}
		if t.Role == schema.RoleOperator {
			if _, err := tx.exec("UPDATE event_seq SET seq = seq WHERE one = 1"); err != nil { // see EnsureFirstToken
				return err
			}
			var others int64
			if err := tx.db.Raw("SELECT count(*) FROM tokens WHERE role = ? AND id <> ? AND revoked_at = 0 AND (expires_at = 0 OR expires_at > ?)", schema.RoleOperator, t.ID, tx.now).Scan(&others).Error; err != nil {
				return err
			}
			if others == 0 {
				return schema.Conflict(fmt.Sprintf("%q is the last operator's token", t.Name), "make another first: without one nobody could")
			}
		}
		t.RevokedAt = tx.now
		tx.Emit(schema.Event{Kind: schema.EventAudit, Subject: t.ID, Tenant: t.Tenant, By: by}, map[string]any{"act": "token revoked", "name": t.Name})
		return tx.db.Save(&t).Error
	})
	return t, err
}

// LooksLikeToken reports whether text may be an API token, so that what can't be one costs no lookup.
func LooksLikeToken(text string) bool {
	return strings.HasPrefix(text, TokenPrefix) && len(text) == len(TokenPrefix)+43
}
