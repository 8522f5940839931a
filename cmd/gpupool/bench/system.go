package bench

import (
	"context"
	"crypto/rand"
	"errors"
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
	"gpupool/deploy/lab"
	"gpupool/worker/embedded"
)

const (
	rounds = 5   // the whole system and the bare workflows take turns: what else the machine does meets both
	jobs   = 100 // of a round
	warm   = 50  // before the first
	inHand = 20  // at once: jobs being submitted, jobs running (the tenant's limit of H100), bare workflows under way
)

// system runs the demo's data centre in a process of its own, submits jobs over HTTP, and beside it as many bare workflows
// on a server of the same kind, with as many activities, as durable as a job is: start, signal, local activity, signal
// beside a timer, local activity. That is a job whose process starts when it is submitted. Both keep their state in files,
// with every commit flushed. The lean peer has one signal less, as RunJob has, whose process starts with its allocation: it
// is what Temporal alone would do in RunJob's place.
//
// The jobs come in two kinds. Those of the lab's own program are simulated, as the servers are that run them: a real
// server's agent starts processes and looks after them on processors of its own, and here they would be the pool's. Those
// of `true` are processes of this machine, as in the demo, so that what that costs is seen.
func system(ctx context.Context, say func(string)) (_ []Figure, err error) {
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
	b, err := startBare(ctx, filepath.Join(dir, "bare"))
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := b.stop(); err == nil {
			err = e
		}
	}()
	for _, k := range kinds {
		if _, err := through(ctx, s, "warm-"+k.command[0], k.command, warm); err != nil {
			return nil, err
		}
	}
	for _, lean := range []bool{false, true} {
		if _, err := b.through(ctx, lean, warm); err != nil {
			return nil, err
		}
	}
	var plain, lean share
	whole := make([]share, len(kinds))
	for i := range rounds {
		say(fmt.Sprintf("round %d of %d: %d bare workflows, as many lean ones, as many jobs of each kind", i+1, rounds, jobs))
		if err := plain.measure(os.Getpid(), func() (time.Duration, error) { return b.through(ctx, false, jobs) }); err != nil {
			return nil, err
		}
		if err := lean.measure(os.Getpid(), func() (time.Duration, error) { return b.through(ctx, true, jobs) }); err != nil {
			return nil, err
		}
		for n, k := range kinds {
			name := fmt.Sprintf("%s-%d", k.command[0], i)
			if err := whole[n].measure(up.PID, func() (time.Duration, error) { return through(ctx, s, name, k.command, jobs) }); err != nil {
				return nil, err
			}
		}
	}
	var out []Figure
	goal := 0.8
	plainRate, plainTime := plain.rate(), plain.processor/(rounds*jobs)
	leanRate := lean.rate()
	for n, k := range kinds {
		rate := whole[n].rate()
		ratio := rate / plainRate
		holds := ratio >= goal
		out = append(out, Figure{Group: "system", Name: "jobs submitted to settled, " + k.name, Value: rate, Unit: "jobs/s", Peer: "bare workflows/s", PeerValue: &plainRate, Ratio: &ratio, Goal: &goal, Holds: &holds})
		toLean := rate / leanRate
		out = append(out, Figure{Group: "system", Name: "the same", Value: rate, Unit: "jobs/s", Peer: "lean bare workflows/s", PeerValue: &leanRate, Ratio: &toLean})
	}
	for n, k := range kinds {
		if took := whole[n].processor / (rounds * jobs); took > 0 { // steadier than the rate where others use the machine too
			ratio := plainTime / took
			out = append(out, Figure{Group: "system", Name: "processor time of a job, agents included, " + k.name, Value: took, Unit: "ms", Peer: "of a bare workflow, its client included", PeerValue: &plainTime, Ratio: &ratio})
		}
	}
	return append(out,
		Figure{Group: "system", Name: "resident memory idle, with the lab", Value: idle, Unit: "MiB"},
		Figure{Group: "system", Name: "resident memory after the load, with the lab", Value: rss(up.PID), Unit: "MiB"},
		Figure{Group: "system", Name: "gpupool up to ready", Value: ready.Seconds(), Unit: "s"},
	), nil
}

var kinds = []struct {
	name    string
	command []string
}{
	{"run by simulated servers", []string{lab.Program, "0"}},
	{"each a process on this machine", []string{"true"}},
}

// share is what one side's rounds took.
type share struct {
	took      time.Duration
	processor float64 // ms
}

