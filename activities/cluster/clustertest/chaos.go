package clustertest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/store"
)

// ChaosEnv is for how many seconds Chaos goes on; SeedEnv which faults it makes, and is different each time where it is not set.
const (
	ChaosEnv = "GPUPOOL_CHAOS_SECONDS"
	SeedEnv  = "GPUPOOL_CHAOS_SEED"
)

// Fault is something that is broken and mended again.
type Fault struct {
	Name  string
	Break func()
	Mend  func()
}

// Chaos breaks one thing after the other at random under a load of jobs, as long as the environment says, and then demands
// that nothing is lost, nothing ran twice, nothing is held, and the ledger sums. left tells what the cluster still has of the
// pool. Servers that were kept because an end could not be confirmed are given back by the test, as a person does who looked;
// person does what else a person has to in the cluster.
func (p *Pool) Chaos(faults []Fault, person func(), left func(context.Context) ([]string, error)) {
	t := p.T
	t.Helper()
	seconds, err := strconv.Atoi(os.Getenv(ChaosEnv))
	if err != nil || seconds <= 0 {
		t.Skip("it takes as many seconds as " + ChaosEnv + " says: make chaos")
	}
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	book := filepath.Join(t.TempDir(), "runs")
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(SeedEnv); text != "" {
		seed, err = strconv.ParseUint(text, 10, 64)
		p.must(err)
	}
	r, load := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1)) // how many jobs there are is not the seed's to say
	t.Logf("%d seconds of it, with seed %d", seconds, seed)
	var jobs []schema.Job
	want := map[string]schema.JobState{}
	submit := func() {
		// Each run of each part writes one line, in one write.
		command, state, nodes := `echo "$GPUPOOL_JOB/$GPUPOOL_ATTEMPT/$GPUPOOL_RANK" >> "$BOOK"; `, schema.JobCompleted, 1
		switch load.IntN(6) {
		case 0:
			command, state = command+"exit 3", schema.JobFailed
		case 1:
			nodes = min(2, len(p.Servers))
			fallthrough
		case 2, 3:
			command += fmt.Sprintf("sleep %d", 1+load.IntN(4))
		default:
			command += "true"
		}
		j := p.Submit("x1", nodes, command, func(n *store.NewJob) {
			many := 1000
			n.Env, n.RequeueLimit = map[string]string{"BOOK": book}, &many
		})
		jobs, want[j.ID] = append(jobs, j), state
	}
	live := func() []schema.Job {
		list, err := p.DB.Jobs(t.Context(), store.JobFilter{Live: true, Limit: 1000})
		p.must(err)
		return list
	}
	pause := func(d time.Duration) {
		for until := time.Now().Add(d); time.Now().Before(until); {
			if len(live()) < 12 {
				submit()
			}
			p.release(t)
			person()
			<-time.After(200 * time.Millisecond)
		}
	}
	broken := map[string]int{}
	for time.Now().Before(end) {
		pause(time.Duration(1+r.IntN(4)) * time.Second)
		f := faults[r.IntN(len(faults))]
		broken[f.Name]++
		f.Break()
		pause(time.Duration(1+r.IntN(8)) * time.Second)
		p.reasons(live())
		f.Mend()
	}
	deadline := time.Now().Add(p.Settle)
	for len(live()) > 0 {
		if time.Now().After(deadline) {
			for _, j := range live() {
				t.Errorf("job %s is %s in attempt %d %v after the last fault: %s %s", j.ID, j.State, j.Attempt, p.Settle, j.Cause, j.Reason)
				p.story(j.ID)
			}
			t.FailNow()
		}
		p.release(t)
		person()
		<-time.After(200 * time.Millisecond)
	}
	b, err := os.ReadFile(book)
	p.must(err)
	ran := map[string]int{}
	for line := range strings.Lines(string(b)) {
		ran[strings.TrimSpace(line)]++
	}
	for run, n := range ran {
		if n != 1 {
			t.Errorf("%s ran %d times", run, n)
			id, _, _ := strings.Cut(run, "/")
			p.story(id)
		}
	}
	attempts := 0
	for _, j := range jobs {
		j = p.Job(j.ID)
		attempts += j.Attempt
		if j.State != want[j.ID] {
			t.Errorf("job %s is %s after attempt %d, want %s: %s", j.ID, j.State, j.Attempt, want[j.ID], j.Cause)
			p.story(j.ID)
		}
		for rank := range j.Nodes {
			if ran[fmt.Sprintf("%s/%d/%d", j.ID, j.Attempt, rank)] != 1 {
				t.Errorf("job %s ended as %s, and rank %d of its attempt %d never ran", j.ID, j.State, rank, j.Attempt)
			}
		}
		p.Sums(j)
	}
	p.Await("the cluster has nothing of the pool's any more", func() bool {
		has, err := left(t.Context())
		return err == nil && len(has) == 0
	})
	t.Logf("%d jobs in %d attempts, %d runs of parts; broken: %v", len(jobs), attempts, len(ran), broken)
	if len(jobs) < seconds/10 {
		t.Errorf("%d jobs in %d seconds are no load", len(jobs), seconds)
	}
}

