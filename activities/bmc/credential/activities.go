package credential

import (
	"context"
	"errors"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/worker"

	"gpupool/activities/bmc"
	"gpupool/activities/temporalerr"
	"gpupool/schema"
	"gpupool/schema/store"
)

// Activities is registered with a site's worker; see workflows.KeepCredentials for when each is called.
type Activities struct {
	Store  *store.Store
	Logins *Store
	Pool   *bmc.Pool
	// After is how old a password grows before it is replaced; 0 = it is left to people.
	After time.Duration
}

// Register adds the activities to a site's worker.
func Register(w worker.ActivityRegistry, a *Activities) { w.RegisterActivity(a) }

// LoginsDue lists the servers of a site whose password is to be replaced, or whose replacement was cut off.
func (a *Activities) LoginsDue(ctx context.Context, site string) ([]string, error) {
	before := schema.Instant(0) // then only what was cut off is due
	if a.After > 0 {
		before = a.Store.Now().Add(-a.After)
	}
	list, err := a.Store.BMCLoginsDue(ctx, site, before)
	return list, temporalerr.Wrap(err)
}

// RotateLogin gives a server's BMC a new password, or ends a rotation that was cut off. A BMC that says no, or can't be
// reached, is told of and left for the next turn.
func (a *Activities) RotateLogin(ctx context.Context, server string) error {
	v, err := a.Store.Server(ctx, server)
	if err != nil {
		return temporalerr.Wrap(err)
	}
	c, err := a.Pool.Controller(bmc.Endpoint{Address: v.BMCAddress, SystemID: v.BMCSystem, Serial: v.Serial, Protocol: bmc.Protocol(v.BMCProtocol), Credential: a.Logins.For(v.ID)})
	if err != nil {
		return temporalerr.Wrap(err)
	}
	activity.RecordHeartbeat(ctx)
	if a.After == 0 {
		return temporalerr.Wrap(a.Logins.Settle(ctx, c, v.ID))
	}
	return temporalerr.Wrap(a.Logins.Rotate(ctx, c, v.ID))
}

// ResealLogins seals the passwords of a site under the first key of the ring. It tells how many there were.
func (a *Activities) ResealLogins(ctx context.Context, site string) (n int, err error) {
	servers, err := a.Store.Servers(ctx, store.ServerFilter{Site: site})
	if err != nil {
		return 0, temporalerr.Wrap(err)
	}
	for _, v := range servers {
		activity.RecordHeartbeat(ctx)
		done, err := a.Logins.Reseal(ctx, v.ID)
		if err != nil && !errors.Is(err, ErrChanged) && !schema.Is(err, schema.CodeNotFound) {
			return n, temporalerr.Wrap(err)
		}
		if done {
			n++
		}
	}
	return n, nil
}
