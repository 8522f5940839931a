package kube

import (
	"errors"
	"testing"

	"gpupool/activities/cluster"
	"gpupool/schema"
)

func TestAJobsOwnImage(t *testing.T) {
	t.Parallel()
	k := &Kube{cfg: Config{Image: "pool/base:1"}}
	r := cluster.Run{Key: cluster.Key{Job: "job_a", Attempt: 1}, Command: []string{"true"}, Parts: []cluster.Part{{Node: "h1"}}}
	for image, want := range map[string]string{"": "pool/base:1", "team/train@sha256:0": "team/train@sha256:0"} {
		r.Image = image
		if got := k.job(r, 0).Spec.Template.Spec.Containers[0].Image; got != want {
			t.Errorf("a job with image %q runs in %q, not %q", image, got, want)
		}
	}
	r.Network = "none"
	var e *schema.Error
	if err := k.Submit(t.Context(), r); !errors.As(err, &e) || e.Field != "network" {
		t.Errorf("with a network of its own: %v", err)
	}
}
