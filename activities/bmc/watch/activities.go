package watch

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/worker"

	"gpupool/activities/bmc"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

// Activities is registered with a site's worker. One of a site's processes watches at a time; see workflows.WatchBMCs.
type Activities struct {
	Store      *store.Store
	Pool       *bmc.Pool
	Credential func(server string) bmc.Credential
	Config     Config // Sink and Push are ours
	// Seen takes what BMCs read of the accelerators that are in the inventory; nil = nobody does.
	Seen func(server string, devices []agentproto.Device)
	// EventURL is how BMCs reach the API, to push their events; "" = they are not asked to.
	EventURL string
}

// Register adds the activity to a site's worker.
func Register(w worker.ActivityRegistry, a *Activities) { w.RegisterActivity(a) }

const (
	beatEvery = time.Second
	// listEvery is how often the site's servers are listed again.
	listEvery = 10 * time.Second
	// sightFor is how long a sighting that didn't change is not written again.
	sightFor = 5 * time.Minute
	// takeEvery is how often it is asked for events that BMCs pushed.
	takeEvery = time.Second
)

// WatchSite watches the servers of a site that are in the pool, until its context ends or its worker stops: evidence becomes
// faults of source redfish, and power, boot progress and trouble with the BMC become sightings.
func (a *Activities) WatchSite(ctx context.Context, site string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		beat := time.NewTicker(beatEvery)
		defer beat.Stop()
		for {
			select {
			case <-activity.GetWorkerStopChannel(ctx):
				cancel()
			case <-ctx.Done():
				return
			case <-beat.C:
				activity.RecordHeartbeat(ctx)
			}
		}
	}()
	defer func() { cancel(); <-stopped }()
	return a.watch(ctx, site)
}

func (a *Activities) watch(ctx context.Context, site string) error {
	cfg := a.Config
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	keep := newKeeper(a.Store)
	keep.values = a.Seen
	cfg.Sink = keep.sink
	if a.EventURL != "" {
		cfg.Push = a.destination
	}
	w := New(a.Pool, cfg)
	if err := a.list(ctx, site, w, keep); err != nil {
		return err
	}
	ran := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	go func() { ran <- w.Run(ctx) }()
	defer func() { cancel(); <-ran }()
	again, take := time.NewTicker(listEvery), time.NewTicker(takeEvery)
	defer again.Stop()
	defer take.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-take.C:
			if a.EventURL == "" {
				continue
			}
			heard, err := a.Store.TakeBMCEvents(ctx, site)
			if err != nil && ctx.Err() == nil {
				cfg.Log.WarnContext(ctx, "events that BMCs pushed could not be taken", "site", site, "err", err)
			}
			for _, server := range heard {
				w.ReadNow(server)
			}
		case <-again.C:
			if err := a.list(ctx, site, w, keep); err != nil && ctx.Err() == nil {
				cfg.Log.WarnContext(ctx, "the servers to watch could not be listed; those known are watched on", "site", site, "err", err)
			}
		}
	}
}

// destination is where a server's BMC pushes its events: below the API's address, with a secret that only it is told.
func (a *Activities) destination(ctx context.Context, server, have string) (string, error) {
	base := strings.TrimRight(a.EventURL, "/") + schema.PathBMCEvents + "/" + server + "/"
	if secret, ok := strings.CutPrefix(have, base); ok {
		if holds, err := a.Store.BMCListens(ctx, server, secret); err != nil || holds {
			return have, err
		}
	}
	secret := rand.Text()
	return base + secret, a.Store.SetBMCListener(ctx, server, secret)
}

// watched are the phases in which a server is seen out of band: before it is in the pool its BMC belongs to its onboarding.
func inPool(p schema.Phase) bool {
	return p == schema.PhaseAvailable || p == schema.PhaseDraining || p == schema.PhaseRepairing
}

