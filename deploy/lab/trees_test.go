package lab_test

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpupool/activities/bmc"
	"gpupool/deploy/lab"
)

// sharedTrees is the folder of captured trees beside the repository.
func sharedTrees(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", "..", "..", "shared", "data", "redfish"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("no captured trees: %v", err)
	}
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skip(err)
	}
	return dir
}

// TestServersOfOneCapturedTreeAreNotConfused: one tree is the identity of one machine, and here it is that of several.
func TestServersOfOneCapturedTreeAreNotConfused(t *testing.T) {
	t.Parallel()
	servers, err := lab.WithTrees(lab.Demo()[:4], sharedTrees(t))
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.New(lab.Config{Dir: filepath.Join(t.TempDir(), "lab"), BMCNet: "127.193.0.0/16", Servers: servers, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	run(t, l, func() {
		pool := bmc.NewPool(bmc.Config{Log: slog.New(slog.DiscardHandler)})
		defer pool.Close(t.Context())
		for _, s := range l.State() {
			c, err := pool.Client(bmc.Endpoint{Address: s.BMC, Credential: bmc.Static(s.User, s.Password)})
			if err != nil {
				t.Fatal(err)
			}
			id, err := c.Identify(t.Context())
			if err != nil {
				t.Fatalf("%s: %v", s.Name, err)
			}
			if id.Serial != s.Serial || id.UUID != s.UUID {
				t.Errorf("%s is serial %q, uuid %q, not %q, %q", s.Name, id.Serial, id.UUID, s.Serial, s.UUID)
			}
			for _, mac := range s.MACs {
				if !slices.Contains(id.MACs, mac) {
					t.Errorf("%s has the cards %v: %s is missing", s.Name, id.MACs, mac)
				}
			}
			var shown, built []string
			for _, g := range id.GPUs {
				shown = append(shown, g.Serial)
			}
			for _, d := range s.Devices {
				built = append(built, d.Serial)
			}
			if len(built) != 8 || !slices.Equal(shown, built) {
				t.Errorf("%s shows the accelerators %v, has %v", s.Name, shown, built)
			}
		}
	})
}

// TestATreeThatCannotBeHadLeavesTheGeneratedProfile, with the reason.
func TestATreeThatCannotBeHadLeavesTheGeneratedProfile(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "supermicro.tar.xz"), []byte("not an archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	servers, err := lab.WithTrees(lab.Demo(), folder)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"nvidia_viking.tar.xz", "generated dgx-h100", "supermicro.tar.xz", "generated supermicro-hgx-h100"} {
		if strings.Count(err.Error(), want) == 0 {
			t.Errorf("%q is not told: %v", want, err)
		}
	}
	for _, s := range servers {
		if s.Tree != "" {
			t.Errorf("%s serves %s", s.Name, s.Tree)
		}
	}
}
