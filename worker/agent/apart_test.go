package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent"
	"gpupool/worker/agent/agenttest"
	"gpupool/worker/agent/sandbox"
)

// ranges counts the ranges of users that tests were given: each agent is to be the only one that gives its own out.
var ranges atomic.Int32

const usersPerAgent = 100

// apart makes this machine a server that keeps jobs apart; first is the first user of its range.
func apart(t *testing.T, c *agent.Config, first int) {
	t.Helper()
	h, err := sandbox.Open(t.Context(), c.StateDir, sandbox.Users{First: first, Count: usersPerAgent})
	if err != nil {
		t.Skipf("jobs can't be kept apart here: %v", err)
	}
	c.Apart = h
	c.Nodes = nodes
}

func freshRange() int {
	return sandbox.DefaultUsers.First + sandbox.DefaultUsers.Count + int(ranges.Add(1))*usersPerAgent
}

// nodes has the kernel's log stand for the first device's node, since it is there on every machine; others have none.
func nodes(d agentproto.Device) ([]string, error) {
	if d.Serial == "S0" {
		return []string{"/dev/kmsg"}, nil
	}
	return nil, nil
}

func apartWorld(t *testing.T, change func(*agent.Config)) *world {
	return newWorld(t, func(c *agent.Config) {
		apart(t, c, freshRange())
		if change != nil {
			change(c)
		}
	})
}

func (w *world) give(id string, epoch int64, r agentproto.Run) {
	r.Job, r.Attempt = "j-"+id, 1
	w.api.Give(w.server, agenttest.Run(id, epoch, r))
}

func (w *world) says(id, words string) {
	w.until(id+" says "+words, func() bool {
		out := ""
		for _, r := range w.api.Reports(id) {
			out += r.Output
		}
		return strings.Contains(out, words)
	})
}

func TestJobsOfOneServerAreKeptApart(t *testing.T) {
	w := apartWorld(t, nil)
	w.start()
	w.give("a", 1, agentproto.Run{Nodes: 1, Devices: []string{"S0"}, Command: []string{"sh", "-c", `id -u; ls /dev | grep kmsg; echo secret >/tmp/x; trap 'exit 4' TERM; echo up; while :; do sleep 0.02; done`}})
	w.says("a", "up")
	w.give("b", 1, agentproto.Run{Nodes: 1, Devices: []string{"S1"}, Command: []string{"sh", "-c", `id -u; echo $HOME $USER $CUDA_VISIBLE_DEVICES; pwd; ls /dev/kmsg /tmp/x; kill -TERM -1; exit 0`}})
	b := w.end("b")
	w.api.Give(w.server, agentproto.Task{ID: "a", Kind: schema.TaskRun, Stop: true})
	a := w.end("a")
	if a.State != schema.TaskCancelled || deref(a.ExitCode) != 4 || !a.NoneLeft || !strings.Contains(a.Output, "kmsg\n") {
		t.Errorf("the first ended as %+v", a)
	}
	if !strings.Contains(b.Output, "/work job GPU-1\n/work\n") || strings.Contains(b.Output, "\n/dev/kmsg") || strings.Contains(b.Output, "\n/tmp/x") {
		t.Errorf("the second saw %s", b.Output)
	}
	ua, _, _ := strings.Cut(a.Output, "\n")
	ub, _, _ := strings.Cut(b.Output, "\n")
	if ua == ub || len(ua) != 10 || len(ub) != 10 {
		t.Errorf("they ran as %q and %q", ua, ub)
	}
	w.until("it says that jobs are kept apart", func() bool {
		h := w.api.Heartbeats(w.server)
		return len(h) > 0 && h[len(h)-1].Apart
	})
}

func TestAServerThatDoesNotKeepJobsApartSaysSo(t *testing.T) {
	w := newWorld(t, func(c *agent.Config) { c.Shared = "the agent is not root" })
	w.start()
	w.until("it says so", func() bool {
		h := w.api.Heartbeats(w.server)
		return len(h) > 0 && !h[len(h)-1].Apart && h[len(h)-1].Shared == "the agent is not root"
	})
	for id, c := range map[string]struct {
		run  agentproto.Run
		want string
	}{
		"mounts":  {agentproto.Run{Mounts: []agentproto.Mount{{Source: "/data", Target: "/data"}}, Allow: []string{"/data"}}, "mounts can't be had"},
		"network": {agentproto.Run{Network: "none"}, `network "none" can't be had`},
	} {
		c.run.Command = []string{"true"}
		w.give(id, 1, c.run)
		if r := w.end(id); r.State != schema.TaskFailed || !strings.Contains(r.Text, c.want) || !strings.Contains(r.Text, "not root") {
			t.Errorf("%s: it ended as %+v", id, r)
		}
	}
}

func TestLimitsOfAJobKeptApart(t *testing.T) {
	w := apartWorld(t, func(c *agent.Config) { c.Disk = 8 << 20 })
	w.start()
	t.Run("memory", func(t *testing.T) {
		w.give("memory", 1, agentproto.Run{MemoryBytes: 64 << 20, Command: []string{"sh", "-c", `head -c 200m /dev/zero | tail -c 200m | wc -c`}})
		if r := w.end("memory"); !strings.Contains(r.Text, "out of memory") || !r.NoneLeft {
			t.Errorf("it ended as %+v", r)
		}
	})
	t.Run("the disk", func(t *testing.T) {
		w.give("disk", 1, agentproto.Run{Command: []string{"sh", "-c", `head -c 20m /dev/zero >/tmp/x; sleep 60`}})
		if r := w.end("disk"); r.State != schema.TaskFailed || !strings.Contains(r.Text, "8 MiB are its share") || !r.NoneLeft {
			t.Errorf("it ended as %+v", r)
		}
	})
}