// story logs what the record says of a job.
func (p *Pool) story(id string) {
	p.T.Helper()
	events, _, err := p.DB.Events(context.Background(), 0, 1000, store.EventFilter{Job: id})
	p.must(err)
	for _, e := range events {
		p.T.Logf("%s %s %s %s", e.At.Time().Format(time.TimeOnly), e.Kind, e.By, e.Data)
	}
	runs, err := p.DB.ClusterRuns(context.Background(), id)
	p.must(err)
	for _, r := range runs {
		p.T.Logf("attempt %d was %s, submitted at %s, ended as %s", r.Attempt, r.Native, r.SubmittedAt.Time().Format(time.TimeOnly), r.NativeState)
	}
}

// release gives back servers that were kept because an end could not be confirmed, once no process of a job of the pool is left
// on this machine that is not live in the record: what a person makes sure of.
func (p *Pool) release(t testing.TB) {
	t.Helper()
	for name, v := range p.Servers {
		if p.Cordon(name, schema.CordonRelease) == "" || p.strays() {
			continue
		}
		p.must(p.DB.Uncordon(context.Background(), v.ID, "", schema.CordonRelease, "test"))
	}
}

// strays reports whether a process runs for an attempt that is over in the record.
func (p *Pool) strays() bool {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		env := map[string]string{}
		for v := range bytes.SplitSeq(b, []byte{0}) {
			name, value, _ := strings.Cut(string(v), "=")
			env[name] = value
		}
		attempt, err := strconv.Atoi(env["GPUPOOL_ATTEMPT"])
		if err != nil {
			continue
		}
		j, err := p.DB.Job(context.Background(), env["GPUPOOL_JOB"])
		if err == nil && (j.Attempt != attempt || j.State.Ended() || j.State == schema.JobQueued) {
			return true
		}
	}
	return false
}

// reasons demands that what waits to be begun on a cluster that is down says so.
func (p *Pool) reasons(live []schema.Job) {
	p.T.Helper()
	cl, err := p.DB.Cluster(context.Background(), p.Cluster)
	p.must(err)
	for _, j := range live {
		j = p.Job(j.ID)
		if j.State != schema.JobStarting {
			continue
		}
		if j.Reason == "" {
			p.T.Errorf("job %s waits to be begun and has no reason", j.ID)
		}
		again, err := p.DB.Cluster(context.Background(), p.Cluster)
		p.must(err)
		down := cl.DownSince != 0 && again.DownSince == cl.DownSince
		if down && !(strings.Contains(j.Reason, `"backend_down":true`) && strings.Contains(j.Reason, p.Cluster)) && p.Job(j.ID).State == schema.JobStarting {
			p.T.Errorf("cluster %s is down, and job %s waits because %s", p.Cluster, j.ID, j.Reason)
		}
	}
}
