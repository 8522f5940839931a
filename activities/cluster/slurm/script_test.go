package slurm

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpupool/activities/cluster"
	"gpupool/schema"
)

func TestAJobsOwnImage(t *testing.T) {
	t.Parallel()
	r := cluster.Run{Key: cluster.Key{Job: "job_a", Attempt: 1}, Image: "team/train:1", Command: []string{"true"}, Parts: []cluster.Part{{Node: "h1"}}}
	s := &Slurm{cfg: Config{LogDir: "/shared"}}
	err := s.Submit(t.Context(), r)
	var e *schema.Error
	if !errors.As(err, &e) || e.Code != schema.CodeInvalid || e.Field != "image" || !strings.Contains(err.Error(), "container_flag") {
		t.Errorf("without a container runtime: %v", err)
	}
	s.cfg.ContainerFlag = "--container-image"
	script := s.script(r)
	for _, want := range []string{"srun --nodes=1 --ntasks=1", "'--container-image=team/train:1' '--container-mounts=/shared:/shared' bash -c"} {
		if !strings.Contains(script, want) {
			t.Errorf("the script lacks %q: %s", want, script)
		}
	}
	r.Image = ""
	if script := s.script(r); strings.Contains(script, "srun") || strings.Contains(script, "container") {
		t.Errorf("one without an image is run by %s", script)
	}
	r.Network = "none"
	if err := s.Submit(t.Context(), r); !errors.As(err, &e) || e.Field != "network" {
		t.Errorf("with a network of its own: %v", err)
	}
}

// Slurm begins a part again that it has forgotten to have run: it is turned away, and its job is not to blame.
func TestAPartThatIsBegunAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &Slurm{cfg: Config{LogDir: dir}}
	k := cluster.Key{Job: "job_a", Attempt: 3}
	book := filepath.Join(dir, "book")
	script := s.script(cluster.Run{Key: k, Command: []string{"sh", "-c", "echo ran >> " + book}, Parts: []cluster.Part{{Node: "h1", Env: map[string]string{"GPUPOOL_RANK": "0"}}}})
	begin := func() (code int, why string) {
		cmd := exec.Command("bash", "-c", script)
		cmd.Env = []string{"SLURMD_NODENAME=h1"}
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		code = cmd.ProcessState.ExitCode()
		state := "COMPLETED"
		if code != 0 {
			state = "FAILED"
		}
		return code, s.interrupted(k, job{State: state, Exit: code, Nodes: []string{"h1"}})
	}
	if code, why := begin(); code != 0 || why != "" {
		t.Errorf("the first time: exit code %d, %q", code, why)
	}
	if code, why := begin(); code != turnedAway || !strings.Contains(why, "a second time") {
		t.Errorf("the second time: exit code %d, %q", code, why)
	}
	if b, err := os.ReadFile(book); err != nil || string(b) != "ran\n" {
		t.Errorf("it ran %q (%v), want once", b, err)
	}
}

// A job that its node could not begin looks like one that somebody has cancelled, but for what it left.
func TestWhoCancelledAJob(t *testing.T) {
	t.Parallel()
	s := &Slurm{cfg: Config{LogDir: t.TempDir()}}
	ran, early, never := cluster.Key{Job: "job_ran", Attempt: 1}, cluster.Key{Job: "job_early", Attempt: 1}, cluster.Key{Job: "job_never", Attempt: 1}
	began := time.Now().Add(-time.Minute)
	for k, written := range map[cluster.Key]time.Time{ran: began.Add(time.Second), early: began.Add(-time.Hour)} {
		log := s.logFile(k, "0")
		if err := errors.Join(os.WriteFile(log, nil, 0o600), os.Chtimes(log, written, written)); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		key  cluster.Key
		job  job
		node bool // its node could not begin it
	}{
		"nothing of it is there":                          {never, job{}, true},
		"what it wrote is of an earlier beginning":        {early, job{}, true},
		"it wrote, and ended well in the time it had":     {ran, job{}, false},
		"it was ended by a signal before it had written":  {never, job{Signal: 15}, false},
		"it ended with a code before it had written":      {never, job{Exit: 143}, false},
		"it never had nodes: somebody cancelled it there": {never, job{Nodes: []string{}}, false},
	} {
		if c.job.State, c.job.Began = "CANCELLED", began.Unix(); c.job.Nodes == nil {
			c.job.Nodes = []string{"h1"}
		}
		if why := s.interrupted(c.key, c.job); (why != "") != c.node {
			t.Errorf("%s: %q", name, why)
		}
	}
}
