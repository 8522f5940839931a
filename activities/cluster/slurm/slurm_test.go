package slurm_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/activities/cluster"
	"gpupool/activities/cluster/clustertest"
	"gpupool/activities/cluster/slurm"
	"gpupool/activities/cluster/slurm/slurmtest"
	"gpupool/schema"
	"gpupool/schema/store"
)

var quick = cluster.Timing{Poll: 200 * time.Millisecond, Down: 2 * time.Second, Adopt: 2 * time.Second}

func config(c *slurmtest.Cluster) slurm.Config {
	return slurm.Config{URL: c.URL, KeyFile: c.KeyFile, User: c.User, Conf: c.Conf, Partition: "pool", LogDir: c.LogDir}
}

func open(cfg slurm.Config) func(context.Context) (cluster.Backend, error) {
	return func(context.Context) (cluster.Backend, error) { return slurm.Open(cfg) }
}

// One cluster for the cases that leave it as they found it: a start takes seconds.
func TestJobsOnARealSlurm(t *testing.T) {
	c := slurmtest.Start(t, []string{"h1", "h2"}, nil, 8)
	for _, way := range []string{"slurmrestd", "command line"} {
		cfg := config(c)
		if way == "command line" {
			cfg.URL, cfg.KeyFile = "", ""
		}
		t.Run(way, func(t *testing.T) {
			p := clustertest.New(t, "pool", schema.ClusterSlurm, []string{"h1", "h2"}, 8)
			p.Connect(open(cfg), quick)
			cases(t, p, c, cfg)
		})
	}
}

