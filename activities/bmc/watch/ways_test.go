package watch_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/watch"
	lab "gpupool/deploy/lab/bmc"
)

// Three machines that differ in nothing but how they tell: by a stream, by pushing, not at all. The same things happen to
// each, and the same evidence comes of it. For the first two the interval is an hour: only their events can bring it in time.
func TestStreamPushAndPollingEndInTheSameEvidence(t *testing.T) {
	for _, profile := range []string{lab.DGXH100, lab.GB200} {
		t.Run(profile, func(t *testing.T) {
			servers := fleet(t, 3, profile)
			stream, push, poll := servers[0], servers[1], servers[2]
			without := func(s *lab.Server, names ...string) {
				for _, n := range names {
					if err := s.Patch("/redfish/v1/EventService", lab.Doc{n: nil}); err != nil {
						t.Fatal(err)
					}
				}
			}
			without(push, "ServerSentEventUri")
			without(poll, "ServerSentEventUri", "Subscriptions")
			for _, s := range servers {
				for i := range s.GPUs() {
					if err := s.SetGPU(i, lab.GPU{Serial: "GPU-" + string(rune('A'+i))}); err != nil {
						t.Fatal(err)
					}
				}
			}

			l := newLog()
			all := targets(servers)
			pool := bmc.NewPool(bmc.Config{Timing: timing, Rate: 1e6, Burst: 1000, Log: slog.New(slog.DiscardHandler)})
			var listening *watch.Watcher
			listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				listening.ReadNow(strings.TrimPrefix(r.URL.Path, "/"))
				w.WriteHeader(http.StatusNoContent)
			}))
			defer listener.Close()
			cfg := watch.Config{Interval: time.Hour, Deep: 1, Settle: time.Nanosecond, Gap: time.Millisecond, Events: true, Sink: l.sink, Log: slog.New(slog.DiscardHandler),
				Push: func(_ context.Context, server, _ string) (string, error) { return listener.URL + "/" + server, nil }}
			listening = watch.New(pool, cfg)
			cfg.Interval = 40 * time.Millisecond
			polling := watch.New(pool, cfg)
			listening.Set(all[:2])
			polling.Set(all[2:])
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 2)
			for _, w := range []*watch.Watcher{listening, polling} {
				go func() { done <- w.Run(ctx) }()
			}
			listening.ReadNow(all[0].Server)
			listening.ReadNow(all[1].Server)
			l.until(t, 20*time.Second, "the first sight of all", func() bool { return len(l.snaps) == 3 })
			until(t, "the stream is open and the push is set up", func() bool { return stream.Hearers() == 1 && len(push.Subscriptions()) == 1 })
			if stream.Subscriptions() != nil || poll.Subscriptions() != nil || poll.Hearers() != 0 {
				t.Fatalf("a subscription beside the stream, %v, or of one that has none, %v", stream.Subscriptions(), poll.Subscriptions())
			}

			const board = "/redfish/v1/Systems/HGX_Baseboard_0"
			for _, s := range servers {
				gpu, slot := s.Resource(board + "/Processors")["Members"].([]any)[1].(map[string]any)["@odata.id"].(string), 1
				name := gpu[strings.LastIndexByte(gpu, '/')+1:]
				if err := s.Patch(board+"/Memory/"+name+"_DRAM_0/MemoryMetrics", lab.Doc{"LifeTime": lab.Doc{"UncorrectableECCErrorCount": 3},
					"Oem": lab.Doc{"Nvidia": lab.Doc{"RowRemappingFailed": true}}}); err != nil {
					t.Fatal(err)
				}
				if err := s.SetGPU(slot+1, lab.GPU{State: "Absent", Health: "Critical"}); err != nil {
					t.Fatal(err)
				}
				if profile == lab.GB200 {
					if err := s.Patch("/redfish/v1/Chassis/Chassis_0/ThermalSubsystem/LeakDetection/LeakDetectors/Chassis_0_LeakDetector_1_ColdPlate",
						lab.Doc{"DetectorState": "Critical", "Status": lab.Doc{"Health": "Critical", "State": "Degraded"}}); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := s.AddLogEntry(board+"/LogServices/EventLog", lab.Doc{"Created": "2020-05-08T11:14:01+00:00", "Severity": "Critical",
					"Message": name + " Driver Event Message type '[00] XID 79 GPU has fallen off the bus'", "MessageArgs": []any{name + " Driver Event Message"}}); err != nil {
					t.Fatal(err)
				}
			}
			want := map[string]int{lab.DGXH100: 4, lab.GB200: 5}[profile]
			of := func(server string) (out []watch.Sign) {
				for _, x := range l.signs {
					if x.Server == server {
						x.Server, x.At, x.Key = "", time.Time{}, ""
						out = append(out, x)
					}
				}
				slices.SortFunc(out, func(a, b watch.Sign) int { return strings.Compare(a.Kind+a.Text, b.Kind+b.Text) })
				return out
			}
			seen := func(n int) func() bool {
				return func() bool {
					return len(of(all[0].Server)) >= n && len(of(all[1].Server)) >= n && len(of(all[2].Server)) >= n
				}
			}
			l.until(t, 20*time.Second, "the evidence of all three, but the absence, which takes a second look", seen(want-1))
			for _, s := range servers {
				if _, err := s.AddLogEntry(board+"/LogServices/EventLog", lab.Doc{"Message": "a fan was replaced"}); err != nil {
					t.Fatal(err)
				}
			}
			l.until(t, 20*time.Second, "the absence too", seen(want))
			l.mu.Lock()
			polled := of(all[2].Server)
			for i, way := range []string{"stream", "push"} {
				if diff := cmp.Diff(polled, of(all[i].Server)); diff != "" {
					t.Errorf("%s (+) is not as polling (-):\n%s", way, diff)
				}
			}
			l.mu.Unlock()

			// Who is watched no more is to push no more.
			listening.Set(all[:1])
			until(t, "the subscription ends", func() bool { return len(push.Subscriptions()) == 0 })
			cancel()
			for range 2 {
				if err := <-done; !errors.Is(err, context.Canceled) {
					t.Errorf("run ended with %v", err)
				}
			}
			if err := pool.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}
