package demo_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpupool/api/contract"
	"gpupool/cmd/gpupool/demo"
	"gpupool/deploy/lab"
	"gpupool/schema"
)

// TestAKillInAnyStepOfAnOnboardingLosesNothingAndInstallsOnce: one server for each step, each held before its own. The process is
// killed with SIGKILL in one step after the other, at its beginning and, where the step lasts, in the middle of it. Each server then
// arrives, installed once, in its first attempt and without a person; those that are held stand where they stood.
func TestAKillInAnyStepOfAnOnboardingLosesNothingAndInstallsOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	dir := t.TempDir()
	file := filepath.Join(dir, "lab.yaml")
	servers := "servers:\n"
	for _, s := range schema.Steps {
		servers += fmt.Sprintf("  - {name: %s, profile: dgx-h100, devices: {model: nvidia-h100-80gb, count: 2}, faults: [bmc-down]}\n", s)
	}
	must(t, os.WriteFile(file, []byte(servers), 0o600))
	args := []string{"--lab", file, "--set", "timing.power_rest=1s", "--set", "log.level=warn"}
	up, err := demo.Start(ctx, os.Args[0], dir, 0, args...)
	must(t, err)
	w := &way{t: t, ctx: ctx, up: up}
	defer func() { w.up.Stop() }()
	at, err := url.Parse(up.URL)
	must(t, err)
	port, err := strconv.Atoi(at.Port())
	must(t, err)
	open := func() {
		hands, err := lab.Open(w.up.Lab)
		must(t, err)
		w.hands = hands
	}
	kill := func(when string) {
		t.Helper()
		t.Logf("kill %s", when)
		w.up.Kill()
		again, err := demo.Start(ctx, os.Args[0], dir, port, args...)
		if err != nil {
			t.Fatal(err)
		}
		again.Token = w.up.Token // it is shown once
		w.up = again
		open()
	}
	open()
	machines, err := w.hands.State(ctx)
	must(t, err)
	var enrol bytes.Buffer
	must(t, lab.WriteEnrollment(&enrol, machines, "eu-north", "lab"))
	w.do(http.MethodPost, "/v1/servers/bulk", enrol.Bytes(), nil, "Content-Type", "application/yaml")
	step := func(name schema.Step, is func(contract.Server) bool) func() (bool, string) {
		return func() (bool, string) {
			v := w.servers()[string(name)]
			return is(v), fmt.Sprintf("%s is %s at %s, %+v", name, v.Phase, v.Step, v.Failure)
		}
	}
	arrived := func(v contract.Server) bool { return v.Phase == schema.PhaseAvailable }
	for _, s := range schema.Steps { // none gets on: their BMCs are away
		w.do(http.MethodPost, "/v1/servers/"+string(s)+"/actions/onboard", map[string]any{}, nil)
	}
	for _, s := range schema.Steps {
		w.until("the first step of "+string(s), step(s, func(v contract.Server) bool { return v.Step == schema.StepVerifyBMC }))
		if s != schema.StepVerifyBMC {
			w.do(http.MethodPost, "/v1/servers/"+string(s)+"/actions/pause", contract.PauseOnboarding{Before: s, Reason: "to be killed there"}, nil)
		}
	}
	kill("in " + string(schema.StepVerifyBMC))
	for _, s := range schema.Steps {
		must(t, w.hands.Clear(ctx, string(s), "", lab.BMCDown))
	}
	w.until("verify-bmc's arrival", step(schema.StepVerifyBMC, arrived))
	for _, s := range schema.Steps[1:] {
		w.until("the pause before "+string(s), step(s, func(v contract.Server) bool { return v.Pause != nil && v.Pause.HeldAt != 0 }))
	}
	// What a step that lasts says in its middle.
	middle := map[schema.Step]string{schema.StepProvision: "waits for the phone-home", schema.StepBurnIn: "testing them"}
	for _, s := range schema.Steps[1:] {
		w.do(http.MethodPost, "/v1/servers/"+string(s)+"/actions/continue", map[string]any{}, nil)
		kill("at the beginning of " + string(s))
		if words := middle[s]; words != "" {
			w.until("the middle of "+string(s), func() (bool, string) {
				var runs contract.StepList
				w.do(http.MethodGet, "/v1/servers/"+string(s)+"/steps", nil, &runs)
				seen := ""
				for _, r := range runs.Items {
					if r.Step == s {
						seen = r.Detail
					}
				}
				return strings.Contains(seen, words) || arrived(w.servers()[string(s)]), seen
			})
			kill("in the middle of " + string(s))
		}
		w.until(string(s)+"'s arrival", step(s, arrived))
	}
	machines, err = w.hands.State(ctx)
	must(t, err)
	for _, m := range machines {
		if m.Installs != 1 || m.Attempt != 1 {
			t.Errorf("%s was installed %d times, in attempt %d", m.Name, m.Installs, m.Attempt)
		}
		var runs contract.StepList
		w.do(http.MethodGet, "/v1/servers/"+m.Name+"/steps", nil, &runs)
		for _, r := range runs.Items {
			if r.State != schema.StepDone || r.Try != 1 {
				t.Errorf("%s: %s is %s in try %d: %s", m.Name, r.Step, r.State, r.Try, r.Detail)
			}
		}
		if len(runs.Items) != len(schema.Steps) {
			t.Errorf("%s went through %d steps", m.Name, len(runs.Items))
		}
	}
}
