package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"golang.org/x/sync/errgroup"

	"gpupool/api/contract"
	"gpupool/cmd/gpupool/demo"
	"gpupool/worker/embedded"
)

const (
	jobs   = 500
	inHand = 20 // at once: jobs being submitted, jobs running (the tenant's limit of H100), bare workflows under way
)

// system runs the demo's data centre in a process of its own, submits jobs of `true` over HTTP, and beside it as many
// bare workflows of the same shape on a server of the same kind: start, signal, local activity, signal beside a timer,
// local activity. Both keep their state in files, with every commit flushed.
func system(ctx context.Context, say func(string)) ([]Figure, error) {
	dir, err := os.MkdirTemp("", "gpupool-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	begun := time.Now()
	up, err := demo.Start(ctx, os.Args[0], dir, 0)
	if err != nil {
		return nil, err
	}
	defer up.Stop()
	ready := time.Since(begun)
	idle := rss(up.PID)
	say("onboarding the data centre")
	s := &demo.Story{URL: up.URL, Token: up.Token, LabDir: up.Lab, WorkDir: dir, Out: io.Discard}
	if err := s.Prepare(ctx); err != nil {
		return nil, err
	}
	say(fmt.Sprintf("%d jobs through the whole system", jobs))
	if _, err := through(ctx, s, "warm", 50); err != nil {
		return nil, err
	}
	before := processorTime(up.PID)
	whole, err := through(ctx, s, "job", jobs)
	if err != nil {
		return nil, err
	}
	load, wholeTime := rss(up.PID), processorTime(up.PID)-before
	say(fmt.Sprintf("%d bare workflows", jobs))
	plain, plainTime, err := bare(ctx, filepath.Join(dir, "bare"))
	if err != nil {
		return nil, err
	}
	ratio, goal := whole/plain, 0.8
	holds := ratio >= goal
	out := []Figure{
		{Group: "system", Name: "jobs submitted to settled", Value: whole, Unit: "jobs/s", Peer: "bare workflows/s", PeerValue: &plain, Ratio: &ratio, Goal: &goal, Holds: &holds},
		{Group: "system", Name: "resident memory idle, with the lab", Value: idle, Unit: "MiB"},
		{Group: "system", Name: "resident memory after the load, with the lab", Value: load, Unit: "MiB"},
		{Group: "system", Name: "gpupool up to ready", Value: ready.Seconds(), Unit: "s"},
	}
	if wholeTime > 0 { // steadier than the rate where others use the machine too
		wholeTime, plainTime = wholeTime/jobs, plainTime/jobs
		timeRatio := plainTime / wholeTime
		out = append(out, Figure{Group: "system", Name: "processor time of a job, agents and their processes included", Value: wholeTime, Unit: "ms",
			Peer: "of a bare workflow, its client included", PeerValue: &plainTime, Ratio: &timeRatio})
	}
	return out, nil
}

// spread runs act for 0 to n-1, inHand at once, and stops at the first error.
func spread(ctx context.Context, n int, act func(context.Context, int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(inHand)
	for i := range n {
		g.Go(func() error { return act(ctx, i) })
	}
	return g.Wait()
}

// through submits n jobs and waits until all are settled.
func through(ctx context.Context, s *demo.Story, name string, n int) (rate float64, err error) {
	begun := time.Now()
	err = spread(ctx, n, func(ctx context.Context, i int) error {
		_, err := s.Submit(ctx, fmt.Sprintf("%s-%d", name, i), contract.NewJob{Project: "main", Spec: "h100x1", Command: []string{"true"}})
		return err
	})
	if err != nil {
		return 0, err
	}
	if err := s.Settled(ctx); err != nil {
		return 0, err
	}
	return float64(n) / time.Since(begun).Seconds(), nil
}

// bareJob is a workflow of RunJob's shape that does nothing: it says when it has come as far as a job that is
// dispatched, so that the second signal finds it waiting beside its timer, as a job's end does.
func (b *bench) bareJob(ctx workflow.Context) error {
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
	news := workflow.GetSignalChannel(ctx, "job")
	news.Receive(ctx, nil)
	if err := workflow.ExecuteLocalActivity(ctx, b.dispatched, workflow.GetInfo(ctx).WorkflowExecution.ID).Get(ctx, nil); err != nil {
		return err
	}
	timer, cancel := workflow.WithCancel(ctx)
	defer cancel()
	workflow.NewSelector(ctx).AddReceive(news, func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, nil) }).
		AddFuture(workflow.NewTimer(timer, 5*time.Minute), func(workflow.Future) {}).Select(ctx)
	return workflow.ExecuteLocalActivity(ctx, b.settled).Get(ctx, nil)
}

