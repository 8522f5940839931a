package record_test

import (
	"bytes"
	"context"
	"errors"
	"io"
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

	tlog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/credential"
	"gpupool/activities/bmc/record"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema"
	"gpupool/schema/store"
)

// operator is what the process that is killed in a verb is told by its environment: database, act.
const operator = "GPUPOOL_TEST_OPERATOR"

// operate is one try of an act's activity by a process of its own.
func operate(ctx context.Context, file, act string) (err error) {
	db, err := store.Open(ctx, store.Config{Driver: "sqlite", DSN: file})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	keys, err := killRing()
	if err != nil {
		return err
	}
	timing := bmc.Timing{Dial: 5 * time.Second, Call: 5 * time.Second, Poll: 4 * time.Millisecond, Graceful: 100 * time.Millisecond, PowerChange: 5 * time.Second, PowerRetry: 2 * time.Second,
		Settle: 5 * time.Millisecond, POSTWindow: time.Second, ReadBack: time.Second, Busy: time.Second, TaskLost: 5 * time.Second}
	p := bmc.NewPool(bmc.Config{Timing: timing, Shared: record.NewShared(db, keys), Log: slog.New(slog.DiscardHandler)})
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	a := &bmc.Activities{Store: db, Pool: p, Credential: credential.NewStore(record.Rows{Store: db}, keys).For}
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(tlog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestActivityEnvironment()
	env.SetTestTimeout(time.Minute)
	env.RegisterActivity(a)
	_, err = env.ExecuteActivity(a.Operate, act)
	return err
}

// Every verb that changes something is killed (SIGKILL) right before the BMC gets its request, and right after the BMC has done it
// and before anybody knew. Asked for again it ends once, as it was meant, and the power is never taken away twice.
func TestAProcessThatIsKilledInAVerbEndsItOnceWhenItIsAskedAgain(t *testing.T) {
	t.Parallel()
	is := func(method, part, body string) func(*http.Request) bool {
		return func(r *http.Request) bool {
			return r.Method == method && strings.Contains(r.URL.Path, part) && (body == "" || strings.Contains(bodyOf(r), body))
		}
	}
	const system = "/redfish/v1/Systems/1"
	for _, tc := range []struct {
		name  string
		verb  schema.BMCVerb
		args  schema.BMCArgs
		hold  func(*http.Request) bool
		after bool // the BMC does it first
		off   int  // how often the power went away, in all
		ac    int
		once  string // is in the body of one request at most that the BMC was given
		shows string // the result
	}{
		{name: "off is not sent", verb: schema.BMCPower, args: schema.BMCArgs{Want: "cycle", Hard: true}, hold: is("POST", "ComputerSystem.Reset", "ForceOff"), off: 1, shows: `"now":"on"`},
		{name: "off is not heard of", verb: schema.BMCPower, args: schema.BMCArgs{Want: "cycle", Hard: true}, hold: is("POST", "ComputerSystem.Reset", "ForceOff"), after: true, off: 1, shows: `"now":"on"`},
		{name: "on is not sent", verb: schema.BMCPower, args: schema.BMCArgs{Want: "cycle", Hard: true}, hold: is("POST", "ComputerSystem.Reset", `"On"`), off: 1, shows: `"now":"on"`},
		{name: "on is not heard of", verb: schema.BMCPower, args: schema.BMCArgs{Want: "cycle", Hard: true}, hold: is("POST", "ComputerSystem.Reset", `"On"`), after: true, off: 1, once: "ForceOff", shows: `"now":"on"`},
		{name: "a graceful cycle's on is not heard of", verb: schema.BMCPower, args: schema.BMCArgs{Want: "cycle"}, hold: is("POST", "ComputerSystem.Reset", `"On"`), after: true, off: 1, once: "GracefulShutdown", shows: `"now":"on"`},
		{name: "an ac cycle is not heard of", verb: schema.BMCPower, args: schema.BMCArgs{Want: "ac-cycle", Hard: true}, hold: is("POST", "HpeComputerSystemExt.SystemReset", ""), after: true, off: 1, ac: 1, once: "AuxCycle", shows: `"now":"on"`},
		{name: "an ac cycle's on is not heard of", verb: schema.BMCPower, args: schema.BMCArgs{Want: "ac-cycle", Hard: true}, hold: is("POST", "ComputerSystem.Reset", `"On"`), after: true, off: 1, ac: 1, once: "AuxCycle", shows: `"now":"on"`},
		{name: "off, not heard of", verb: schema.BMCPower, args: schema.BMCArgs{Want: "off", Hard: true}, hold: is("POST", "ComputerSystem.Reset", ""), after: true, off: 1, once: "ForceOff", shows: `"now":"off"`},
		{name: "boot once is not sent", verb: schema.BMCBoot, args: schema.BMCArgs{From: "network"}, hold: is("PATCH", system, "Pxe"), shows: `"override":"Pxe Once"`},
		{name: "boot once is not heard of", verb: schema.BMCBoot, args: schema.BMCArgs{From: "network"}, hold: is("PATCH", system, "Pxe"), after: true, once: "Pxe", shows: `"override":"Pxe Once"`},
		{name: "a bios attribute is not sent", verb: schema.BMCBIOS, args: schema.BMCArgs{Attributes: map[string]string{"NumaNodes": "4"}}, hold: is("PATCH", "/Bios", ""), shows: `"reboot":true`},
		{name: "a bios attribute is not heard of", verb: schema.BMCBIOS, args: schema.BMCArgs{Attributes: map[string]string{"NumaNodes": "4"}}, hold: is("PATCH", "/Bios", ""), after: true, once: "NumaNodes", shows: `"reboot":true`},
		{name: "an image is not sent", verb: schema.BMCMedia, args: schema.BMCArgs{Image: "http://192.0.2.1/x.iso"}, hold: is("POST", "VirtualMedia", ""), shows: `"image":"http://192.0.2.1/x.iso","inserted":true`},
		{name: "an image is not heard of", verb: schema.BMCMedia, args: schema.BMCArgs{Image: "http://192.0.2.1/x.iso"}, hold: is("POST", "VirtualMedia", ""), after: true, once: "x.iso", shows: `"image":"http://192.0.2.1/x.iso","inserted":true`},
		{name: "an order is not heard of", verb: schema.BMCOrder, args: schema.BMCArgs{First: []string{"Boot0010"}}, hold: is("PATCH", "", "BootOrder"), after: true, once: "BootOrder", shows: `[{"ref":"Boot0010"`},
		{name: "a light is not heard of", verb: schema.BMCLight, args: schema.BMCArgs{Lit: true}, hold: is("PATCH", "", "ndicator"), after: true, once: "ndicator"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			killInVerb(t, tc.verb, tc.args, tc.hold, tc.after, func(t *testing.T, machine *lab.Server, offs int, a schema.BMCAct) {
				if a.Failure != "" || !strings.Contains(string(a.Result), tc.shows) {
					t.Errorf("ended with %s %s", a.Failure, a.Result)
				}
				if offs != tc.off || machine.ACCycles() != tc.ac {
					t.Errorf("the power went away %d times, all of it %d times", offs, machine.ACCycles())
				}
				n := 0
				for _, r := range machine.Requests() {
					if r.Method != http.MethodGet && tc.once != "" && strings.Contains(string(r.Body), tc.once) {
						n++
					}
				}
				if n > 1 {
					t.Errorf("%d requests with %s", n, tc.once)
				}
			})
		})
	}
}

