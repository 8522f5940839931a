// Package clustertest is a pool around a connector for tests of backends: a real record, the activities of a job's
// process, and in the allocator's place the simplest one that keeps to the record's rules. Time is the wall's.
package clustertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"gpupool/activities/cluster"
	"gpupool/activities/job"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// Model is what all servers have.
const Model = "nvidia-h100-80gb"

// Pool is a pool whose servers are nodes of one cluster.
type Pool struct {
	T       testing.TB
	DB      *store.Store
	Cluster string
	Kind    schema.ClusterKind
	Servers map[string]schema.Server
	Gpus    int // a server

	LaunchTimeout time.Duration // 1 min
	Settle        time.Duration // after Chaos' last fault; 3 min

	epoch  int64
	acts   *job.Activities
	mu     sync.Mutex
	before map[string]int // accelerators to place on first, by job; see Prefer
}

// New makes servers of those names with gpus accelerators each, the specs x1, x2 and xAll, and tenant blue.
func New(t testing.TB, name string, kind schema.ClusterKind, servers []string, gpus int) *Pool {
	t.Helper()
	p := &Pool{T: t, DB: storetest.Open(t), Cluster: name, Kind: kind, Servers: map[string]schema.Server{}, Gpus: gpus, LaunchTimeout: time.Minute, Settle: 3 * time.Minute, before: map[string]int{}}
	for i, s := range servers {
		in := storetest.NewServer(i+1, Model, gpus)
		in.Name, in.Backend, in.Cluster = s, string(kind), name
		p.Servers[s] = storetest.AvailableAs(t, p.DB, in)
	}
	ctx := t.Context()
	for spec, n := range map[string]int{"x1": 1, "x2": 2, "xall": gpus} {
		_, err := p.DB.CreateSpec(ctx, "test", store.NewSpec{Name: spec, Model: Model, Accelerators: int64(n), CPUs: int64(n), MemoryBytes: int64(n) << 30})
		p.must(err)
	}
	_, err := p.DB.CreateTenant(ctx, "test", "blue", 100)
	p.must(err)
	_, err = p.DB.CreateProject(ctx, "test", "blue", "main")
	p.must(err)
	p.epoch, err = p.DB.TakeEpoch(ctx, "eu", "test")
	p.must(err)
	p.acts = &job.Activities{Store: p.DB}
	p.background("the pool", p.serve)
	return p
}

// background runs f until the test ends, or until stop is called.
func (p *Pool) background(what string, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f(ctx); err != nil && ctx.Err() == nil {
			p.T.Errorf("%s: %v", what, err)
		}
	}()
	stop = func() { cancel(); <-done }
	p.T.Cleanup(stop)
	return stop
}

// Connect runs a connector until the test ends, or until stop is called.
func (p *Pool) Connect(open func(context.Context) (cluster.Backend, error), timing cluster.Timing) (stop func()) {
	a := &cluster.Activities{Store: p.DB, Kind: p.Kind, Open: open, Timing: timing, Holder: "test", Log: slog.New(slog.NewTextHandler(output{p.T}, &slog.HandlerOptions{Level: slog.LevelInfo}))}
	return p.background("the connector", func(ctx context.Context) error {
		err := a.Run(ctx, p.Cluster)
		if schema.Is(err, schema.CodeStale) {
			return nil // another was connected
		}
		return err
	})
}

type output struct{ t testing.TB }