func cases(t *testing.T, p *clustertest.Pool, c *slurmtest.Cluster, cfg slurm.Config) {
	t.Run("a job sees its volumes, read-only unless it asks, and begins in its folder", func(t *testing.T) {
		dir, err := os.MkdirTemp("/srv", "gpupool-volume-") // no volume is seen in /tmp
		if err != nil {
			t.Skip(err)
		}
		defer os.RemoveAll(dir)
		for path, text := range map[string]string{"set/f": "hello", "out/": "", "elsewhere/secret": "no"} {
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(path+".")), 0o777), os.Chmod(filepath.Join(dir, filepath.Dir(path+".")), 0o777)); err != nil {
				t.Fatal(err)
			}
			if text != "" {
				if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := errors.Join(os.Chmod(dir, 0o755), os.Symlink("../elsewhere", filepath.Join(dir, "set/away"))); err != nil {
			t.Fatal(err)
		}
		set, out := filepath.Join(dir, "set"), filepath.Join(dir, "out")
		for _, v := range []store.NewVolume{{Name: "set", Path: set}, {Name: "out", Path: out, Writable: true, User: 20001}} {
			if _, err := p.DB.CreateVolume(t.Context(), "test", v); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.DB.DeleteVolume(t.Context(), "test", v.Name); err != nil {
					t.Error(err)
				}
			}()
		}
		j := p.Submit("x1", 1, `pwd; cat f; echo x >g && echo written; echo y >"$OUT/g" && cat "$OUT/g"; id -u`, func(n *store.NewJob) {
			n.WorkDir, n.Env = set, map[string]string{"OUT": out}
			n.Mounts = []schema.Mount{{Volume: "set", Target: set}, {Volume: "out", Target: out, Write: true}}
		})
		p.AwaitState(j.ID, schema.JobCompleted)
		if got := p.Output(j.ID, 0); !strings.HasPrefix(got, set+"\nhello") || strings.Contains(got, "written") || !strings.Contains(got, "ead-only file system") || !strings.Contains(got, "y\n") {
			t.Errorf("it wrote %q", got)
		}
		j = p.Submit("x1", 1, "cat "+set+"/away/secret", func(n *store.NewJob) {
			n.Mounts = []schema.Mount{{Volume: "set", Path: "away", Target: set + "/away"}}
		})
		if j = p.AwaitState(j.ID, schema.JobFailed); j.ExitCode == nil || *j.ExitCode != 125 || !strings.Contains(p.Output(j.ID, 0), "is not in volume") {
			t.Errorf("a link that leads out: %v %s, output %q", j.ExitCode, j.Cause, p.Output(j.ID, 0))
		}
	})
	t.Run("a job runs, its output and exit code come back", func(t *testing.T) {
		j := p.Submit("x2", 1, `echo "$GREETING $GPUPOOL_RANK of $GPUPOOL_NODES on $CUDA_VISIBLE_DEVICES"; exit 7`, func(n *store.NewJob) { n.Env = map[string]string{"GREETING": "it's 'me'"} })
		j = p.AwaitState(j.ID, schema.JobFailed)
		if j.ExitCode == nil || *j.ExitCode != 7 {
			t.Errorf("exit code %v, want 7", j.ExitCode)
		}
		if out := p.Output(j.ID, 0); !strings.HasPrefix(out, "it's 'me' 0 of 1 on ") || len(strings.Split(out, ",")) != 2 {
			t.Errorf("output %q", out)
		}
		p.Sums(j)
	})
	t.Run("a gang runs once on each of its nodes", func(t *testing.T) {
		j := p.Submit("xall", 2, `echo "$GPUPOOL_RANK $SLURMD_NODENAME $GPUPOOL_PEERS"`, nil)
		j = p.AwaitState(j.ID, schema.JobCompleted)
		for rank, want := range []string{"0 h1 h1,h2\n", "1 h2 h1,h2\n"} {
			if out := p.Output(j.ID, rank); out != want {
				t.Errorf("rank %d wrote %q, want %q", rank, out, want)
			}
		}
		p.Sums(j)
	})
	t.Run("a gang's exit code is that of the node that failed first", func(t *testing.T) {
		for what, want := range map[string]int{"exit 3": 3, "kill -SEGV $$": 139} {
			j := p.Submit("xall", 2, `[ "$GPUPOOL_RANK" = 1 ] || exec sleep 300; `+what, nil)
			j = p.AwaitState(j.ID, schema.JobFailed)
			if j.ExitCode == nil || *j.ExitCode != want {
				t.Errorf("%s: exit code %v, want %d", what, *j.ExitCode, want)
			}
			p.Sums(j)
		}
	})
	t.Run("a cancelled gang ends with time to tidy up", func(t *testing.T) {
		j := p.Submit("xall", 2, `trap 'echo tidy; exit 0' TERM; echo up; while :; do sleep 0.1; done`, nil)
		p.Await("both run", func() bool {
			return strings.Contains(p.Output(j.ID, 0), "up") && strings.Contains(p.Output(j.ID, 1), "up")
		})
		if err := p.DB.RequestStop(t.Context(), j.ID, 0, schema.AttemptCancelled, "somebody", ""); err != nil {
			t.Fatal(err)
		}
		p.AwaitState(j.ID, schema.JobCancelled)
		for rank := range 2 {
			if out := p.Output(j.ID, rank); !strings.Contains(out, "tidy") {
				t.Errorf("rank %d was not asked to end: %q", rank, out)
			}
		}
		p.Sums(j)
	})
	t.Run("a cancelled job ends with time to tidy up", func(t *testing.T) {
		j := p.Submit("x1", 1, `trap 'echo tidy; exit 0' TERM; echo up; while :; do sleep 0.1; done`, nil)
		p.Await("it runs", func() bool { return strings.Contains(p.Output(j.ID, 0), "up") })
		if err := p.DB.RequestStop(t.Context(), j.ID, 0, schema.AttemptCancelled, "somebody", ""); err != nil {
			t.Fatal(err)
		}
		p.AwaitState(j.ID, schema.JobCancelled)
		if out := p.Output(j.ID, 0); !strings.Contains(out, "tidy") {
			t.Errorf("it was not asked to end: %q", out)
		}
		p.Sums(j)
	})
	t.Run("one that ignores the asking is killed after its grace", func(t *testing.T) {
		j := p.Submit("x1", 1, `trap '' TERM; echo up; while :; do sleep 0.1; done`, nil)
		p.Await("it runs", func() bool { return strings.Contains(p.Output(j.ID, 0), "up") })
		if err := p.DB.RequestStop(t.Context(), j.ID, 0, schema.AttemptCancelled, "somebody", ""); err != nil {
			t.Fatal(err)
		}
		p.AwaitState(j.ID, schema.JobCancelled)
		if why := p.Cordon("h1", schema.CordonRelease); why != "" {
			t.Errorf("its end was confirmed, but the server is cordoned: %s", why)
		}
	})
	t.Run("what Slurm binds is what the record says", func(t *testing.T) {
		j := p.Submit("x2", 1, `sleep 300`, func(n *store.NewJob) { n.Held = true })
		p.From(j.ID, 5) // the pool says 5 and 6; Slurm takes the first that are free
		if err := p.DB.UnholdJob(t.Context(), j.ID, "test"); err != nil {
			t.Fatal(err)
		}
		p.AwaitState(j.ID, schema.JobRunning)
		p.Await("the record has what was bound", func() bool { return slices.Equal(p.Held(j.ID, "h1"), []int{0, 1}) })
		if n := p.Drifts(schema.DriftDevices); n == 0 {
			t.Error("nobody was told")
		}
		// The next one is told 0 and 1 are taken: it gets others, in the record and in Slurm.
		k := p.Submit("x1", 1, `sleep 300`, nil)
		p.AwaitState(k.ID, schema.JobRunning)
		p.Await("they hold different ones", func() bool { return slices.Equal(p.Held(k.ID, "h1"), []int{2}) })
		for _, id := range []string{j.ID, k.ID} {
			if err := p.DB.RequestStop(t.Context(), id, 0, schema.AttemptCancelled, "test", ""); err != nil {
				t.Fatal(err)
			}
			p.AwaitState(id, schema.JobCancelled)
		}
		p.Sums(j, k)
	})
	t.Run("other people's jobs are seen and left alone", func(t *testing.T) {
		id := c.Must("sbatch", "--parsable", "--nodelist=h1", "--gres=gpu:6", "--output=/dev/null", "--wrap", "sleep 300")
		p.Await("six are kept", func() bool { return slices.Equal(p.Kept("h1"), []int{0, 1, 2, 3, 4, 5}) })
		j := p.Submit("xall", 1, `true`, nil)
		j = p.AwaitState(j.ID, schema.JobCompleted)
		if runs, err := p.DB.ClusterRuns(t.Context(), j.ID); err != nil || len(runs) != 1 {
			t.Errorf("runs %v (%v)", runs, err)
		}
		if p.Drifts(schema.DriftForeign) == 0 {
			t.Error("nobody was told of somebody's job")
		}
		if out := c.Must("squeue", "--noheader", "--jobs="+id, "--format=%T"); out != "RUNNING" {
			t.Errorf("somebody's job is %s", out)
		}
		c.Must("scancel", id)
		p.Await("none is kept", func() bool { return len(p.Kept("h1")) == 0 })
	})
	t.Run("a drain in Slurm is a cordon in the pool", func(t *testing.T) {
		c.Must("scontrol", "update", "nodename=h2", "state=drain", "reason=bad cable")
		p.Await("it is cordoned", func() bool { return strings.Contains(p.Cordon("h2", schema.CordonCluster), "bad cable") })
		if p.Drifts(schema.DriftDrained) == 0 {
			t.Error("nobody was told of the drain")
		}
		c.Must("scontrol", "update", "nodename=h2", "state=resume")
		p.Await("it is not any more", func() bool { return p.Cordon("h2", schema.CordonCluster) == "" })
	})
	t.Run("a cordon in the pool is a drain in Slurm, which comes back if it is lifted there", func(t *testing.T) {
		drained := func() bool {
			return strings.Contains(c.Must("sinfo", "--noheader", "--nodes=h2", "--Format=statecomplete,reason:100"), "gpupool: smoke")
		}
		if _, err := p.DB.Cordon(t.Context(), p.Servers["h2"].ID, "", schema.CordonOperator, "me", "smoke"); err != nil {
			t.Fatal(err)
		}
		p.Await("it is drained", drained)
		c.Must("scontrol", "update", "nodename=h2", "state=resume")
		p.Await("it is drained again", drained)
		if p.Drifts(schema.DriftUndrained) == 0 {
			t.Error("nobody was told")
		}
		if why := p.Cordon("h2", schema.CordonCluster); why != "" {
			t.Errorf("our own drain came back as a cordon: %s", why)
		}
		if err := p.DB.Uncordon(t.Context(), p.Servers["h2"].ID, "", schema.CordonOperator, "me"); err != nil {
			t.Fatal(err)
		}
		p.Await("it is a node like others", func() bool {
			return !strings.Contains(c.Must("sinfo", "--noheader", "--nodes=h2", "--Format=statecomplete"), "drain")
		})
	})
	t.Run("a node that has left is none, which shows, and one of the pool is brought back", func(t *testing.T) {
		b, err := open(cfg)(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		before := p.Drifts(schema.DriftMissing)
		if err := b.Leave(t.Context(), "h2"); err != nil {
			t.Fatal(err)
		}
		v, err := b.Observe(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, there := v.Nodes["h2"]; there {
			t.Errorf("it is still a node: %+v", v.Nodes["h2"])
		}
		p.Await("it is told", func() bool { return p.Drifts(schema.DriftMissing) > before })
		p.Await("it is back", func() bool {
			return p.Cordon("h2", schema.CordonCluster) == "" && !strings.Contains(c.Must("scontrol", "show", "node", "h2"), "FUTURE")
		})
	})
	t.Run("a run that is there twice is ended but for one, which never shares its accelerators", func(t *testing.T) {
		j := p.Submit("x1", 1, `sleep 300`, nil)
		p.AwaitState(j.ID, schema.JobRunning)
		again := c.Must("sbatch", "--parsable", "--comment=gpupool:gpupool:"+j.ID+":1", "--nodelist=h1", "--gres=gpu:1", "--output=/dev/null", "--wrap", "sleep 300")
		p.Await("the second is ended", func() bool {
			return !strings.Contains(c.Must("squeue", "--noheader", "--states=PD,R,CG", "--format=%i"), again)
		})
		if p.Drifts(schema.DriftDuplicate) == 0 {
			t.Error("nobody was told of the second")
		}
		if j := p.Job(j.ID); j.State != schema.JobRunning {
			t.Errorf("the job is %s: %s", j.State, j.Cause)
		}
		if err := p.DB.RequestStop(t.Context(), j.ID, 0, schema.AttemptCancelled, "test", ""); err != nil {
			t.Fatal(err)
		}
		p.AwaitState(j.ID, schema.JobCancelled)
		p.Sums(j)
	})
	t.Run("a run that nobody knows is ended after a while", func(t *testing.T) {
		id := c.Must("sbatch", "--parsable", "--comment=gpupool:gpupool:job_unknown:1", "--nodelist=h1", "--gres=gpu:1", "--output=/dev/null", "--wrap", "sleep 300")
		p.Await("it is ended", func() bool {
			return !strings.Contains(c.Must("squeue", "--noheader", "--states=PD,R,CG", "--format=%i"), id)
		})
		if p.Drifts(schema.DriftOrphan) == 0 {
			t.Error("nobody was told of it")
		}
	})
}

// A pool's jobs outlive the death of Slurm's controller, of slurmrestd and of the connector; what is down is named.
func TestSlurmMayBeAway(t *testing.T) {
	c := slurmtest.Start(t, []string{"h1", "h2"}, []string{"h3"}, 8)
	p := clustertest.New(t, "pool", schema.ClusterSlurm, []string{"h1", "h2", "h3"}, 8)
	stop := p.Connect(open(config(c)), quick)

	t.Run("a declared node joins", func(t *testing.T) {
		p.Await("slurmctld has it", func() bool {
			states := c.Must("sinfo", "--noheader", "--all", "--nodes=h3", "--Format=statecomplete")
			return states != "" && !strings.Contains(states, "future")
		})
		c.StartNode("h3")
		p.Await("it is used", func() bool { return p.Cordon("h3", schema.CordonCluster) == "" })
	})

	j := p.Submit("x1", 1, `echo up; sleep 8; exit 3`, nil)
	p.AwaitState(j.ID, schema.JobRunning)
	k := p.Submit("xall", 3, `true`, nil) // waits: a gang of all servers
	c.Saved()
	c.Kill("slurmctld")
	p.Await("its servers are kept out, with the cause", func() bool {
		return strings.Contains(p.Cordon("h2", schema.CordonCluster), "pool does not answer")
	})
	if j := p.Job(j.ID); j.State != schema.JobRunning {
		t.Fatalf("a lost connection is not a lost job, but it is %s: %s", j.State, j.Cause)
	}
	cl, err := p.DB.Cluster(t.Context(), "pool")
	if err != nil || cl.DownSince == 0 || cl.Why == "" {
		t.Fatalf("the cluster's record %+v (%v)", cl, err)
	}
	c.StartController()
	j = p.AwaitState(j.ID, schema.JobFailed)
	if j.ExitCode == nil || *j.ExitCode != 3 || j.Attempt != 1 {
		t.Errorf("exit code %v after attempt %d, want 3 after 1", j.ExitCode, j.Attempt)
	}
	p.AwaitState(k.ID, schema.JobCompleted)

	t.Run("slurmrestd dies: the command line does", func(t *testing.T) {
		c.Kill("slurmrestd")
		l := p.Submit("x2", 2, `true`, nil)
		p.AwaitState(l.ID, schema.JobCompleted)
		c.StartREST()
	})
	t.Run("a job ends while nobody looks", func(t *testing.T) {
		l := p.Submit("x1", 1, `echo up; sleep 2; exit 4`, nil)
		p.AwaitState(l.ID, schema.JobRunning)
		stop()
		p.Await("Slurm is done with it", func() bool {
			return c.Must("squeue", "--noheader", "--states=R,CG", "--format=%i") == "" // Saved's own, held, may be back
		})
		p.Connect(open(config(c)), quick)
		l = p.AwaitState(l.ID, schema.JobFailed)
		if l.ExitCode == nil || *l.ExitCode != 4 {
			t.Errorf("exit code %v, want 4", l.ExitCode)
		}
		p.Sums(j, k, l)
	})
}

// A node's prolog fails: Slurm drains the node and cancels the job. The node is kept out of the pool with Slurm's reason, until
// the drain is lifted in Slurm; the job is not to blame and runs elsewhere.
func TestANodeThatCannotBeginAJob(t *testing.T) {
	c := slurmtest.Start(t, []string{"h1", "h2"}, nil, 8)
	p := clustertest.New(t, "pool", schema.ClusterSlurm, []string{"h1", "h2"}, 8)
	p.Connect(open(config(c)), quick)
	c.Prolog(`[ "$SLURMD_NODENAME" != h1 ]`)
	j := p.Submit("x1", 1, `echo "$GPUPOOL_ATTEMPT on $SLURMD_NODENAME"`, func(n *store.NewJob) { n.RequeueLimit = new(int); *n.RequeueLimit = 1 })
	p.Await("h1 is kept out with Slurm's reason", func() bool {
		return strings.Contains(p.Cordon("h1", schema.CordonCluster), "Prolog error")
	})
	j = p.AwaitState(j.ID, schema.JobCompleted)
	if out := p.Output(j.ID, 0); j.Attempt != 2 || out != "2 on h2\n" {
		t.Errorf("after attempt %d it wrote %q, want attempt 2 on h2", j.Attempt, out)
	}
	if why := p.Cordon("h1", schema.CordonRelease); why != "" {
		t.Errorf("nothing of the job was on h1, which is held back: %s", why)
	}
	p.Sums(j)
	c.Prolog(`true`)
	c.Must("scontrol", "update", "nodename=h1", "state=resume")
	p.Await("h1 is back", func() bool { return p.Cordon("h1", schema.CordonCluster) == "" })

	// Somebody cancels a job in Slurm, and it ends well in the time it has: it ran, and is not run again.
	k := p.Submit("x1", 1, `trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done`, nil)
	p.Await("it runs", func() bool { return strings.Contains(p.Output(k.ID, 0), "up") })
	c.Must("scancel", "--name=gpupool-"+k.ID)
	if k = p.AwaitState(k.ID, schema.JobFailed); k.Attempt != 1 || !strings.Contains(k.Cause, "CANCELLED") {
		t.Errorf("cancelled in Slurm, it is failed after attempt %d: %s", k.Attempt, k.Cause)
	}
	p.Sums(k)
}

// The answer to a submit is lost, over and over: each job runs once.
func TestALostAnswerIsNotASecondRun(t *testing.T) {
	c := slurmtest.Start(t, []string{"h1"}, nil, 8)
	target, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	through := httputil.NewSingleHostReverseProxy(target)
	var lost atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/job/submit") {
			through.ServeHTTP(w, r)
			return
		}
		through.ServeHTTP(httptest.NewRecorder(), r) // it arrives, its answer does not
		lost.Add(1)
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	}))
	defer proxy.Close()
	p := clustertest.New(t, "pool", schema.ClusterSlurm, []string{"h1"}, 8)
	cfg := config(c)
	cfg.URL = proxy.URL
	p.Connect(open(cfg), quick)
	var jobs []schema.Job
	for range 4 {
		jobs = append(jobs, p.Submit("x1", 1, `echo ran`, nil))
	}
	for _, j := range jobs {
		p.AwaitState(j.ID, schema.JobCompleted)
		if out := p.Output(j.ID, 0); out != "ran\n" {
			t.Errorf("job %s wrote %q: it did not run once", j.ID, out)
		}
	}
	if lost.Load() == 0 {
		t.Fatal("no answer was lost: the test tests nothing")
	}
	p.Sums(jobs...)
}