func killInVerb(t *testing.T, verb schema.BMCVerb, args schema.BMCArgs, hold func(*http.Request) bool, after bool, check func(*testing.T, *lab.Server, int, schema.BMCAct)) {
	t.Helper()
	ctx := t.Context()
	p, err := lab.ByName(lab.HPE)
	if err != nil {
		t.Fatal(err)
	}
	var offs atomic.Int64
	machine := lab.New(p, lab.Hooks{PowerOff: func(bool) { offs.Add(1) }}, lab.WithCredential("root", "first-password"), lab.WithIdentity(lab.Identity{Serial: "SN-1"}),
		lab.WithQuirks(func(q *lab.Quirks) { q.POSTWindow, q.OnIgnoredAfterOff, q.BMCResetTime = 0, 0, 50*time.Millisecond }))
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
	g := &gate{Handler: httputil.NewSingleHostReverseProxy(to), hold: hold, after: after, reached: make(chan struct{}), killed: make(chan struct{})}
	front := httptest.NewServer(g)
	t.Cleanup(front.Close)
	release := sync.OnceFunc(func() { close(g.killed) })
	t.Cleanup(release)

	file := filepath.Join(t.TempDir(), "record.db")
	keys, err := killRing()
	if err != nil {
		t.Fatal(err)
	}
	var act schema.BMCAct
	err = with(ctx, file, func(db *store.Store) error {
		servers, err := db.EnrollServers(ctx, "test", keys, []store.NewServer{{Name: "r1s1", Region: "north", Site: "hall-1", Rack: "r1", Serial: "SN-1", MACs: []string{"0c:42:a1:00:00:01"},
			BMCAddress: front.URL, BMCUsername: "root", BMCPassword: "first-password", Model: "nvidia-h100-80gb", Accelerators: 8, CPUs: 112, MemoryBytes: 2 << 40}})
		if err != nil {
			return err
		}
		act, err = db.AskBMC(ctx, servers[0].ID, verb, args, "", "op")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(ctx, os.Args[0])
	child.Env = append(os.Environ(), operator+"="+file+"|"+act.ID)
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
	if err := operate(ctx, file, act.ID); err != nil {
		t.Fatal(err)
	}
	if err := with(ctx, file, func(db *store.Store) (err error) { act, err = db.BMCAct(ctx, act.ID); return err }); err != nil {
		t.Fatal(err)
	}
	check(t, machine, int(offs.Load()), act)
}

// with opens the record for one moment, as a process does.
func with(ctx context.Context, file string, do func(*store.Store) error) error {
	db, err := store.Open(ctx, store.Config{Driver: "sqlite", DSN: file})
	if err != nil {
		return err
	}
	return errors.Join(do(db), db.Close())
}

// bodyOf reads a request's body and leaves it for the next who does.
func bodyOf(r *http.Request) string {
	b, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(b))
	if err != nil {
		return ""
	}
	return string(b)
}
