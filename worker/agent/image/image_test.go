package image_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpupool/worker/agent/image"
	"gpupool/worker/agent/image/imagetest"
	"gpupool/worker/agent/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.Init()
	os.Exit(m.Run())
}

func open(t *testing.T) *image.Store {
	t.Helper()
	s, err := image.Open(imagetest.Daemon(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestAJobSeesItsImage: from an archive into containerd, and from there into a sandbox; with two layers, of which the upper one
// holds.
func TestAJobSeesItsImage(t *testing.T) {
	s := open(t)
	tar := imagetest.Archive(t, "example.net/train:1", []string{"PATH=/bin", "FLAVOUR=strong"}, "/srv", imagetest.Shell(t), map[string]string{"srv/release": "lower\n"}, map[string]string{"srv/release": "upper\n"})
	names, err := s.Import(t.Context(), bytes.NewReader(tar))
	if diff := cmp.Diff([]string{"example.net/train:1"}, names); diff != "" || err != nil {
		t.Fatal(diff, err)
	}
	if err := s.Get(t.Context(), "example.net/train:1"); err != nil {
		t.Fatal(err)
	}
	v, err := s.Show(t.Context(), "job-1", "example.net/train:1")
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Show(t.Context(), "job-1", "example.net/train:1")
	if diff := cmp.Diff(v, again); diff != "" || err != nil {
		t.Errorf("shown again it is another: %s %v", diff, err)
	}
	if diff := cmp.Diff([]string{"PATH=/bin", "FLAVOUR=strong"}, v.Env); diff != "" || v.WorkDir != "/srv" {
		t.Errorf("%s %q", diff, v.WorkDir)
	}
	h, err := sandbox.Open(t.Context(), filepath.Join(t.TempDir(), "state"), sandbox.Users{First: 1_950_000_000, Count: 10})
	if err != nil {
		t.Skipf("jobs can't be kept apart here: %v", err)
	}
	b := sandbox.Box{ID: t.Name(), Dir: t.TempDir(), User: 1_950_000_001, Command: []string{"sh", "-c", `while read l; do echo "$l $FLAVOUR"; done <release`}, Env: v.Env, WorkDir: v.WorkDir, Root: v.Root}
	pid, err := h.Start(b)
	if err != nil {
		t.Fatal(err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Sweep(t.Context(), b.ID, 10e9); err != nil {
		t.Fatal(err)
	}
	out, err := os.ReadFile(filepath.Join(b.Dir, sandbox.OutFile))
	if e, _ := sandbox.ReadExit(b.Dir); string(out) != "upper strong\n" || err != nil {
		t.Errorf("it said %q (%+v, %v)", out, e, err)
	}
	for range 2 {
		if err := s.Drop(t.Context(), "job-1"); err != nil {
			t.Error(err)
		}
	}
}

func TestAnImageThatCannotBeHad(t *testing.T) {
	s := open(t)
	for ref, want := range map[string]string{
		"127.0.0.1:1/no/such:1": "could not be pulled", "UPPER CASE": "invalid reference", "": "invalid reference",
	} {
		if err := s.Get(t.Context(), ref); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", ref, err, want)
		}
	}
	if _, err := s.Import(t.Context(), strings.NewReader("no archive")); err == nil || !strings.Contains(err.Error(), "could not be imported") {
		t.Errorf("the error is %v", err)
	}
}

func TestAContainerdThatIsNotThere(t *testing.T) {
	s, err := image.Open(filepath.Join(t.TempDir(), "none"))
	if err == nil {
		defer s.Close()
		err = s.Get(t.Context(), "train:1")
	}
	if err == nil || !strings.Contains(err.Error(), "containerd") {
		t.Errorf("the error is %v", err)
	}
}
