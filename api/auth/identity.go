package auth

import (
	"context"

	"gpupool/schema"
)

// Identity is who calls.
type Identity struct {
	Token           string // the token's id
	Name            string // the token's name: what events and audit call the caller
	Role            schema.Role
	Tenant, Project string // empty = not narrowed
	ExpiresAt       schema.Instant
	Session         bool // by the console's cookie
}

// Sees reports whether a thing of that tenant and project is the caller's to see; a caller that is not of a tenant sees all.
func (id Identity) Sees(tenant, project string) bool {
	return (id.Tenant == "" || id.Tenant == tenant) && (id.Project == "" || id.Project == project)
}

// Pool reports whether the caller is of the pool rather than of a tenant.
func (id Identity) Pool() bool { return id.Tenant == "" }

type key struct{}

// With puts the caller into ctx.
func With(ctx context.Context, id Identity) context.Context { return context.WithValue(ctx, key{}, id) }

// From is the caller that the guard put into ctx; false where nobody was asked for a credential.
func From(ctx context.Context) (Identity, bool) {
	id, ok := ctx.Value(key{}).(Identity)
	return id, ok
}