// The controller comes back without its state: it has forgotten what runs, says of its node that it is idle, and gives the same
// ids out again.
func TestAControllerThatLostItsState(t *testing.T) {
	c := slurmtest.Start(t, []string{"h1", "h2"}, nil, 8)
	p := clustertest.New(t, "pool", schema.ClusterSlurm, []string{"h1", "h2"}, 8)
	stop := p.Connect(open(config(c)), quick)
	j := p.Submit("x1", 1, `echo "$GPUPOOL_ATTEMPT on $SLURMD_NODENAME"; sleep 300`, nil)
	p.Await("it runs, and its device is known", func() bool { return p.Output(j.ID, 0) == "1 on h1\n" && slices.Equal(p.Held(j.ID, "h1"), []int{0}) })
	<-time.After(time.Second) // BOOT_TIME and submit times are whole seconds
	stop()
	// Somebody's job takes the id that the pool's had: Slurm takes what runs under that id for it, and lets it run. It gives it
	// the device that the pool's job has, too. Where the node tells of its job between the submission and the start, Slurm refuses
	// to begin another by that id, and somebody submits to a controller that begins anew once more.
	begun, other := filepath.Join(t.TempDir(), "begun"), ""
	p.Await("somebody's job runs", func() bool {
		c.Kill("slurmctld")
		c.Forget()
		c.StartController()
		other = c.Must("sbatch", "--parsable", "--nodelist=h1", "--gres=gpu:1", "--output=/dev/null", "--wrap", "touch "+begun+"; sleep 300")
		for {
			switch state := c.Must("squeue", "--noheader", "--states=all", "--jobs="+other, "--format=%T"); state {
			case "PENDING", "CONFIGURING", "RUNNING":
				if _, err := os.Stat(begun); err == nil {
					return true
				}
				<-time.After(50 * time.Millisecond)
			default:
				t.Logf("somebody's job %s is %s", other, state)
				return false
			}
		}
	})
	p.Connect(open(config(c)), quick)
	p.Await("the pool's is placed anew, elsewhere", func() bool { return p.Output(j.ID, 0) == "2 on h2\n" })
	if p.Drifts(schema.DriftLost) == 0 {
		t.Error("nobody was told that it was lost")
	}
	if n := p.Drifts(schema.DriftContested); n != 1 {
		t.Errorf("that its device was given to somebody while it ran was told %d times", n)
	}
	if why := p.Cordon("h1", schema.CordonRelease); why == "" {
		t.Error("what was forgotten may run on h1 still, but its devices may be given out")
	}
	runs, err := p.DB.ClusterRuns(t.Context(), j.ID)
	if err != nil || len(runs) != 2 || runs[0].Native != other || runs[0].SubmittedAt == runs[1].SubmittedAt {
		t.Fatalf("its runs are %+v (%v), and somebody's has id %s", runs, err, other)
	}
	if err := p.DB.RequestStop(t.Context(), j.ID, 0, schema.AttemptCancelled, "test", ""); err != nil {
		t.Fatal(err)
	}
	p.AwaitState(j.ID, schema.JobCancelled)
	p.Sums(j)
	if state := c.Must("squeue", "--noheader", "--jobs="+other, "--format=%T"); state != "RUNNING" {
		t.Errorf("somebody's job %s is %q", other, state)
	}
}
