package demo_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/cmd/gpupool/demo"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// TestTheStoryEndsTheSameInRolesOfTheirOwnWhicheverIsKilled tells the demo's story to a pool in production's shape: two API
// processes behind a balancer, two workers, two allocators, a boot service, on PostgreSQL and a Temporal server apart.
// Each kind of process is killed with SIGKILL in the middle of what it does; the allocator that serves is also
// stopped for so long that the other takes over, and goes on unaware. The story's checks and the record are the oracle.
func TestTheStoryEndsTheSameInRolesOfTheirOwnWhicheverIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a minute")
	}
	database := storetest.Database(t, storetest.Postgres(t)) // skips where there is no PostgreSQL
	begun := time.Now()
	c := startCluster(t, database)
	t.Logf("all processes are ready after %s", time.Since(begun).Round(time.Millisecond))
	token := c.procs["api-1"].Token + c.procs["api-2"].Token
	if (c.procs["api-1"].Token == "") == (c.procs["api-2"].Token == "") {
		t.Fatalf("the two API processes that started at once made these first tokens: %q and %q", c.procs["api-1"].Token, c.procs["api-2"].Token)
	}
	for name := range c.procs {
		if i, err := os.Stat(filepath.Join(c.dir, name)); err != nil || i.Mode().Perm() != 0o700 {
			t.Fatalf("the folder of %s: %v, %v; want mode 700", name, i, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	db, err := store.Open(ctx, store.Config{Driver: "postgres", DSN: database, MaxConnections: 4})
	must(t, err)
	defer db.Close()
	anEventReachesAnotherProcess(ctx, t, c, token)

	story := &demo.Story{URL: c.url, Token: token, LabDir: filepath.Join(c.dir, "lab"), WorkDir: c.dir, Out: testLog{t}, Retry: true}
	var (
		wg      sync.WaitGroup
		killing error
		checks  []demo.Check
	)
	wg.Go(func() {
		if killing = c.disturb(ctx, t, db, database); killing != nil {
			cancel()
		}
	})
	checks, err = story.Tell(ctx)
	if err != nil {
		cancel()
	}
	wg.Wait()
	if killing != nil || err != nil {
		t.Fatal(errors.Join(killing, err))
	}
	for _, k := range checks {
		if !k.True {
			t.Errorf("%s: %s", k.What, k.Seen)
		}
	}
	if len(checks) < 12 {
		t.Fatalf("only %d checks were made", len(checks))
	}
	// One more job: the story's own may all have had their place before the last allocator took over.
	last, err := story.Submit(ctx, "last", contract.NewJob{Project: "main", Spec: "h100x1", Command: []string{"true"}})
	must(t, err)
	up := &demo.Up{}
	up.URL, up.Token = c.url, token
	for end := time.Now().Add(2 * time.Minute); !last.State.Ended(); {
		if time.Now().After(end) {
			t.Fatalf("the last job is %s after two minutes", last.State)
		}
		now, err := ask(ctx, up, http.MethodGet, "/v1/jobs/"+last.Id+"?wait=20s", nil)
		must(t, err)
		must(t, json.Unmarshal(now, &last))
	}
	checkPool(t, db, 3)
	t.Logf("the story was told and checked after %s", time.Since(begun).Round(time.Second))
}

// disturb kills each kind of process in the middle of its work, and starts it again.
func (c *cluster) disturb(ctx context.Context, t testing.TB, db *store.Store, database string) error {
	for _, d := range []struct {
		when string
		is   func() (bool, error)
		do   func() error
	}{
		{"a server has asked for its boot: SIGKILL of pxe", func() (bool, error) {
			seen, _, err := db.Events(ctx, 0, 1, store.EventFilter{Kinds: []schema.EventKind{schema.EventBoot}})
			return len(seen) > 0, err
		}, c.procs["pxe"].again},
		{"servers are at their drivers: SIGKILL of worker-1", func() (bool, error) {
			return anyServer(ctx, db, func(v schema.Server) bool { return v.Phase == schema.PhaseOnboarding && v.Step == schema.StepDrivers })
		}, c.procs["worker-1"].again},
		{"jobs run: SIGKILL of api-1", func() (bool, error) { return running(ctx, db) }, c.procs["api-1"].again},
		{"jobs run: SIGKILL of Temporal", func() (bool, error) { return running(ctx, db) }, c.procs["temporal"].again},
		{"a repair is being proven: SIGKILL of worker-2 and api-2", func() (bool, error) {
			all, err := db.Repairs(ctx, store.RepairFilter{})
			return slices.ContainsFunc(all, func(r schema.Repair) bool {
				return r.State == schema.RepairVerifying || r.State == schema.RepairReturned
			}), err
		}, func() error { return errors.Join(c.procs["worker-2"].again(), c.procs["api-2"].again()) }},
		{"the job that lost its GPU runs again: the allocator stands still, and its successor is killed", func() (bool, error) {
			jobs, err := db.Jobs(ctx, store.JobFilter{Limit: 1000})
			return slices.ContainsFunc(jobs, func(j schema.Job) bool { return j.Attempt > 1 && j.State == schema.JobRunning }), err
		}, func() error { return c.twoAllocators(ctx, t, database) }},
	} {
		if err := when(ctx, d.is); err != nil {
			return fmt.Errorf("%s: %w", d.when, err)
		}
		t.Log(d.when)
		if err := d.do(); err != nil {
			return fmt.Errorf("%s: %w", d.when, err)
		}
	}
	return nil
}

// when waits until is says so.
func when(ctx context.Context, is func() (bool, error)) error {
	for {
		ok, err := is()
		if err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func anyServer(ctx context.Context, db *store.Store, is func(schema.Server) bool) (bool, error) {
	all, err := db.Servers(ctx, store.ServerFilter{})
	return slices.ContainsFunc(all, is), err
}

func running(ctx context.Context, db *store.Store) (bool, error) {
	jobs, err := db.Jobs(ctx, store.JobFilter{Live: true, Limit: 1000})
	return slices.ContainsFunc(jobs, func(j schema.Job) bool { return j.State == schema.JobRunning }), err
}

// twoAllocators stops the one that serves until the other has taken over, lets it go on as if nothing had been, and kills
// the other.
func (c *cluster) twoAllocators(ctx context.Context, t testing.TB, database string) error {
	conn, err := pgx.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	serves := func() (p *proc, epoch int64, err error) {
		var holder string
		if err := conn.QueryRow(ctx, "SELECT epoch, holder FROM allocator_epochs WHERE region = 'eu-north'").Scan(&epoch, &holder); err != nil {
			return nil, 0, err
		}
		for _, name := range []string{"allocator-1", "allocator-2"} {
			if strings.Contains(holder+"/", "/"+strconv.Itoa(c.procs[name].cmd.Process.Pid)+"/") {
				return c.procs[name], epoch, nil
			}
		}
		return nil, 0, fmt.Errorf("epoch %d is held by %q, which is neither allocator", epoch, holder)
	}
	first, epoch, err := serves()
	if err != nil {
		return err
	}
	if err := first.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	var second *proc
	moved := func() (bool, error) {
		p, now, err := serves()
		second = p
		return now > epoch, err
	}
	if err := when(ctx, moved); err != nil {
		return fmt.Errorf("the other allocator did not take over: %w", err)
	}
	if second == first {
		return errors.New("an allocator that stands still took the epoch")
	}
	t.Logf("%s stood still at epoch %d, %s took over", first.name, epoch, second.name)
	if err := first.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	_, epoch, err = serves()
	if err != nil {
		return err
	}
	second.kill()
	if err := when(ctx, moved); err != nil {
		return fmt.Errorf("no allocator took over from the one that was killed: %w", err)
	}
	t.Logf("%s serves again", second.name)
	other := c.procs["allocator-1"]
	if second == other {
		other = c.procs["allocator-2"]
	}
	return other.again()
}

// anEventReachesAnotherProcess follows the events at one API process while the other one makes them. A stream that is not
// woken says that it lives first.
func anEventReachesAnotherProcess(ctx context.Context, t testing.TB, c *cluster, token string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, listens(c.procs["api-1"])+"/v1/events?tail=true", nil)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultClient.Do(req)
	must(t, call.Check(resp, err))
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), ": open") {
		t.Fatalf("the stream begins with %q", lines.Text())
	}
	other := &demo.Up{}
	other.URL, other.Token = listens(c.procs["api-2"]), token
	_, err = ask(ctx, other, http.MethodPost, "/v1/tenants", contract.NewTenant{Name: "elsewhere", MaxPriority: 1})
	must(t, err)
	for lines.Scan() {
		switch {
		case strings.HasPrefix(lines.Text(), ": alive"):
			t.Fatal("an event of another process did not wake the stream")
		case strings.Contains(lines.Text(), "elsewhere"):
			return
		}
	}
	t.Fatalf("the stream ended: %v", lines.Err())
}

// listens is a process's own address, not the balancer's.
func listens(p *proc) string {
	for _, a := range p.args {
		if v, ok := strings.CutPrefix(a, "api.listen="); ok {
			return "http://" + v
		}
	}
	return ""
}

// checkPool is what must be true of a pool's record when all is over, whatever happened; the region's allocator served in at least so many epochs.
func checkPool(t testing.TB, db *store.Store, least int64) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	jobs, err := db.Jobs(ctx, store.JobFilter{Limit: 1000})
	must(t, err)
	if len(jobs) == 0 {
		t.Fatal("no job is in the record")
	}
	ends, epochs := map[string]int{}, []int64{}
	for after := int64(0); ; {
		events, next, err := db.Events(ctx, after, 1000, store.EventFilter{Kinds: []schema.EventKind{schema.EventJobState, schema.EventJobAllocated}})
		must(t, err)
		for _, e := range events {
			var d struct {
				To      schema.JobState `json:"to"`
				Attempt int             `json:"attempt"`
			}
			must(t, json.Unmarshal(e.Data, &d))
			if e.Kind == schema.EventJobState {
				if d.To.Ended() {
					ends[e.Job]++
				}
				continue
			}
			attempts, err := db.Attempts(ctx, e.Job)
			must(t, err)
			epochs = append(epochs, attempts[d.Attempt-1].Epoch)
		}
		if len(events) < 1000 {
			break
		}
		after = next
	}
	// Events are numbered in the order of commit: an earlier holder that committed after a later one would show.
	if !slices.IsSorted(epochs) || epochs[len(epochs)-1] < least {
		t.Errorf("allocations were committed under the epochs %v, want them to rise to %d at least", epochs, least)
	}
	held := map[string][]schema.Allocation{}
	for _, j := range jobs {
		if ends[j.ID] != 1 || !j.State.Ended() {
			t.Errorf("%s is %s and ended %d times", j.Name, j.State, ends[j.ID])
		}
		allocations, err := db.JobAllocations(ctx, j.ID)
		must(t, err)
		rows, err := db.Ledger(ctx, j.ID)
		must(t, err)
		attempts, err := db.Attempts(ctx, j.ID)
		must(t, err)
		lost := slices.ContainsFunc(attempts, func(a schema.Attempt) bool {
			return a.Outcome == schema.AttemptLost || a.Outcome == schema.AttemptUnstarted
		})
		var ran, billed int64
		for _, a := range allocations {
			if a.ReleasedAt == 0 {
				t.Errorf("%s still holds %s", j.Name, a.Accelerator)
			}
			ran += int64(a.ReleasedAt - a.AllocatedAt)
			held[a.Accelerator] = append(held[a.Accelerator], a)
		}
		intervals := 0
		for _, r := range rows {
			switch r.Kind {
			case schema.LedgerUsage:
				billed += r.Milliseconds()
				intervals++
			case schema.LedgerCredit, schema.LedgerAdjustment:
				if !lost {
					t.Errorf("%s lost no attempt to hardware, its ledger has %+v", j.Name, r)
				}
			}
		}
		if ran != billed || intervals != len(allocations) {
			t.Errorf("%s held its accelerators for %d ms in %d allocations, its ledger has %d ms in %d rows", j.Name, ran, len(allocations), billed, intervals)
		}
	}
	checkNeverTwice(t, held)
}

// checkNeverTwice takes each accelerator's allocations.
func checkNeverTwice(t testing.TB, held map[string][]schema.Allocation) {
	t.Helper()
	for id, v := range held {
		slices.SortFunc(v, func(a, b schema.Allocation) int { return int(a.AllocatedAt - b.AllocatedAt) })
		for i := 1; i < len(v); i++ {
			if v[i].AllocatedAt < v[i-1].ReleasedAt {
				t.Fatalf("accelerator %s is in two allocations at once: %+v and %+v", id, v[i-1], v[i])
			}
		}
	}
}
