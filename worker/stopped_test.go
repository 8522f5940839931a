package worker_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"gpupool/schema/store"
	"gpupool/worker"
	"gpupool/worker/config"
)

// kept is a log that is looked at when its writers have stopped.
type kept struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (k *kept) Write(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.b.Write(b)
}

func (k *kept) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.b.String()
}

// TestACleanStopLogsNoError: what is under way for as long as the process lives, the allocator, the watch of a site,
// deliveries, has not failed when it ends with it.
func TestACleanStopLogsNoError(t *testing.T) {
	t.Parallel()
	c, err := config.Load(config.Source{Set: []string{"data_dir=" + t.TempDir(), "regions=eu", "sites=eu-1", "roles=api,worker,allocator", "api.listen=127.0.0.1:0", "durability=normal"}})
	if err != nil {
		t.Fatal(err)
	}
	log := &kept{}
	p, err := worker.Start(t.Context(), c, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelError})))
	if err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(p.Stop)
	t.Cleanup(stop)
	pool(t, p.Store, 1)
	if _, _, err := p.Store.SubmitJob(t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "train", Spec: "h100x8", Nodes: 1, Command: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	await(t, p.Store, time.Minute)
	stop()
	if said := log.String(); said != "" {
		t.Errorf("a stop that nobody disturbs logged %d errors:\n%s", strings.Count(said, "\n"), said)
	}
}
