package demo_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpupool/api/contract"
	"gpupool/cmd/gpupool/demo"
	"gpupool/deploy/lab"
	"gpupool/schema"
)

const leaving = `
servers:
  - {name: good,  profile: dgx-h100, devices: {model: nvidia-h100-80gb, count: 2}}
  - {name: liar,  profile: dgx-h100, devices: {model: nvidia-h100-80gb, count: 2}, faults: [drive-lying, drive-unsupported]}
`

// TestServersAreRetiredOverTheNetwork: one of the pool and one that never came in boot a sanitise run through the boot service,
// under tokens of their own. The drives of one are all emptied; of the other one lies and one has no command for it: it stops, says
// which, and goes on once a person has said what became of them.
func TestServersAreRetiredOverTheNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	dir := t.TempDir()
	file := filepath.Join(dir, "lab.yaml")
	must(t, os.WriteFile(file, []byte(leaving), 0o600))
	up, err := demo.Start(ctx, os.Args[0], dir, 0, "--lab", file, "--set", "timing.power_rest=1s", "--set", "timing.phone_home=60s", "--set", "log.level=warn")
	must(t, err)
	defer func() { up.Stop() }()
	hands, err := lab.Open(up.Lab)
	must(t, err)
	machines, err := hands.State(ctx)
	must(t, err)
	w := &way{t: t, ctx: ctx, up: up, hands: hands}
	var enrol bytes.Buffer
	must(t, lab.WriteEnrollment(&enrol, machines, "eu-north", "lab"))
	w.do(http.MethodPost, "/v1/servers/bulk", enrol.Bytes(), nil, "Content-Type", "application/yaml")
	w.do(http.MethodPost, "/v1/servers/good/actions/onboard", map[string]any{}, nil)
	is := func(name string, phase schema.Phase) func() (bool, string) {
		return func() (bool, string) {
			v := w.servers()[name]
			said := string(v.Phase) + " " + string(v.Step)
			if v.Failure != nil {
				said += ": " + v.Failure.Text
			}
			return v.Phase == phase, said
		}
	}
	w.until("good is in the pool", is("good", schema.PhaseAvailable))
	for _, name := range []string{"good", "liar"} {
		w.do(http.MethodPost, "/v1/servers/"+name+"/actions/retire", contract.RetireOptions{Reason: "sold", Overwrite: false}, nil)
	}
	w.until("good is retired", is("good", schema.PhaseRetired))
	w.until("liar has stopped", func() (bool, string) {
		v := w.servers()["liar"]
		return v.Failure != nil && v.Failure.Code == string(schema.FailSanitise), string(v.Phase) + " " + string(v.Step)
	})
	var good, liar contract.RetirementReport
	w.do(http.MethodGet, "/v1/servers/good/retirement", nil, &good)
	w.do(http.MethodGet, "/v1/servers/liar/retirement", nil, &liar)
	for _, c := range good.Certificates {
		if c.Outcome != schema.DriveSanitised || c.Verified == "" || !strings.HasPrefix(c.Serial, c.ServerSerial) {
			t.Errorf("a certificate of the good one: %+v", c)
		}
	}
	if len(good.Certificates) != 3 || good.Retirement == nil || good.Retirement.Outcome != "sanitised" {
		t.Errorf("good: %d certificates, %+v", len(good.Certificates), good.Retirement)
	}
	troubles := map[schema.DriveTrouble]int{}
	for _, c := range liar.Certificates {
		troubles[c.Trouble]++
	}
	if len(liar.Certificates) != 3 || troubles[schema.DriveLying] != 1 || troubles[schema.DriveUnsupported] != 1 || troubles[""] != 1 {
		t.Errorf("liar: %+v", liar.Certificates)
	}
	text := w.servers()["liar"].Failure.Text
	for _, words := range []string{"1 sanitised, 2 failed", "failed lying", "failed unsupported", "still hold their mark"} {
		if !strings.Contains(text, words) {
			t.Errorf("the failure does not say %q: %s", words, text)
		}
	}
	w.do(http.MethodPost, "/v1/servers/liar/actions/skip", contract.SkipStep{Step: schema.StepSanitise, Reason: "both drives were shredded"}, nil)
	w.until("liar is retired", is("liar", schema.PhaseRetired))
	w.do(http.MethodGet, "/v1/servers/liar/retirement", nil, &liar)
	if !strings.HasPrefix(liar.Retirement.Outcome, "NOT sanitised: skipped by") {
		t.Errorf("liar's outcome is %q", liar.Retirement.Outcome)
	}
	if machines, err = hands.State(ctx); err != nil {
		t.Fatal(err)
	}
	for _, m := range machines {
		if m.On || m.Server != "" {
			t.Errorf("%s is on %v, and its disk is of %q", m.Name, m.On, m.Server)
		}
	}
}