// bench hands each workflow's progress to the sender that waits for it.
type bench struct{ waiting sync.Map } // workflow id -> chan struct{}

func (b *bench) dispatched(_ context.Context, id string) error {
	if c, ok := b.waiting.LoadAndDelete(id); ok {
		close(c.(chan struct{}))
	}
	return nil
}

func (b *bench) settled(context.Context) error { return nil }

// bare gives workflows a second, and the processor's milliseconds for all of them.
func bare(ctx context.Context, dir string) (rate, took float64, err error) {
	quiet := slog.New(slog.DiscardHandler)
	srv, err := embedded.Start(ctx, embedded.Options{Dir: dir, Logger: quiet})
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		if e := srv.Stop(); err == nil {
			err = e
		}
	}()
	c, err := client.DialContext(ctx, client.Options{HostPort: srv.HostPort(), Namespace: "gpupool", Logger: sdklog.NewStructuredLogger(quiet),
		ConnectionOptions: client.ConnectionOptions{GrpcCompression: &client.GrpcCompressionNone{}}})
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	w := sdkworker.New(c, "bare", sdkworker.Options{MaxConcurrentWorkflowTaskPollers: 8})
	b := &bench{}
	w.RegisterWorkflow(b.bareJob)
	if err := w.Start(); err != nil {
		return 0, 0, err
	}
	defer w.Stop()
	run := func(n int) error {
		return spread(ctx, n, func(ctx context.Context, _ int) error { return b.one(ctx, c) })
	}
	if err := run(50); err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	before := processorTime(os.Getpid())
	if err := run(jobs); err != nil {
		return 0, 0, err
	}
	return jobs / time.Since(begun).Seconds(), processorTime(os.Getpid()) - before, nil
}

// one takes a workflow from its start to its end.
func (b *bench) one(ctx context.Context, c client.Client) error {
	id, dispatched := rand.Text(), make(chan struct{})
	b.waiting.Store(id, dispatched)
	r, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: id, TaskQueue: "bare", EnableEagerStart: true}, b.bareJob)
	if err != nil {
		return err
	}
	if err := c.SignalWorkflow(ctx, id, "", "job", nil); err != nil {
		return err
	}
	select {
	case <-dispatched:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := c.SignalWorkflow(ctx, id, "", "job", nil); err != nil {
		return err
	}
	return r.Get(ctx, nil)
}

// rss is a process's resident memory in MiB; 0 where the system doesn't tell.
func rss(pid int) float64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	for _, l := range strings.Split(string(b), "\n") {
		if f := strings.Fields(l); len(f) == 3 && f[0] == "VmRSS:" {
			kb, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				return 0
			}
			return kb / 1024
		}
	}
	return 0
}

// processorTime is what a process and those of its children that have ended used of the processor, in ms; 0 where the
// system doesn't tell. proc(5) gives it in ticks of 10 ms.
func processorTime(pid int) float64 {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest) // from field 3
	if len(f) < 15 {
		return 0
	}
	ticks := 0.0
	for _, v := range f[11:15] {
		n, err := strconv.ParseFloat(v, 64)
		if err != nil {
			return 0
		}
		ticks += n
	}
	return 10 * ticks
}
