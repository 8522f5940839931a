package api_test

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"gpupool/api"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func TestAFullDiskIsSaidInWordsAndThePoolGoesOnOnceThereIsRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("a small disk can't be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := store.Open(t.Context(), store.Config{Driver: "sqlite", DSN: filepath.Join(dir, "gpupool.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	p := newPool(t, func(c *api.Config) { c.Store = s })
	storetest.Available(t, s, 1, model, 8)
	fill := filepath.Join(dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 16<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk gave %v", err)
	}
	submit := func(key int) answer {
		return p.member("POST", "/v1/jobs", `{"project":"main","spec":"h100x8","command":["true"]}`, "Idempotency-Key: k"+strconv.Itoa(key))
	}
	// the write-ahead log has room left for some
	taken, a := 0, answer{}
	for ; taken < 5000; taken++ {
		if a = submit(taken); a.status != http.StatusCreated {
			break
		}
	}
	wantProblem(t, a, schema.CodeUnavailable, "", "disk", "full", "free space")
	if a.header.Get("Retry-After") == "" || bytes.Contains(a.body, []byte("SQLITE")) {
		t.Errorf("answered %v %s", a.header, a.body)
	}
	jobs := func() int {
		n, after := 0, ""
		for {
			l := read[contract.JobList](t, p.member("GET", "/v1/jobs?limit=1000"+after, ""), http.StatusOK)
			if n += len(l.Items); l.Next == "" {
				return n
			}
			after = "&after=" + l.Next
		}
	}
	if n := jobs(); n != taken {
		t.Errorf("%d jobs are there, %d were taken", n, taken)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	if a := submit(taken); a.status != http.StatusCreated {
		t.Errorf("once there is room the same request gets %d: %s", a.status, a.body)
	}
	if n := jobs(); n != taken+1 {
		t.Errorf("%d jobs are there, %d were taken", n, taken+1)
	}
}