// list makes the site's servers the ones watched.
func (a *Activities) list(ctx context.Context, site string, w *Watcher, keep *keeper) error {
	servers, err := a.Store.Servers(ctx, store.ServerFilter{Site: site})
	if err != nil {
		return fmt.Errorf("listing the servers of site %s: %w", site, err)
	}
	var memories map[string][]byte
	var targets []Target
	for _, v := range servers {
		if !inPool(v.Phase) {
			continue
		}
		if memories == nil && !w.watches(v.ID) { // read only when somebody is new
			if memories, err = a.Store.BMCMemories(ctx, site); err != nil {
				return fmt.Errorf("reading what is known of site %s: %w", site, err)
			}
		}
		targets = append(targets, Target{Server: v.ID, Memory: memories[v.ID],
			Endpoint: bmc.Endpoint{Address: v.BMCAddress, SystemID: v.BMCSystem, Serial: v.Serial, Protocol: bmc.Protocol(v.BMCProtocol), Credential: a.Credential(v.ID)}})
	}
	w.Set(targets)
	keep.only(targets)
	return nil
}

// watches reports whether a server is watched already.
func (w *Watcher) watches(server string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.targets[server] != nil
}

// keeper writes what the watcher sees. mu guards seen.
type keeper struct {
	store  *store.Store
	values func(server string, devices []agentproto.Device)

	mu   sync.Mutex
	seen map[string]schema.BMCSighting // as last written
}

func newKeeper(s *store.Store) *keeper {
	return &keeper{store: s, seen: map[string]schema.BMCSighting{}}
}

// Keep is the Sink that keeps what is seen on the record: sightings, evidence, memory.
func Keep(s *store.Store) func(context.Context, Snapshot, []Sign, []byte) error {
	return newKeeper(s).sink
}

// only forgets servers that are watched no more.
func (k *keeper) only(targets []Target) {
	want := map[string]bool{}
	for _, t := range targets {
		want[t.Server] = true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for server := range k.seen {
		if !want[server] {
			delete(k.seen, server)
		}
	}
}

func (k *keeper) sink(ctx context.Context, s Snapshot, signs []Sign, memory []byte) error {
	if err := k.sight(ctx, s); err != nil {
		return err
	}
	if err := k.read(ctx, s); err != nil {
		return err
	}
	if len(signs) == 0 && memory == nil {
		return nil
	}
	evidence := make([]store.BMCEvidence, len(signs))
	for i, x := range signs {
		evidence[i] = store.BMCEvidence{Serial: x.Serial, Slot: x.Slot, Over: x.Over, Fault: schema.Fault{Kind: x.Kind, Code: x.Code, Part: x.Part, Severity: x.Severity, Text: x.Text,
			At: schema.At(x.At), Dedupe: "redfish/" + x.Server + "/" + x.Key}}
	}
	return k.store.ReportBMCEvidence(ctx, s.Server, evidence, memory)
}

// read passes on what a deep read showed of accelerators.
func (k *keeper) read(ctx context.Context, s Snapshot) error {
	if k.values == nil || s.Err != nil || len(s.GPUs) == 0 {
		return nil
	}
	known, err := k.store.Accelerators(ctx, store.AcceleratorFilter{Server: s.Server})
	if err != nil {
		return err
	}
	k.values(s.Server, readings(known, s.GPUs))
	return nil
}

func (k *keeper) sight(ctx context.Context, s Snapshot) error {
	now := schema.BMCSighting{Server: s.Server, Power: string(s.Vitals.Power), Progress: s.Vitals.Progress, Health: s.Vitals.Health}
	if now.Trouble = trouble(s.Err); s.Err != nil {
		now.Text = s.Err.Error()
	}
	k.mu.Lock()
	was, known := k.seen[s.Server]
	k.mu.Unlock()
	same := known && was.Power == now.Power && was.Progress == now.Progress && was.Health == now.Health && was.Trouble == now.Trouble
	if same && s.At.Sub(was.At.Time()) < sightFor {
		return nil
	}
	if err := k.store.SawBMC(ctx, now); err != nil {
		return err
	}
	now.At = schema.At(s.At)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen[s.Server] = now
	return nil
}

// trouble names why a BMC could not be read.
func trouble(err error) schema.BMCTrouble {
	switch {
	case err == nil:
		return schema.BMCFine
	case errors.Is(err, bmc.ErrCredential), errors.Is(err, bmc.ErrPasswordChange):
		return schema.BMCCredential
	case errors.Is(err, bmc.ErrUntrusted):
		return schema.BMCUntrusted
	case errors.Is(err, bmc.ErrUnreachable), errors.Is(err, bmc.ErrBusy):
		return schema.BMCUnreachable
	}
	return schema.BMCUnusable
}
