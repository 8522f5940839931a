package bmc_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema/shared"
)

var scratch string

func TestMain(m *testing.M) {
	if args := strings.Split(os.Getenv(ipmiOperator), "|"); len(args) == 2 {
		fmt.Fprintln(os.Stderr, "it was not killed:", operateOverIPMI(context.Background(), args[0], args[1]))
		os.Exit(1)
	}
	var err error
	if scratch, err = os.MkdirTemp("", "gpupool-bmc-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(scratch)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// quick is for machines that switch in milliseconds.
var quick = bmc.Timing{
	Dial: 5 * time.Second, Call: 5 * time.Second, BulkCall: 10 * time.Second, Poll: 4 * time.Millisecond, Graceful: 150 * time.Millisecond,
	PowerChange: 4 * time.Second, PowerRetry: 500 * time.Millisecond, Settle: 5 * time.Millisecond, POSTWindow: 4 * time.Second,
	ReadBack: 250 * time.Millisecond, Busy: 2 * time.Second, TaskLost: 2 * time.Second,
}

// serve starts a lab BMC and stops it with the test.
func serve(t testing.TB, p lab.Profile, h lab.Hooks, opts ...lab.Option) *lab.Server {
	t.Helper()
	s := lab.New(p, h, opts...)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func profile(t testing.TB, name string) lab.Profile {
	t.Helper()
	p, err := lab.ByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// dial connects to a lab BMC and logs out with the test.
func dial(t testing.TB, s *lab.Server, opts ...bmc.Option) *bmc.Client {
	t.Helper()
	user, password := s.Credential()
	c, err := bmc.Dial(t.Context(), bmc.Endpoint{Address: s.URL(), Credential: bmc.Static(user, password)},
		append([]bmc.Option{bmc.WithTiming(quick), bmc.WithLog(testLog(t))}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if n := s.OpenSessions(); n != 0 {
			t.Errorf("%d sessions left open", n)
		}
	})
	return c
}

// testLog sends logs to the test.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(writer{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type writer struct{ t testing.TB }

func (w writer) Write(b []byte) (int, error) {
	w.t.Helper()
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

var (
	unpackMu sync.Mutex
	unpacked = map[string]lab.Profile{}
)

// captured unpacks a captured tree, once for all tests.
func captured(t testing.TB, name string) lab.Profile {
	t.Helper()
	archive := shared.Path(t, "data", "redfish", name+".tar.xz")
	unpackMu.Lock()
	defer unpackMu.Unlock()
	if p, ok := unpacked[name]; ok {
		return p
	}
	dir := filepath.Join(scratch, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skip("no xz: install the package xz-utils")
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "-xJf", archive, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("can't unpack %s: %v: %s", archive, err, out)
	}
	p, err := lab.FromTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	unpacked[name] = p
	return p
}

// capturedNames are the trees beside the repository.
var capturedNames = []string{"dell", "gb300_hgx", "hpe", "lenovo", "nvidia_gb200", "nvidia_viking", "supermicro"}

// refusals lists the requests that the firmware refused. 404 of a link that leads nowhere is the tree's own fault, and
// 503 is "not now".
func refusals(s *lab.Server) []string {
	var out []string
	for _, r := range s.Requests() {
		if r.Status >= 400 && r.Status != 503 && !(r.Method == "GET" && r.Status == 404) || r.Status == 0 {
			out = append(out, fmt.Sprintf("%s %s %s -> %d", r.Method, r.Path, r.Body, r.Status))
		}
	}
	return out
}

// sent lists the requests that change something, in order.
func sent(s *lab.Server) []string {
	var out []string
	for _, r := range s.Requests() {
		if (r.Method == "PATCH" || r.Method == "POST") && !strings.HasSuffix(r.Path, "/Sessions") {
			out = append(out, fmt.Sprintf("%s %s %s %d", r.Method, r.Path, r.Body, r.Status))
		}
	}
	return out
}
