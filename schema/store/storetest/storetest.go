// Package storetest brings a store to a state that tests begin from, by the store's own verbs.
package storetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/secret"
	"gpupool/schema/store"
)

// Open gives a fresh store that is closed when the test ends: on SQLite, or where PostgresEnv says.
func Open(t testing.TB) *store.Store { t.Helper(); return OpenAt(t, nil) }

// OpenAt is Open by a clock of the test's; nil is the wall's.
func OpenAt(t testing.TB, clock func() time.Time) *store.Store {
	t.Helper()
	c := store.Config{Driver: "sqlite", Clock: clock}
	if server := os.Getenv(PostgresEnv); server != "" {
		c.Driver, c.DSN, c.MaxConnections = "postgres", Database(t, server), 8
	} else {
		c.DSN = filepath.Join(t.TempDir(), "gpupool.db")
	}
	s, err := store.Open(t.Context(), c)
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

// Ring is a key ring of its own.
func Ring(t testing.TB) *secret.Ring {
	t.Helper()
	r, err := secret.LoadOrCreate(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// NewServer is a valid server number n (from 1), in rack r1 of site s1 of region eu.
func NewServer(n int, model string, accelerators int) store.NewServer {
	return store.NewServer{Name: fmt.Sprintf("r1s%d", n), Region: "eu", Site: "s1", Rack: "r1", Unit: n % 40, Serial: fmt.Sprintf("SN%04d", n), MACs: []string{fmt.Sprintf("0c:42:a1:00:%02x:%02x", n/256, n%256)},
		BMCAddress: fmt.Sprintf("https://10.1.%d.%d", n/256, n%256), BMCUsername: "admin", BMCPassword: "secret", Model: model, Accelerators: accelerators, CPUs: 112, MemoryBytes: 1 << 40}
}

// Devices are n healthy devices of a server, with serials made of its name.
func Devices(server, model string, n int) []agentproto.Device {
	vendor := schema.VendorNVIDIA
	if strings.HasPrefix(model, "amd-") {
		vendor = schema.VendorAMD
	}
	var out []agentproto.Device
	for i := range n {
		out = append(out, agentproto.Device{Vendor: vendor, Model: model, Serial: fmt.Sprintf("%s-G%d", server, i), UUID: fmt.Sprintf("GPU-%s-%d", server, i), PCI: fmt.Sprintf("0000:%02x:00.0", 16+i), Slot: fmt.Sprintf("SXM%d", i+1), Index: i, MemoryBytes: 80 << 30})
	}
	return out
}

// Available enrols server n and takes it through onboarding's record to available.
func Available(t testing.TB, s *store.Store, n int, model string, accelerators int) schema.Server {
	t.Helper()
	return AvailableAs(t, s, NewServer(n, model, accelerators))
}

// AvailableAs is Available for a server that the test describes.
func AvailableAs(t testing.TB, s *store.Store, as store.NewServer) schema.Server {
	t.Helper()
	return AvailableWith(t, s, Ring(t), as)
}

// AvailableWith is AvailableAs with its BMC password sealed by ring.
func AvailableWith(t testing.TB, s *store.Store, ring *secret.Ring, as store.NewServer) schema.Server {
	t.Helper()
	ctx := context.Background()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	in, err := s.EnrollServers(ctx, "test", ring, []store.NewServer{as})
	must(err)
	v, err := s.BeginOnboarding(ctx, in[0].ID, "test")
	must(err)
	_, err = s.Heartbeat(ctx, v.ID, agentproto.Heartbeat{Apart: true, BootID: "boot-1", Devices: Devices(v.Name, as.Model, as.Accelerators)})
	must(err)
	must(s.SetStep(ctx, v.ID, v.Attempt, schema.StepBurnIn, schema.StepRunning, "testing"))
	must(s.SetStep(ctx, v.ID, v.Attempt, schema.StepBurnIn, schema.StepDone, "passed"))
	must(s.FinishOnboarding(ctx, v.ID, v.Attempt))
	v, err = s.Server(ctx, v.ID)
	must(err)
	return v
}
