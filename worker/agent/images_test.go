package agent_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent"
	"gpupool/worker/agent/image"
	"gpupool/worker/agent/image/imagetest"
)

// TestAJobInAContainerImage: from containerd, over two lives of the agent, to the proof that nothing of it is left.
func TestAJobInAContainerImage(t *testing.T) {
	images, err := image.Open(imagetest.Daemon(t))
	if err != nil {
		t.Fatal(err)
	}
	defer images.Close()
	tar := imagetest.Archive(t, "example.net/train:1", []string{"PATH=/bin", "FLAVOUR=strong", "HOME=/srv", "OWN=image"}, "/srv", imagetest.Shell(t), map[string]string{"srv/release": "an image\n"})
	if _, err := images.Import(t.Context(), bytes.NewReader(tar)); err != nil {
		t.Fatal(err)
	}
	w := apartWorld(t, func(c *agent.Config) { c.Images = images })
	stop := w.start()
	gate := t.TempDir()
	if err := os.Chmod(gate, 0o755); err != nil {
		t.Fatal(err)
	}
	w.give("in", 1, agentproto.Run{Image: "example.net/train:1", Nodes: 1, Devices: []string{"S0"}, Env: map[string]string{"OWN": "job"}, MemoryBytes: 256 << 20,
		Mounts: []agentproto.Mount{{Source: gate, Target: "/gate", ReadOnly: true}}, Allow: []string{gate},
		Command: []string{"sh", "-c", `while read l; do echo "$l"; done <release; echo "$PATH $FLAVOUR $HOME $OWN $GPUPOOL_RANK $CUDA_VISIBLE_DEVICES $LD_LIBRARY_PATH"; echo /dev/k* /usr/*; echo x >/work/f; echo up
			while ! [ -e /gate/open ]; do :; done; exit 6`}})
	w.says("in", "up")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.start()
	if err := os.WriteFile(filepath.Join(gate, "open"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r := w.end("in")
	want := "an image\n/bin strong /srv job 0 GPU-0 /usr/local/nvidia/lib64\n/dev/kmsg /usr/*\nup\n"
	if r.State != schema.TaskFailed || deref(r.ExitCode) != 6 || !r.NoneLeft || r.Output != want {
		t.Errorf("it ended as %+v; its output is to be %q", r, want)
	}
	w.give("missing", 2, agentproto.Run{Image: "127.0.0.1:1/none:1", Devices: []string{"S0"}, Command: []string{"true"}})
	if r := w.end("missing"); r.State != schema.TaskFailed || !strings.Contains(r.Text, "could not be pulled") || !r.NoneLeft {
		t.Errorf("it ended as %+v", r)
	}
	w.give("free", 3, agentproto.Run{Devices: []string{"S0"}, Command: []string{"true"}})
	if r := w.end("free"); r.State != schema.TaskDone {
		t.Errorf("its device is not free: %+v", r)
	}
}

// slowImages brings an image only when it is let.
type slowImages struct {
	asked chan struct{}
	let   chan struct{}
}

func (s *slowImages) Get(ctx context.Context, _ string) error {
	select {
	case s.asked <- struct{}{}:
	default:
	}
	select {
	case <-s.let:
		return errors.New("it is gone")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slowImages) Show(context.Context, string, string) (image.View, error) {
	return image.View{}, nil
}
func (s *slowImages) Drop(context.Context, string) error { return nil }

func TestWhileAnImageIsBrought(t *testing.T) {
	slow := &slowImages{asked: make(chan struct{}, 10), let: make(chan struct{})}
	w := apartWorld(t, func(c *agent.Config) { c.Images = slow })
	stop := w.start()
	run := agentproto.Run{Image: "train:1", Devices: []string{"S0"}, Command: []string{"true"}}
	w.give("stopped", 1, run)
	<-slow.asked
	w.give("other", 1, run)
	if r := w.end("other"); !strings.Contains(r.Text, "held by task stopped") {
		t.Errorf("its device was given out again: %+v", r)
	}
	w.api.Give(w.server, agentproto.Task{ID: "stopped", Kind: schema.TaskRun, Stop: true})
	if r := w.end("stopped"); r.State != schema.TaskCancelled || !r.NoneLeft || !strings.Contains(r.Text, "while its image was brought") {
		t.Errorf("it ended as %+v", r)
	}
	w.give("again", 2, run)
	<-slow.asked
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.start()
	<-slow.asked // nothing of it had run, so it is begun again
	close(slow.let)
	if r := w.end("again"); r.State != schema.TaskFailed || !strings.Contains(r.Text, "it is gone") || !r.NoneLeft {
		t.Errorf("it ended as %+v", r)
	}
}

func TestAnImageIsRefusedWhereThereIsNoContainerd(t *testing.T) {
	w := apartWorld(t, nil)
	w.start()
	w.give("in", 1, agentproto.Run{Image: "train:1", Command: []string{"true"}})
	if r := w.end("in"); r.State != schema.TaskFailed || !strings.Contains(r.Text, "uses no containerd") {
		t.Errorf("it ended as %+v", r)
	}
}