func TestWhatAJobKeptApartIsRefused(t *testing.T) {
	w := apartWorld(t, nil)
	w.start()
	data := t.TempDir()
	mount := func(m ...agentproto.Mount) agentproto.Run { return agentproto.Run{Mounts: m, Allow: []string{data}} }
	project := mount(agentproto.Mount{Source: data, Target: "/data"})
	project.User = w.cfg.Apart.Users().First
	system := agentproto.Run{User: 33}
	for name, c := range map[string]struct {
		run  agentproto.Run
		want string
	}{
		"a folder that is not on the list":         {mount(agentproto.Mount{Source: "/etc", Target: "/data", ReadOnly: true}), "none of the folders"},
		"one beside a folder on the list":          {mount(agentproto.Mount{Source: data + "x", Target: "/data", ReadOnly: true}), "none of the folders"},
		"one over the system":                      {mount(agentproto.Mount{Source: data, Target: "/usr", ReadOnly: true}), "lie in each other"},
		"writing as a user of one job":             {mount(agentproto.Mount{Source: data, Target: "/data"}), "Give the project a user id"},
		"a project's user of the range for jobs":   {project, "one of those that single jobs are given"},
		"a user of the system":                     {system, "a system's own"},
		"a network that is none":                   {agentproto.Run{Network: "bridge"}, `network "bridge"`},
		"a folder to begin in that is not there":   {agentproto.Run{WorkDir: "/no/such"}, "is not a folder that it sees"},
		"a source that is on the list, and a link": {mount(agentproto.Mount{Source: link(t, data, "/etc"), Target: "/data", ReadOnly: true}), "there is a link in it"},
	} {
		t.Run(name, func(t *testing.T) {
			c.run.Command = []string{"true"}
			w.give(name, 1, c.run)
			if r := w.end(name); r.State != schema.TaskFailed || !strings.Contains(r.Text, c.want) || !r.NoneLeft {
				t.Errorf("it ended as %+v", r)
			}
		})
	}
}

func link(t *testing.T, dir, to string) string {
	t.Helper()
	path := filepath.Join(dir, "link")
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAProjectsUserWritesToSharedStorage(t *testing.T) {
	w := apartWorld(t, nil)
	w.start()
	data := t.TempDir()
	if err := os.Chown(data, 5001, 5001); err != nil {
		t.Fatal(err)
	}
	run := agentproto.Run{User: 5001, Mounts: []agentproto.Mount{{Source: data, Target: "/data"}}, Allow: []string{data}, Command: []string{"sh", "-c", "echo kept >/data/f; id -u"}}
	w.give("writes", 1, run)
	if r := w.end("writes"); r.State != schema.TaskDone || r.Output != "5001\n" {
		t.Errorf("it ended as %+v", r)
	}
	if b, err := os.ReadFile(filepath.Join(data, "f")); err != nil || string(b) != "kept\n" {
		t.Errorf("the file holds %q (%v)", b, err)
	}
}

func TestAJobKeptApartOutlivesItsAgent(t *testing.T) {
	w := apartWorld(t, nil)
	stop := w.start()
	gate := t.TempDir()
	run := func(script string) agentproto.Run {
		return agentproto.Run{Mounts: []agentproto.Mount{{Source: gate, Target: "/gate", ReadOnly: true}}, Allow: []string{gate}, Command: []string{"sh", "-c", script}}
	}
	if err := os.Chmod(gate, 0o755); err != nil {
		t.Fatal(err)
	}
	w.give("long", 1, run(`echo begun; while [ ! -e /gate/open ]; do sleep 0.02; done; echo ended; exit 5`))
	w.give("short", 1, run(`echo begun; while [ ! -e /gate/open ]; do sleep 0.02; done; exit 6`))
	w.give("stays", 1, run(`trap 'exit 7' TERM; echo begun; while :; do sleep 0.02; done`))
	for _, id := range []string{"long", "short", "stays"} {
		w.says(id, "begun")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	open := func() {
		if err := os.WriteFile(filepath.Join(gate, "open"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	open() // some end while nobody looks
	w.start()
	if r := w.end("long"); deref(r.ExitCode) != 5 || r.Output != "begun\nended\n" || !r.NoneLeft {
		t.Errorf("it ended as %+v", r)
	}
	if r := w.end("short"); deref(r.ExitCode) != 6 || !r.NoneLeft {
		t.Errorf("it ended as %+v", r)
	}
	w.api.Give(w.server, agentproto.Task{ID: "stays", Kind: schema.TaskRun, Stop: true})
	if r := w.end("stays"); deref(r.ExitCode) != 7 || r.State != schema.TaskCancelled || !r.NoneLeft {
		t.Errorf("it ended as %+v", r)
	}
}

func TestUsersAreGivenOutAsLateAsCanBe(t *testing.T) {
	w := apartWorld(t, nil)
	w.start()
	seen := map[string]int{}
	for i := range 5 {
		id := fmt.Sprintf("j%d", i)
		w.give(id, 1, agentproto.Run{Command: []string{"id", "-u"}})
		r := w.end(id)
		if r.State != schema.TaskDone {
			t.Fatalf("it ended as %+v", r)
		}
		seen[r.Output]++
	}
	if len(seen) != 5 {
		t.Errorf("five jobs, one after the other, ran as %v", seen)
	}
}
