package bmc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"gpupool/schema"
)

// Protocol is how a BMC is spoken to.
type Protocol string

// The protocols; the zero value is Redfish.
const (
	Redfish Protocol = "redfish"
	IPMI    Protocol = "ipmi"
)

// Endpoint is where a BMC is and how to get in.
type Endpoint struct {
	// Address is the base URL: https://10.0.0.7, http://127.0.0.1:8000; or host[:port] for IPMI (port 623).
	Address  string
	Protocol Protocol
	// Credential is asked at each login, never in between, so a changed secret is picked up with no restart.
	Credential Credential
	// TLSPin is the SHA-256 of the server's public key (SubjectPublicKeyInfo), hex. Empty trusts the first key seen and
	// keeps to it for the life of the Pool; see Config.OnPin to keep it for longer.
	TLSPin string
	// SystemID picks the member of Systems (Id or path) where a BMC serves several servers. Empty detects it.
	SystemID string
	// Serial picks it by its serial number, SKU (Dell's service tag) or UUID, where several could be it and no SystemID is given.
	Serial string
}

// Secret is a password. It prints as "***" and refuses to be marshalled.
type Secret string

// String hides the secret.
func (Secret) String() string { return "***" }

// GoString hides the secret from %#v.
func (Secret) GoString() string { return `"***"` }

// LogValue hides the secret from slog.
func (Secret) LogValue() slog.Value { return slog.StringValue("***") }

// MarshalJSON refuses: a secret belongs in no payload.
func (Secret) MarshalJSON() ([]byte, error) {
	return nil, errors.New("a bmc password must not be marshalled")
}

// Login is one way in.
type Login struct {
	User     string
	Password Secret
	// Revision names this secret without telling it, as the store's row version does. A refused login is remembered by
	// it. Empty falls back to a hash of user and password.
	Revision string
	// Pending is a second secret to try once when the first is refused: what a rotation wrote before it was cut off.
	Pending *Login
}

// Credential fetches the login of a BMC.
type Credential func(context.Context) (Login, error)

// Static is a Credential that never changes.
func Static(user, password string) Credential {
	l := Login{User: user, Password: Secret(password)}
	return func(context.Context) (Login, error) { return l, nil }
}

// Timing is how long things may take. Zero fields take the default of [DefaultTiming].
type Timing struct {
	Dial     time.Duration // TCP and TLS, each
	Call     time.Duration // one request of a verb
	BulkCall time.Duration // one request of a long read: firmware inventory takes minutes on a DGX H100
	Poll     time.Duration // between two reads while waiting for a state

	Graceful    time.Duration // for the OS to shut down before the power is cut
	PowerChange time.Duration // for a power state to be reached after a reset was accepted
	PowerRetry  time.Duration // after which a reset that had no effect is sent again
	Settle      time.Duration // off before on again: capacitors, and BMCs that lose an On that comes too early
	POSTWindow  time.Duration // for "not during POST" to pass
	ReadBack    time.Duration // for a setting to show
	Busy        time.Duration // the longest wait that a Retry-After can ask for
	TaskLost    time.Duration // for a task that vanished with its BMC to come back
}

// DefaultTiming is for machines of metal. Sources: Ironic's defaults (poll, soft power off 600 s), field reports named in
// quirks.go for the rest.
var DefaultTiming = Timing{
	Dial: 10 * time.Second, Call: 45 * time.Second, BulkCall: 200 * time.Second, Poll: 2 * time.Second,
	Graceful: 10 * time.Minute, PowerChange: 2 * time.Minute, PowerRetry: 20 * time.Second, Settle: 10 * time.Second,
	POSTWindow: 10 * time.Minute, ReadBack: 30 * time.Second, Busy: 60 * time.Second, TaskLost: 10 * time.Minute,
}

// Scale multiplies every duration: a simulated machine needs a thousandth.
func (t Timing) Scale(f float64) Timing {
	for _, d := range []*time.Duration{&t.Dial, &t.Call, &t.BulkCall, &t.Poll, &t.Graceful, &t.PowerChange, &t.PowerRetry,
		&t.Settle, &t.POSTWindow, &t.ReadBack, &t.Busy, &t.TaskLost} {
		*d = time.Duration(float64(*d) * f)
	}
	return t
}

func (t Timing) withDefaults() Timing {
	def := DefaultTiming
	for _, p := range []struct{ have, want *time.Duration }{
		{&t.Dial, &def.Dial}, {&t.Call, &def.Call}, {&t.BulkCall, &def.BulkCall}, {&t.Poll, &def.Poll}, {&t.Graceful, &def.Graceful},
		{&t.PowerChange, &def.PowerChange}, {&t.PowerRetry, &def.PowerRetry}, {&t.Settle, &def.Settle},
		{&t.POSTWindow, &def.POSTWindow}, {&t.ReadBack, &def.ReadBack}, {&t.Busy, &def.Busy}, {&t.TaskLost, &def.TaskLost},
	} {
		if *p.have == 0 {
			*p.have = *p.want
		}
	}
	return t
}

// parseAddress checks a Redfish address and drops what isn't scheme and host.
func parseAddress(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || !schema.ValidHost(u) || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("bmc address %q: want https://host[:port]", address)
	}
	if u.User != nil {
		return nil, fmt.Errorf("bmc address of host %s: holds a user or a password; put them in the credential", u.Host)
	}
	return &url.URL{Scheme: u.Scheme, Host: strings.ToLower(u.Host)}, nil
}

// marshalSecret encodes a request that carries a password, which goes nowhere but to the BMC.
func marshalSecret(v map[string]any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, errors.New("encode password change") // json's error could quote the value
	}
	return b, nil
}
