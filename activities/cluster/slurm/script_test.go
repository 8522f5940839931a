package slurm

import (
	"errors"
	"strings"
	"testing"

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
