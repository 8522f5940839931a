package embedded

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"

	"gpupool/worker/namespace"
)

const childEnv = "GPUPOOL_TEST_EMBEDDED_CHILD"

// child is the process that gets killed: server and worker on dir until its standard input closes.
func child(dir string) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	err := func() error {
		s, err := Start(context.Background(), Options{Dir: dir, Logger: log})
		if err != nil {
			return err
		}
		defer s.Stop()
		c, err := client.Dial(client.Options{HostPort: s.HostPort(), Namespace: namespace.Default, Logger: sdklog.NewStructuredLogger(log)})
		if err != nil {
			return err
		}
		defer c.Close()
		stop, err := startWorker(c)
		if err != nil {
			return err
		}
		defer stop()
		fmt.Println(s.HostPort())
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// running is a child process that serves, and a client of it.
type running struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	client client.Client
}

func startChild(t *testing.T, dir string) *running {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hostPort, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("the child didn't say its address: %v, %v", err, cmd.Wait())
	}
	c, err := client.Dial(client.Options{HostPort: strings.TrimSpace(hostPort), Namespace: namespace.Default, Logger: quietSDK()})
	if err != nil {
		t.Fatal(err)
	}
	return &running{cmd: cmd, stdin: stdin, client: c}
}

// kill ends the child as a power button would: no handler runs.
func (r *running) kill(t *testing.T) {
	t.Helper()
	r.client.Close()
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.cmd.Wait() // "signal: killed"
}

func (r *running) end(t *testing.T) {
	t.Helper()
	r.client.Close()
	_ = r.stdin.Close()
	if err := r.cmd.Wait(); err != nil {
		t.Fatalf("child: %v", err)
	}
}

func TestSurvivesKill(t *testing.T) {
	t.Parallel()
	const workflows = 40
	id := func(i int) string { return fmt.Sprintf("job/%d", i) }
	dir := t.TempDir()

	// Killed while all of them run: some before their first activity, some waiting. Every start was
	// acknowledged.
	first := startChild(t, dir)
	for i := range workflows {
		if _, err := first.client.ExecuteWorkflow(t.Context(), options(id(i)), "process"); err != nil {
			t.Fatal(err)
		}
	}
	first.kill(t)

	// Killed again with half of the news delivered.
	second := startChild(t, dir)
	for i := range workflows / 2 {
		if err := second.client.SignalWorkflow(t.Context(), id(i), "", "go", nil); err != nil {
			t.Fatalf("after the kill: %v", err)
		}
	}
	second.kill(t)

	third := startChild(t, dir)
	for i := workflows / 2; i < workflows; i++ {
		if err := third.client.SignalWorkflow(t.Context(), id(i), "", "go", nil); err != nil {
			t.Fatalf("after the second kill: %v", err)
		}
	}
	waitFor(t, 45*time.Second, func() (bool, string) {
		got := count(t, third.client, `WorkflowType = 'process' AND ExecutionStatus = 'Completed'`)
		return got == workflows, fmt.Sprintf("%d of %d workflows completed", got, workflows)
	})
	if all := count(t, third.client, `WorkflowType = 'process'`); all != workflows {
		t.Fatalf("%d runs for %d workflows", all, workflows)
	}
	third.end(t)
}

func options(id string) client.StartWorkflowOptions {
	return client.StartWorkflowOptions{
		ID: id, TaskQueue: queue,
		// What a killed worker held is handed out again after this.
		WorkflowTaskTimeout: 2 * time.Second,
	}
}

func count(t *testing.T, c client.Client, query string) int64 {
	t.Helper()
	r, err := c.CountWorkflow(t.Context(), &workflowservice.CountWorkflowExecutionsRequest{Query: query})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetCount()
}

// waitFor polls a condition until it holds; state says where it stands when it doesn't in time.
func waitFor(t *testing.T, limit time.Duration, holds func() (bool, string)) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, state := holds()
		if ok {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("after %s: %s", limit, state)
		case <-tick.C:
		}
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func quietSDK() sdklog.Logger { return sdklog.NewStructuredLogger(quiet()) }