// measure adds a round that process pid works for.
func (s *share) measure(pid int, round func() (time.Duration, error)) error {
	before := processorTime(pid)
	took, err := round()
	s.took += took
	s.processor += processorTime(pid) - before
	return err
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

func (s share) rate() float64 { return rounds * jobs / s.took.Seconds() }

// through submits n jobs and waits until all are settled. It gives the time from the first submission to the last
// settlement as the record has it: who asks the API for it would measure how often they ask too.
func through(ctx context.Context, s *demo.Story, name string, command []string, n int) (time.Duration, error) {
	begun := time.Now()
	err := spread(ctx, n, func(ctx context.Context, i int) error {
		_, err := s.Submit(ctx, fmt.Sprintf("%s-%d", name, i), contract.NewJob{Project: "main", Spec: "h100x1", Command: command})
		return err
	})
	if err != nil {
		return 0, err
	}
	if err := s.Settled(ctx); err != nil {
		return 0, err
	}
	last, err := s.LastEnd(ctx, n)
	return last.Sub(begun), err
}

// bare runs workflows of RunJob's shape that do nothing, on an embedded server of its own.
type bare struct {
	server  *embedded.Server
	client  client.Client
	worker  sdkworker.Worker
	waiting sync.Map // workflow id -> chan struct{}, closed when it has come as far as a job that is dispatched
}

// run is the workflow. It says when it has come as far as a job that is dispatched, so that the second signal finds it
// waiting beside its timer, as a job's end does.
func (b *bare) run(ctx workflow.Context) error {
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
	news := workflow.GetSignalChannel(ctx, "job")
	news.Receive(ctx, nil)
	return b.rest(ctx, news)
}

// lean is run without the signal that says it is allocated.
func (b *bare) lean(ctx workflow.Context) error {
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
	return b.rest(ctx, workflow.GetSignalChannel(ctx, "job"))
}

// rest is a job from its dispatch.
func (b *bare) rest(ctx workflow.Context, news workflow.ReceiveChannel) error {
	if err := workflow.ExecuteLocalActivity(ctx, b.dispatched, workflow.GetInfo(ctx).WorkflowExecution.ID).Get(ctx, nil); err != nil {
		return err
	}
	timer, cancel := workflow.WithCancel(ctx)
	defer cancel()
	workflow.NewSelector(ctx).AddReceive(news, func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, nil) }).
		AddFuture(workflow.NewTimer(timer, 5*time.Minute), func(workflow.Future) {}).Select(ctx)
	return workflow.ExecuteLocalActivity(ctx, b.settled).Get(ctx, nil)
}

func (b *bare) dispatched(_ context.Context, id string) error {
	if c, ok := b.waiting.LoadAndDelete(id); ok {
		close(c.(chan struct{}))
	}
	return nil
}

func (b *bare) settled(context.Context) error { return nil }

func startBare(ctx context.Context, dir string) (_ *bare, err error) {
	quiet := slog.New(slog.DiscardHandler)
	b := &bare{}
	if b.server, err = embedded.Start(ctx, embedded.Options{Dir: dir, Logger: quiet}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.stop())
		}
	}()
	if b.client, err = client.DialContext(ctx, client.Options{HostPort: b.server.HostPort(), Namespace: "gpupool", Logger: sdklog.NewStructuredLogger(quiet),
		ConnectionOptions: client.ConnectionOptions{GrpcCompression: &client.GrpcCompressionNone{}}}); err != nil {
		return nil, err
	}
	w := sdkworker.New(b.client, "bare", sdkworker.Options{MaxConcurrentWorkflowTaskPollers: 8})
	w.RegisterWorkflow(b.run)
	w.RegisterWorkflow(b.lean)
	if err := w.Start(); err != nil {
		return nil, err
	}
	b.worker = w
	return b, nil
}

func (b *bare) stop() error {
	if b.worker != nil {
		b.worker.Stop()
	}
	if b.client != nil {
		b.client.Close()
	}
	return b.server.Stop()
}

// through runs n workflows to their end.
func (b *bare) through(ctx context.Context, lean bool, n int) (time.Duration, error) {
	begun := time.Now()
	err := spread(ctx, n, func(ctx context.Context, _ int) error { return b.one(ctx, lean) })
	return time.Since(begun), err
}

// one takes a workflow from its start to its end.
func (b *bare) one(ctx context.Context, lean bool) error {
	id, dispatched := rand.Text(), make(chan struct{})
	wf := b.run
	if lean {
		wf = b.lean
	}
	b.waiting.Store(id, dispatched)
	r, err := b.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: id, TaskQueue: "bare", EnableEagerStart: true}, wf)
	if err != nil {
		return err
	}
	if !lean {
		if err := b.client.SignalWorkflow(ctx, id, "", "job", nil); err != nil {
			return err
		}
	}
	select {
	case <-dispatched:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := b.client.SignalWorkflow(ctx, id, "", "job", nil); err != nil {
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
