package record_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/credential"
	"gpupool/activities/bmc/record"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema/secret"
	"gpupool/schema/store"
)

// rotator is what the process that is killed is told by its environment: database, address, server.
const rotator = "GPUPOOL_TEST_ROTATOR"

var killTiming = bmc.Timing{Dial: 5 * time.Second, Call: 2 * time.Second, Poll: 4 * time.Millisecond, ReadBack: 200 * time.Millisecond, Busy: time.Second}

func killRing() (*secret.Ring, error) {
	return secret.Parse("k1 " + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))) + "\n")
}

// rotate is one run of the product: its own connections to database and BMC.
func rotate(ctx context.Context, file, address, server string) (err error) {
	db, err := store.Open(ctx, store.Config{Driver: "sqlite", DSN: file})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	keys, err := killRing()
	if err != nil {
		return err
	}
	p := bmc.NewPool(bmc.Config{Timing: killTiming, Shared: record.NewShared(db, keys), Log: slog.New(slog.DiscardHandler)})
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	logins := credential.NewStore(record.Rows{Store: db}, keys)
	c, err := p.Client(bmc.Endpoint{Address: address, Credential: logins.For(server)})
	if err != nil {
		return err
	}
	if _, err := c.Power(ctx); err != nil {
		return fmt.Errorf("it is not let in: %w", err)
	}
	return logins.Rotate(ctx, c, server)
}

// gate stands before the BMC and holds the first request that matches, so that the process that sent it can be killed there.
type gate struct {
	http.Handler
	hold    func(*http.Request) bool
	after   bool // the BMC gets it, only its answer is held
	reached chan struct{}
	killed  chan struct{} // a server doesn't see a client's end before it has read what that sent
	once    sync.Once
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	held := false
	if g.hold(r) {
		g.once.Do(func() { held = true })
	}
	if !held {
		g.Handler.ServeHTTP(w, r)
		return
	}
	if g.after {
		g.Handler.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(r.Context())))
	}
	close(g.reached)
	<-g.killed
}

// Case 8: the process is killed (SIGKILL) at each step of a rotation. The next one is let in, with one refused login at most
// for each of the two passwords, and makes the record say what the BMC has.
func TestAProcessThatIsKilledInARotationLocksNobodyOut(t *testing.T) {
	t.Parallel()
	account := func(method string) func(*http.Request) bool {
		return func(r *http.Request) bool {
			return r.Method == method && strings.HasPrefix(r.URL.Path, "/redfish/v1/AccountService/Accounts/")
		}
	}
	for name, at := range map[string]struct {
		hold  func() func(*http.Request) bool
		after bool
		set   bool // the BMC has the new password by then
	}{
		"the pending password is kept, the BMC not told": {hold: func() func(*http.Request) bool { return account(http.MethodPatch) }},
		"the BMC has it, and its answer is not heard":    {hold: func() func(*http.Request) bool { return account(http.MethodPatch) }, after: true, set: true},
		"the new password is being tried": {set: true, hold: func() func(*http.Request) bool {
			var logins atomic.Int64
			return func(r *http.Request) bool {
				return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/Sessions") && logins.Add(1) == 2
			}
		}},
		"the new password is proven and not committed": {set: true, hold: func() func(*http.Request) bool {
			return func(r *http.Request) bool {
				return r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/Sessions/")
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			p, err := lab.ByName(lab.SupermicroHGX) // locks after three
			if err != nil {
				t.Fatal(err)
			}
			machine := lab.New(p, lab.Hooks{}, lab.WithCredential("root", "first-password"), lab.WithQuirks(func(q *lab.Quirks) { q.LockoutWindow, q.LockoutDuration = time.Hour, time.Hour }))
			if err := machine.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := machine.Close(); err != nil {
					t.Error(err)
				}
			})
			to, err := url.Parse(machine.URL())
			if err != nil {
				t.Fatal(err)
			}
			g := &gate{Handler: httputil.NewSingleHostReverseProxy(to), hold: at.hold(), after: at.after, reached: make(chan struct{}), killed: make(chan struct{})}
			front := httptest.NewServer(g)
			t.Cleanup(front.Close)
			release := sync.OnceFunc(func() { close(g.killed) })
			t.Cleanup(release)

			file := filepath.Join(t.TempDir(), "record.db")
			keys, err := killRing()
			if err != nil {
				t.Fatal(err)
			}
			db, err := store.Open(ctx, store.Config{Driver: "sqlite", DSN: file})
			if err != nil {
				t.Fatal(err)
			}
			servers, err := db.EnrollServers(ctx, "test", keys, []store.NewServer{{Name: "r1s1", Region: "north", Site: "hall-1", Rack: "r1", Serial: "SN-1", MACs: []string{"0c:42:a1:00:00:01"},
				BMCAddress: front.URL, BMCUsername: "root", BMCPassword: "first-password", Model: "nvidia-h100-80gb", Accelerators: 8, CPUs: 112, MemoryBytes: 2 << 40}})
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}

			child := exec.CommandContext(ctx, os.Args[0])
			child.Env = append(os.Environ(), rotator+"="+strings.Join([]string{file, front.URL, servers[0].ID}, "|"))
			var said strings.Builder
			child.Stdout, child.Stderr = &said, &said
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- child.Wait() }()
			select {
			case <-g.reached:
			case err := <-ended:
				t.Fatalf("it ended before it came there: %v: %s", err, said.String())
			}
			if err := child.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-ended
			release()
			if _, now := machine.Credential(); (now != "first-password") != at.set {
				t.Fatalf("the BMC has the new password: %v, want %v", now != "first-password", at.set)
			}
			machine.DropSessions() // so that the next has to log in

			if err := rotate(ctx, file, front.URL, servers[0].ID); err != nil {
				t.Fatal(err)
			}
			if db, err = store.Open(ctx, store.Config{Driver: "sqlite", DSN: file}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := db.Close(); err != nil {
					t.Error(err)
				}
			})
			l, err := credential.NewStore(record.Rows{Store: db}, keys).Login(ctx, servers[0].ID)
			if err != nil {
				t.Fatal(err)
			}
			if _, now := machine.Credential(); string(l.Password) != now || l.Pending != nil || now == "first-password" {
				t.Fatal("the record and the BMC have different passwords, or one is still pending")
			}
			if n := machine.FailedLogins(); n > 2 || machine.Locked() || n == 0 && at.set {
				t.Fatalf("%d refused logins, locked %v", n, machine.Locked())
			}
		})
	}
}

