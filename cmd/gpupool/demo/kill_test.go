package demo_test

import (
	"context"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"gpupool/cmd/gpupool/cli"
	"gpupool/cmd/gpupool/demo"
	"gpupool/cmd/gpupool/serve"
)

// TestMain is one of gpupool's server processes where it is asked to, or a Temporal server of its own: what is killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "up", "api", "worker", "allocator", "pxe":
			root := &cobra.Command{Use: "gpupool"}
			root.AddCommand(serve.Commands()...)
			os.Exit(cli.Execute(context.Background(), root))
		case "temporal":
			os.Exit(temporalServer(os.Args[2], os.Args[3]))
		}
	}
	os.Exit(m.Run())
}

// TestTheStoryEndsTheSameWhenTheProcessIsKilledTenTimes kills everything but the jobs' processes with SIGKILL at random
// points of the demo and starts it again on the same folder. The story's own checks are the oracle: no accelerator in two
// allocations, no job lost or run twice, no server installed twice, usage equal to what was held.
func TestTheStoryEndsTheSameWhenTheProcessIsKilledTenTimes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	const kills = 10
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("GPUPOOL_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("GPUPOOL_SEED: %v", err)
		}
	}
	t.Logf("GPUPOOL_SEED=%d repeats this test's moments", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	up, err := demo.Start(t.Context(), os.Args[0], dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		up.Stop()
		if t.Failed() {
			if b, err := os.ReadFile(filepath.Join(dir, "up.log")); err == nil {
				t.Logf("the end of the server's log:\n%s", b[max(0, len(b)-6000):])
			}
		}
	}()
	at, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	story := &demo.Story{URL: up.URL, Token: up.Token, LabDir: up.Lab, WorkDir: dir, Out: testLog{t}}
	type end struct {
		checks []demo.Check
		err    error
	}
	told := make(chan end, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		checks, err := story.Tell(ctx)
		told <- end{checks, err}
	}()
	var e end
	for n := 0; ; {
		// The first kills fall into the onboarding, which is over in seconds; later ones leave time to get on.
		pause := time.Duration(300+rng.IntN(2500)) * time.Millisecond
		if n >= 3 {
			pause = time.Duration(2000+rng.IntN(6000)) * time.Millisecond
		}
		if n == kills {
			pause = 10 * time.Minute
		}
		select {
		case e = <-told:
		case <-time.After(pause):
			if n == kills {
				t.Fatal("the story does not end")
			}
			n++
			t.Logf("kill %d", n)
			up.Kill()
			again, err := demo.Start(t.Context(), os.Args[0], dir, port)
			if err != nil {
				t.Fatal(err)
			}
			up = again
			continue
		}
		if n < kills {
			t.Logf("the story ended after %d kills", n)
		}
		break
	}
	for _, c := range e.checks {
		if !c.True {
			t.Errorf("%s: %s", c.What, c.Seen)
		}
	}
	if e.err != nil {
		t.Fatal(e.err)
	}
	if len(e.checks) < 12 {
		t.Fatalf("only %d checks were made", len(e.checks))
	}
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) { l.t.Log(string(b)); return len(b), nil }
