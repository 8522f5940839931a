package bmc_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/watch"
	lab "gpupool/deploy/lab/bmc"
)

// Case 5: of a GB200 with 13 resources that aren't OK only the leak is told, with its place, at the first look. What is
// absent or still starts is unknown, and becomes evidence, one sign, only when its time is up.
func TestOfACapturedGB200OnlyTheLeakIsEvidenceUntilTheDeadline(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		settle time.Duration
		want   []string
	}{
		"while the baseboard may still start": {time.Hour, []string{"leak critical"}},
		"when its time is up":                 {time.Nanosecond, []string{"baseboard-starting warning", "leak critical"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, captured(t, "nvidia_gb200"), lab.Hooks{})
			p := pool(t, bmc.Config{Timing: quick, Rate: 1e6, Burst: 1000})
			type look struct {
				err   error
				ready bool
				signs []watch.Sign
			}
			looks := make(chan look, 100)
			w := watch.New(p, watch.Config{Interval: 20 * time.Millisecond, Deep: 1, Settle: tc.settle, Log: testLog(t), Sink: func(_ context.Context, s watch.Snapshot, signs []watch.Sign, _ []byte) error {
				looks <- look{s.Err, s.Identity != nil && s.Identity.BaseboardsReady, signs}
				return nil
			}})
			w.Set([]watch.Target{{Server: "srv-1", Endpoint: bmc.Endpoint{Address: s.URL(), Credential: bmc.Static(s.Credential())}}})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()
			defer func() { cancel(); <-done }()
			var told []string
			next := func() look {
				t.Helper()
				select {
				case l := <-looks:
					if l.err != nil {
						t.Fatal(l.err)
					}
					for _, x := range l.signs {
						if x.Kind == "leak" && !strings.Contains(x.Text, "Chassis 0 LeakDetector 1 ColdPlate") {
							t.Errorf("the leak has no place: %s", x.Text)
						}
						told = append(told, fmt.Sprintf("%s %s", x.Kind, x.Severity))
					}
					return l
				case <-time.After(time.Minute):
					t.Fatal("no look within a minute")
				}
				return look{}
			}
			if first := next(); !slices.ContainsFunc(first.signs, func(x watch.Sign) bool { return x.Kind == "leak" }) {
				t.Fatalf("the first look told %v", first.signs)
			}
			for range 2 {
				if next().ready {
					t.Fatal("HGX_BMC_0 is Starting")
				}
			}
			slices.Sort(told)
			if !slices.Equal(told, tc.want) {
				t.Fatalf("told %v, want %v", told, tc.want)
			}
			if err := s.Patch("/redfish/v1/Managers/HGX_BMC_0", lab.Doc{"Status": lab.Doc{"State": "Enabled", "Health": "OK"}}); err != nil {
				t.Fatal(err)
			}
			for !next().ready { // how long it may take is next's
			}
			if next(); tc.settle == time.Hour && len(told) != 1 { // only the leak is left, and was told
				t.Fatalf("told %v after the baseboard was up", told)
			}
		})
	}
}