// Case 8: two processes of a site, each with its own connection to the database, meet the same wrong password at the same moment, again
// and again as onboarding, watch and people do. The BMC is asked twice at most in all.
func TestTwoProcessesWithAWrongPasswordTryItTwiceAtMostInAll(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p, err := lab.ByName(lab.SupermicroHGX) // locks after three
	if err != nil {
		t.Fatal(err)
	}
	machine := lab.New(p, lab.Hooks{}, lab.WithCredential("root", "another-password"), lab.WithQuirks(func(q *lab.Quirks) { q.LockoutWindow, q.LockoutDuration = time.Hour, time.Hour }))
	if err := machine.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := machine.Close(); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(t.TempDir(), "record.db")
	keys, err := killRing()
	if err != nil {
		t.Fatal(err)
	}
	var server string
	if err := with(ctx, file, func(db *store.Store) error {
		list, err := db.EnrollServers(ctx, "test", keys, []store.NewServer{{Name: "r1s1", Region: "north", Site: "hall-1", Rack: "r1", Serial: "SN-1", MACs: []string{"0c:42:a1:00:00:01"},
			BMCAddress: machine.URL(), BMCUsername: "root", BMCPassword: "wrong-password", Model: "nvidia-h100-80gb", Accelerators: 8, CPUs: 112, MemoryBytes: 2 << 40}})
		if err == nil {
			server = list[0].ID
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var said [2]strings.Builder
	var children [2]*exec.Cmd
	for i := range children {
		children[i] = exec.CommandContext(ctx, os.Args[0])
		children[i].Env = append(os.Environ(), prober+"="+strings.Join([]string{file, machine.URL(), server}, "|"))
		children[i].Stdout = &said[i]
		if err := children[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range children {
		if err := c.Wait(); err != nil || said[i].String() != strings.Repeat("refused\n", probes) {
			t.Errorf("process %d: %v: %s", i, err, said[i].String())
		}
	}
	if n := machine.FailedLogins(); n == 0 || n > 2 || machine.Locked() {
		t.Fatalf("%d refused logins, locked %v", n, machine.Locked())
	}
}

// prober is what a process that meets a wrong password is told by its environment: database, address, server.
const prober = "GPUPOOL_TEST_PROBER"

const probes = 10

// probe asks for the power again and again, by a pool of its own each time as after restarts, and says how that went.
func probe(ctx context.Context, file, address, server string) error {
	return with(ctx, file, func(db *store.Store) error {
		keys, err := killRing()
		if err != nil {
			return err
		}
		for range probes {
			p := bmc.NewPool(bmc.Config{Timing: killTiming, Shared: record.NewShared(db, keys), Log: slog.New(slog.DiscardHandler)})
			c, err := p.Client(bmc.Endpoint{Address: address, Credential: credential.NewStore(record.Rows{Store: db}, keys).For(server)})
			if err == nil {
				_, err = c.Power(ctx)
			}
			if closed := p.Close(ctx); closed != nil {
				return closed
			}
			if !errors.Is(err, bmc.ErrCredential) {
				return fmt.Errorf("not a refused login: %w", err)
			}
			fmt.Println("refused")
		}
		return nil
	})
}