func (o output) Write(b []byte) (int, error) {
	o.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// Submit gives the pool a job; change may be nil.
func (p *Pool) Submit(spec string, nodes int, command string, change func(*store.NewJob)) schema.Job {
	p.T.Helper()
	in := store.NewJob{Tenant: "blue", Project: "main", Name: "test", Spec: spec, Nodes: nodes, Command: []string{"bash", "-c", command}, Grace: 2 * time.Second}
	if change != nil {
		change(&in)
	}
	j, _, err := p.DB.SubmitJob(context.Background(), "test", "", "", in)
	p.must(err)
	return j
}

// Job reads one.
func (p *Pool) Job(id string) schema.Job {
	p.T.Helper()
	j, err := p.DB.Job(context.Background(), id)
	p.must(err)
	return j
}

// Await waits until ok says so, and fails with what is known where it doesn't within a minute.
func (p *Pool) Await(what string, ok func() bool) {
	p.T.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			jobs, _ := p.DB.Jobs(context.Background(), store.JobFilter{Limit: 20})
			for _, j := range jobs {
				p.T.Logf("job %s %s attempt %d: %s %s", j.ID, j.State, j.Attempt, j.Cause, j.Reason)
			}
			for name, v := range p.Servers {
				cs, _ := p.DB.Cordons(context.Background(), v.ID)
				for _, c := range cs {
					if c.LiftedAt == 0 {
						p.T.Logf("server %s is cordoned by %s %s: %s", name, c.Owner, c.Accelerator, c.Reason)
					}
				}
			}
			p.T.Fatalf("not within a minute: %s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// AwaitState waits for a job's state.
func (p *Pool) AwaitState(id string, want schema.JobState) schema.Job {
	p.T.Helper()
	var j schema.Job
	p.Await(fmt.Sprintf("job %s is %s", id, want), func() bool {
		j = p.Job(id)
		if j.State != want && j.State.Ended() {
			p.T.Fatalf("job %s is %s, not %s: %s", id, j.State, want, j.Cause)
		}
		return j.State == want
	})
	return j
}

// Output is what a job's part has written.
func (p *Pool) Output(id string, rank int) string {
	p.T.Helper()
	pieces, err := p.DB.JobOutput(context.Background(), id, 0, rank, 0)
	p.must(err)
	var b strings.Builder
	for _, o := range pieces {
		b.WriteString(o.Output)
	}
	return b.String()
}

// Cordon is the reason of a live cordon of an owner on the whole server; empty = there is none.
func (p *Pool) Cordon(server string, owner schema.CordonOwner) string {
	p.T.Helper()
	cs, err := p.DB.Cordons(context.Background(), p.Servers[server].ID)
	p.must(err)
	for _, c := range cs {
		if c.LiftedAt == 0 && c.Accelerator == "" && c.Owner == owner {
			return c.Reason
		}
	}
	return ""
}

// Kept are the indices of a server's accelerators that are kept for other work.
func (p *Pool) Kept(server string) []int {
	p.T.Helper()
	nodes, err := p.DB.Nodes(context.Background(), []string{p.Servers[server].ID})
	p.must(err)
	var out []int
	for _, a := range nodes[0].Accelerators {
		for _, c := range nodes[0].Cordons {
			if c.Accelerator == a.ID {
				out = append(out, a.Index)
			}
		}
	}
	return out
}

// Held are the indices of the accelerators that a job holds on a server.
func (p *Pool) Held(id, server string) []int {
	p.T.Helper()
	allocs, err := p.DB.JobAllocations(context.Background(), id)
	p.must(err)
	accs, err := p.DB.Accelerators(context.Background(), store.AcceleratorFilter{Server: p.Servers[server].ID})
	p.must(err)
	var out []int
	for _, a := range accs {
		for _, al := range allocs {
			if al.Accelerator == a.ID && al.ReleasedAt == 0 {
				out = append(out, a.Index)
			}
		}
	}
	return out
}

// Drifts counts the drifts of a kind that were told.
func (p *Pool) Drifts(kind schema.ClusterDrift) int {
	p.T.Helper()
	events, _, err := p.DB.Events(context.Background(), 0, 10000, store.EventFilter{})
	p.must(err)
	n := 0
	for _, e := range events {
		if e.Kind == schema.EventClusterDrift && strings.Contains(string(e.Data), `"`+string(kind)+`"`) {
			n++
		}
	}
	return n
}

// Sums checks that the ledger has one row for each accelerator of each attempt, and that nothing is held any more.
func (p *Pool) Sums(jobs ...schema.Job) {
	p.T.Helper()
	for _, j := range jobs {
		j = p.Job(j.ID)
		rows, err := p.DB.Ledger(context.Background(), j.ID)
		p.must(err)
		if want := j.Attempt * j.Nodes * j.PerNode; len(rows) != want {
			p.T.Errorf("job %s: %d ledger rows for %d attempts of %d accelerators", j.ID, len(rows), j.Attempt, j.Nodes*j.PerNode)
		}
		allocs, err := p.DB.JobAllocations(context.Background(), j.ID)
		p.must(err)
		for _, a := range allocs {
			if a.ReleasedAt == 0 {
				p.T.Errorf("job %s is over and holds %s", j.ID, a.Accelerator)
			}
		}
	}
}

// From makes a job be placed on accelerators from that index upwards.
func (p *Pool) From(id string, index int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before[id] = index
}

// serve places queued jobs and follows live ones, as the allocator and the jobs' processes do.
func (p *Pool) serve(ctx context.Context) error {
	for ctx.Err() == nil {
		jobs, err := p.DB.Jobs(ctx, store.JobFilter{Live: true, Limit: 1000, Oldest: true})
		for _, j := range jobs {
			if err != nil {
				break
			}
			in := job.FollowInput{Job: j.ID, Attempt: j.Attempt, LaunchTimeout: p.LaunchTimeout, ReleaseMargin: 20 * time.Second}
			if j.State == schema.JobQueued {
				var placed bool
				if placed, err = p.place(ctx, j); placed && err == nil {
					in.Attempt++
					_, err = p.acts.Dispatch(ctx, in)
				}
				continue
			}
			_, err = p.acts.Follow(ctx, in)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func (p *Pool) place(ctx context.Context, j schema.Job) (bool, error) {
	if j.Held {
		return false, nil
	}
	ids, err := p.DB.RegionServers(ctx, "eu")
	if err != nil {
		return false, err
	}
	nodes, err := p.DB.Nodes(ctx, ids)
	if err != nil {
		return false, err
	}
	live, err := p.DB.LiveAttempts(ctx, "eu")
	if err != nil {
		return false, err
	}
	taken := map[string]bool{}
	for _, l := range live {
		for _, pl := range l.Places {
			for _, a := range pl.Accelerators {
				taken[a] = true
			}
		}
	}
	p.mu.Lock()
	from := p.before[j.ID]
	p.mu.Unlock()
	st := store.Start{Job: j.ID, Attempt: j.Attempt + 1}
	for _, n := range nodes {
		for _, c := range n.Cordons {
			if c.Accelerator != "" {
				taken[c.Accelerator] = true
			} else {
				taken[n.Server.ID] = true
			}
		}
		if taken[n.Server.ID] || len(st.Places) == j.Nodes {
			continue
		}
		pl := store.Place{Server: n.Server.ID}
		for _, a := range n.Accelerators {
			if !taken[a.ID] && a.Index >= from && len(pl.Accelerators) < j.PerNode {
				pl.Accelerators = append(pl.Accelerators, a.ID)
			}
		}
		if len(pl.Accelerators) == j.PerNode {
			st.Places = append(st.Places, pl)
		}
	}
	if len(st.Places) < j.Nodes {
		return false, nil
	}
	refused, err := p.DB.CommitCycle(ctx, "eu", p.epoch, store.Cycle{Starts: []store.Start{st}})
	return err == nil && len(refused) == 0, err
}

func (p *Pool) must(err error) {
	p.T.Helper()
	if err != nil && !errors.Is(err, context.Canceled) {
		p.T.Fatal(err)
	}
}
