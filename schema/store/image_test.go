package store_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

// TestWhatAServerIsToldOfAJob: its image, its network, and the limits that its spec gives it there.
func TestWhatAServerIsToldOfAJob(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	_, err := b.CreateSpec(t.Context(), "test", store.NewSpec{Name: "limited", Model: h100, Accelerators: 2, CPUs: 24, MemoryBytes: 256 << 30})
	b.must(err)
	j, _, err := b.SubmitJob(t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "limited", Nodes: 1, Command: []string{"true"}, Image: "team/train:1", Network: "none"})
	b.must(err)
	if no := b.commit(b.start(j, b.place(0, 0))); len(no) > 0 {
		t.Fatal(no)
	}
	b.must(b.DispatchAttempt(t.Context(), j.ID, 1))
	task, err := b.Task(t.Context(), store.RunTaskID(j.ID, 1, 0))
	b.must(err)
	var run agentproto.Run
	b.must(json.Unmarshal([]byte(task.Payload), &run))
	if run.Image != "team/train:1" || run.Network != "none" || run.CPUs != 24 || run.MemoryBytes != 256<<30 {
		t.Errorf("it is told %+v", run)
	}
}

func TestImagesAndNetworksThatAreNone(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	submit := func(image, network string) (schema.Job, error) {
		j, _, err := b.SubmitJob(t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "h100x2", Nodes: 1, Command: []string{"true"}, Image: image, Network: network})
		return j, err
	}
	for _, good := range []string{"", "busybox", "pytorch:2.9", "images.example.net:5000/team/train:v1.2", "a/b@sha256:" + strings.Repeat("0a", 32)} {
		if j, err := submit(good, "host"); err != nil || j.Image != good || j.Network != "" {
			t.Errorf("image %q: %q %q, %v", good, j.Image, j.Network, err)
		}
	}
	for _, bad := range []string{" x", "-x", "a b", "a:b:c", "a@sha256:12", "a\nb", "--privileged", "http://x/y", "a/UPPER"} {
		var e *schema.Error
		if _, err := submit(bad, ""); !errors.As(err, &e) || e.Field != "image" {
			t.Errorf("image %q: %v", bad, err)
		}
	}
	var e *schema.Error
	if _, err := submit("", "bridge"); !errors.As(err, &e) || e.Field != "network" {
		t.Errorf("network bridge: %v", err)
	}
}
