package demo_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpupool/api/contract"
	"gpupool/cmd/gpupool/demo"
	"gpupool/deploy/lab"
	"gpupool/pxe/boot"
	"gpupool/schema"
	"gpupool/schema/hardware"
	"gpupool/schema/store"
)

// failing is a data centre in which each server but one meets another trouble on its way in.
const failing = `
servers:
  - {name: well,    profile: dgx-h100,       devices: {model: nvidia-h100-80gb, count: 2}}
  - {name: cable,   profile: dgx-h100,       devices: {model: nvidia-h100-80gb, count: 2}, faults: [no-dhcp]}
  - {name: nofile,  profile: supermicro-hgx-h100, devices: {model: nvidia-h100-80gb, count: 2}, arch: arm64}
  - {name: kernel,  profile: supermicro-hgx-h100, devices: {model: nvidia-h100-80gb, count: 2}, faults: [kernel-hang]}
  - {name: install, profile: dgx-h100,       devices: {model: nvidia-h100-80gb, count: 2}, faults: [install-hang]}
  - {name: nobmc,   profile: dgx-h100,       devices: {model: nvidia-h100-80gb, count: 2}, faults: [bmc-down]}
  - {name: silent,  profile: dgx-h100,       devices: {model: nvidia-h100-80gb, count: 2}}
  - {name: short,   profile: dgx-h100,       devices: {model: nvidia-h100-80gb, count: 2}, faults: [dimm-missing, nvme-missing, nvme-narrow, nic-down, nic-slow, old-firmware, link SXM2]}
`

// ending is how an onboarding that meets a trouble is to stop, and how the trouble is lifted.
type ending struct {
	step  schema.Step
	code  schema.FailureCode
	words []string
	fault string // those that are cleared, with a space between; empty = the boot file is put in its place
}

var endings = map[string]ending{
	"cable":   {schema.StepProvision, schema.FailNoBoot, []string{"Proven: the power is on", "Not proven: that it reached this boot service: no DHCP message", "To do: ", "cable"}, lab.NoDHCP},
	"nofile":  {schema.StepProvision, schema.FailNoBoot, []string{"Proven: the firmware (MAC 02:6c:", "asked for its boot loader own/arm64.efi", "Not proven: that it has it (no such file)", "To do: put own/arm64.efi into", "pxe.boot_dir"}, ""},
	"kernel":  {schema.StepProvision, schema.FailInstall, []string{"Proven: the server took its install script and fetched image/x86_64/", "Not proven: that kernel and installer run", "To do: read the console"}, lab.KernelHang},
	"install": {schema.StepProvision, schema.FailInstall, []string{"Proven: the installer ran and fetched user-data", "Not proven: that the install ended: nobody phoned home", "To do: read the server's console"}, lab.InstallHang},
	"nobmc":   {schema.StepVerifyBMC, schema.FailBMC, []string{"no success at the BMC within 20s", "Proven: nothing but the last answer: identify http://127.66.0.6:", "bmc unreachable", "Not proven: that the BMC works", "To do: has it power"}, lab.BMCDown},
	"silent":  {schema.StepBurnIn, schema.FailInconclusive, []string{"burn-in was not done within 6s", "Proven: it was given out for the agent", "Not proven: that the agent is up: it did not take it", "To do: does the server run, and gpupool-agent on it"}, lab.AgentSilent},
	"short": {schema.StepBurnIn, schema.FailHardware, []string{"31 of the 32 dimm of 64 GiB ordered are there; empty: DIMM6", "2 of the 3 nvme of 3.84 TB ordered are there", "nvme link width: ordered x4, found x2 at nvme1",
		"nic speed: ordered 400 Gbit/s, found no link at mlx5_2/1, 100 Gbit/s at mlx5_4/1", "nic firmware: ordered >=28.43, found 28.39.1002 at mlx5_7/1", "accelerator link width: ordered x16, found x8 at SXM2"},
		strings.Join([]string{lab.DIMMMissing, lab.NVMeMissing, lab.NVMeNarrow, lab.NICDown, lab.NICSlow, lab.OldFirmware, "link"}, " ")},
}

// TestEachTroubleOnTheWayInIsToldAndARetrySucceedsOnceItIsLifted onboards the failing data centre with short waits.
// What came in then runs jobs, one of which loses its agent, and some of which are cancelled as they end.
func TestEachTroubleOnTheWayInIsToldAndARetrySucceedsOnceItIsLifted(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a minute")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	file := filepath.Join(dir, "lab.yaml")
	must(t, os.WriteFile(file, []byte(failing), 0o600))
	args, boots := []string{"--lab", file}, at(ports(t, "tcp", 1)[0])
	for _, set := range []string{"timing.power_rest=1s", "timing.phone_home=12s", "timing.bmc=20s", "timing.burn_in=6s", "timing.inventory=20s", "timing.heartbeat=500ms", "timing.agent_silent=4s", "timing.power_cut=5s", "timing.agent_back=40s",
		"pxe.stages={arm64: own/arm64.efi}", "pxe.http_listen=" + boots, "log.level=warn"} {
		args = append(args, "--set", set)
	}
	up, err := demo.Start(ctx, os.Args[0], dir, 0, args...)
	must(t, err)
	defer func() {
		up.Stop()
		if t.Failed() {
			if b, err := os.ReadFile(filepath.Join(dir, "up.log")); err == nil {
				t.Logf("the end of the server's log:\n%s", b[max(0, len(b)-6000):])
			}
		}
	}()
	hands, err := lab.Open(up.Lab)
	must(t, err)
	machines, err := hands.State(ctx)
	must(t, err)
	w := &way{t: t, ctx: ctx, up: up, hands: hands, boot: boots}
	var enrol bytes.Buffer
	must(t, lab.WriteEnrollment(&enrol, machines, "eu-north", "lab"))
	w.do(http.MethodPost, "/v1/servers/bulk", enrol.Bytes(), nil, "Content-Type", "application/yaml")
	w.do(http.MethodPut, "/v1/builds/nvidia-h100-80gb", contract.NewBuild{Parts: append(lab.Build(2), hardware.Line{Part: hardware.BIOS, Count: 1, Firmware: ">=1.1"})}, nil)
	for _, m := range machines {
		w.do(http.MethodPost, "/v1/servers/"+m.Name+"/actions/onboard", map[string]any{}, nil)
	}
	w.stopped()
	w.lifted(filepath.Join(dir, "data", "boot", "own", "arm64.efi"))
	w.strangers(machines[0])
	w.do(http.MethodPost, "/v1/specs", contract.NewSpec{Name: "h100x1", Model: "nvidia-h100-80gb", Accelerators: 1, Cpus: 8, MemoryBytes: 128 << 30}, nil)
	w.do(http.MethodPost, "/v1/tenants", contract.NewTenant{Name: "blue", MaxPriority: 100}, nil)
	w.do(http.MethodPost, "/v1/tenants/blue/projects", contract.NewProject{Name: "main"}, nil)
	w.agentFallsSilent()
	w.cancelled()
	up.Stop()
	db, err := store.Open(ctx, store.Config{Driver: "sqlite", DSN: filepath.Join(dir, "data", "gpupool.db")})
	must(t, err)
	defer db.Close()
	checkPool(t, db, 1)
}

// way is the test's operator and technician.
type way struct {
	t     *testing.T
	ctx   context.Context
	up    *demo.Up
	hands *lab.Client
	boot  string // address of the boot service's HTTP
}

func (w *way) do(method, path string, body, out any, header ...string) {
	w.t.Helper()
	b, err := ask(w.ctx, w.up, method, path, body, header...)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	if out != nil {
		must(w.t, json.Unmarshal(b, out))
	}
}

func (w *way) servers() map[string]contract.Server {
	w.t.Helper()
	var l contract.ServerList
	w.do(http.MethodGet, "/v1/servers", nil, &l)
	out := map[string]contract.Server{}
	for _, v := range l.Items {
		out[v.Name] = v
	}
	return out
}

// until waits for what is, and says what was last seen where it does not come.
func (w *way) until(what string, is func() (bool, string)) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 90*time.Second)
	defer cancel()
	seen := ""
	if err := when(ctx, func() (ok bool, err error) { ok, seen = is(); return ok, nil }); err != nil {
		w.t.Fatalf("%s did not come: %s", what, seen)
	}
}

// stopped waits until every server is in the pool or has stopped, and reads what is said of it.
func (w *way) stopped() {
	w.t.Helper()
	silenced := false
	var have map[string]contract.Server
	w.until("the end of every onboarding", func() (bool, string) {
		have = w.servers()
		if !silenced && have["silent"].Step == schema.StepBurnIn {
			var steps contract.StepList
			w.do(http.MethodGet, "/v1/servers/silent/steps", nil, &steps)
			if silenced = slices.ContainsFunc(steps.Items, func(r contract.StepRun) bool {
				// The agent takes its work within milliseconds and is at it for seconds; it is given out once more, to nobody then.
				return strings.Contains(r.Detail, "testing them") || strings.Contains(r.Detail, "burn-in: the server's agent is at it")
			}); silenced {
				must(w.t, w.hands.Fault(w.ctx, "silent", "", lab.AgentSilent))
			}
		}
		seen, all := "", true
		for name, v := range have {
			seen += fmt.Sprintf("%s is %s at %s; ", name, v.Phase, v.Step)
			all = all && (v.Phase == schema.PhaseAvailable || v.Failure != nil)
		}
		return all, seen
	})
	for name, v := range have {
		want, ok := endings[name]
		if !ok {
			if v.Phase != schema.PhaseAvailable {
				w.t.Errorf("%s is %s: %+v", name, v.Phase, v.Failure)
			}
			continue
		}
		if v.Phase != schema.PhaseOnboarding || v.Failure == nil || v.Step != want.step || v.Failure.Code != string(want.code) || !v.Failure.Retryable {
			w.t.Errorf("%s is %s, stopped at %s with %+v; want %s at %s, to be tried again", name, v.Phase, v.Step, v.Failure, want.code, want.step)
			continue
		}
		w.t.Logf("%s stopped at %s: %s", name, v.Step, v.Failure.Text)
		for _, words := range want.words {
			if !strings.Contains(v.Failure.Text, words) {
				w.t.Errorf("%s: %q is not said", name, words)
			}
		}
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// lifted takes each trouble away and has the step tried again.
func (w *way) lifted(bootFile string) {
	w.t.Helper()
	must(w.t, os.MkdirAll(filepath.Dir(bootFile), 0o755))
	must(w.t, os.WriteFile(bootFile, bytes.Repeat([]byte("x"), 1000), 0o644))
	for name, e := range endings {
		for _, fault := range strings.Fields(e.fault) {
			dev := ""
			if fault == "link" {
				dev = "SXM2"
			}
			must(w.t, w.hands.Clear(w.ctx, name, dev, fault))
		}
		w.do(http.MethodPost, "/v1/servers/"+name+"/actions/retry", map[string]any{}, nil)
	}
	w.until("every server's way into the pool", func() (bool, string) {
		seen, all := "", true
		for name, v := range w.servers() {
			all = all && v.Phase == schema.PhaseAvailable
			if v.Failure != nil { // these waits are short for a busy machine: the operator tries once more
				w.t.Logf("%s stopped again at %s: %s", name, v.Step, v.Failure.Text)
				if _, err := ask(w.ctx, w.up, http.MethodPost, "/v1/servers/"+name+"/actions/retry", map[string]any{}); err != nil && !schema.Is(err, schema.CodeConflict) {
					w.t.Fatal(err)
				}
			}
			seen += fmt.Sprintf("%s is %s at %s (%+v); ", name, v.Phase, v.Step, v.Failure)
		}
		return all, seen
	})
	machines, err := w.hands.State(w.ctx)
	must(w.t, err)
	for _, m := range machines {
		if m.Installs != 1 || m.Attempt != 1 {
			w.t.Errorf("%s was installed %d times, in attempt %d", m.Name, m.Installs, m.Attempt)
		}
	}
}

// strangers guess boot tokens from an address of their own, and replay the phone-home of a server that is in the pool.
func (w *way) strangers(m lab.ServerState) {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 88, 0, 1)}}).DialContext, DisableKeepAlives: true}}
	refused := 0
	for range 20 {
		resp, err := client.Get("http://" + w.boot + "/b/" + strings.Repeat("A", 43) + "/user-data")
		must(w.t, err)
		resp.Body.Close()
		if resp.StatusCode == http.StatusTooManyRequests {
			break
		}
		if resp.StatusCode != http.StatusForbidden {
			w.t.Fatalf("a guessed boot token was answered %s", resp.Status)
		}
		refused++
	}
	if refused == 0 || refused == 20 {
		w.t.Fatalf("%d guesses in a row from one address were looked at", refused)
	}
	w.until("the guesses on record", func() (bool, string) {
		n := 0
		for _, e := range w.events(schema.EventBoot) {
			var b schema.BootEvidence
			must(w.t, json.Unmarshal(e.Data, &b))
			if b.Kind == boot.KindToken && b.IP == "127.88.0.1" {
				n++
			}
			if strings.Contains(string(e.Data), "AAAAAAAA") {
				w.t.Fatal("the record holds the token that was shown")
			}
		}
		return n == refused, fmt.Sprintf("%d of %d", n, refused)
	})
	// The disk of a server holds what it phoned home with.
	b, err := os.ReadFile(filepath.Join(w.up.Lab, "servers", m.Name, "machine.json"))
	must(w.t, err)
	var kept struct {
		Disk struct {
			Home struct {
				Token string `json:"phone_home_token"`
			} `json:"phone_home"`
			Server string `json:"server"`
		} `json:"disk"`
	}
	must(w.t, json.Unmarshal(b, &kept))
	if kept.Disk.Home.Token == "" {
		w.t.Fatalf("no token is on the disk: %s", b)
	}
	key := "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	req, err := http.NewRequestWithContext(w.ctx, http.MethodPost, w.up.URL+"/agent/v1/register", strings.NewReader(fmt.Sprintf(`{"server": %q, "attempt": 1, "public_key": %q, "boot_id": "x"}`, kept.Disk.Server, key)))
	must(w.t, err)
	req.Header.Set("Authorization", "Bearer "+kept.Disk.Home.Token)
	resp, err := client.Do(req)
	must(w.t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		w.t.Fatalf("a replayed phone-home was answered %s", resp.Status)
	}
	w.until("the replay on record", func() (bool, string) {
		return slices.ContainsFunc(w.events(schema.EventAudit), func(e schema.Event) bool {
			return e.By == "phone-home" && e.Subject == kept.Disk.Server && strings.Contains(string(e.Data), "127.88.0.1")
		}), "no audit event"
	})
}

func (w *way) events(kind schema.EventKind) []schema.Event {
	w.t.Helper()
	var all []schema.Event
	for after := int64(0); ; {
		var l struct {
			Items []schema.Event `json:"items"`
			Next  int64          `json:"next"`
		}
		w.do(http.MethodGet, fmt.Sprintf("/v1/events?limit=1000&after=%d", after), nil, &l)
		for _, e := range l.Items {
			if e.Kind == kind {
				all = append(all, e)
			}
		}
		if len(l.Items) < 1000 {
			return all
		}
		after = l.Next
	}
}

func (w *way) submit(name string, seconds string) contract.Job {
	w.t.Helper()
	var j contract.Job
	w.do(http.MethodPost, "/v1/jobs", map[string]any{"tenant": "blue", "project": "main", "name": name, "spec": "h100x1", "command": []string{"sleep", seconds}, "grace_ms": 1000}, &j, "Idempotency-Key", name)
	return j
}

func (w *way) attempts(job string) []contract.Attempt {
	w.t.Helper()
	var l contract.AttemptList
	w.do(http.MethodGet, "/v1/jobs/"+job+"/attempts", nil, &l)
	return l.Items
}

// agentFallsSilent silences the agent under a running job: the job can neither be watched nor ended, so the server's power
// is cut, which proves that it has ended; it runs elsewhere, and the server comes back proven.
func (w *way) agentFallsSilent() {
	w.t.Helper()
	j := w.submit("orphan", "15")
	w.until("the job's start", func() (bool, string) {
		w.do(http.MethodGet, "/v1/jobs/"+j.Id, nil, &j)
		return j.State == schema.JobRunning, string(j.State)
	})
	first := w.attempts(j.Id)[0].Devices[0].Server
	name := ""
	for n, v := range w.servers() {
		if v.Id == first {
			name = n
		}
	}
	boots := w.machine(name).Boots
	must(w.t, w.hands.Fault(w.ctx, name, "", lab.AgentSilent))
	w.until("the loss of the attempt", func() (bool, string) {
		at := w.attempts(j.Id)
		return at[0].Outcome != schema.AttemptLive, string(at[0].Outcome)
	})
	must(w.t, w.hands.Clear(w.ctx, name, "", lab.AgentSilent))
	w.until("the job's end and the server's return", func() (bool, string) {
		w.do(http.MethodGet, "/v1/jobs/"+j.Id, nil, &j)
		v := w.servers()[name]
		return j.State.Ended() && v.Phase == schema.PhaseAvailable, fmt.Sprintf("the job is %s, the server %s", j.State, v.Phase)
	})
	at := w.attempts(j.Id)
	if j.State != schema.JobCompleted || len(at) != 2 || at[0].Outcome != schema.AttemptLost || at[1].Outcome != schema.AttemptCompleted || at[1].Devices[0].Server == first {
		w.t.Fatalf("the job is %s after %+v", j.State, at)
	}
	if now := w.machine(name).Boots; now <= boots {
		w.t.Fatalf("the power of %s was not cut: it booted %d times before and %d after", name, boots, now)
	}
}

func (w *way) machine(name string) lab.ServerState {
	w.t.Helper()
	machines, err := w.hands.State(w.ctx)
	must(w.t, err)
	for _, m := range machines {
		if m.Name == name {
			return m
		}
	}
	w.t.Fatalf("no machine %s", name)
	return lab.ServerState{}
}

// cancelled cancels jobs about when they end by themselves: what was accepted and what was refused is what came true.
func (w *way) cancelled() {
	w.t.Helper()
	var jobs []contract.Job
	for i := range 24 {
		jobs = append(jobs, w.submit(fmt.Sprint("short-", i), "0.4"))
	}
	refused := make([]bool, len(jobs))
	var wg sync.WaitGroup
	for i, j := range jobs {
		wg.Go(func() {
			for ctx := w.ctx; ctx.Err() == nil; {
				b, err := ask(ctx, w.up, http.MethodGet, "/v1/jobs/"+j.Id+"?wait=10s", nil)
				if err != nil || json.Unmarshal(b, &j) != nil {
					w.t.Errorf("%s: %v", j.Name, err)
					return
				}
				if j.State == schema.JobRunning || j.State.Ended() {
					break
				}
			}
			select { // the race that is meant
			case <-time.After(time.Duration(rand.IntN(900)) * time.Millisecond):
			case <-w.ctx.Done():
			}
			_, err := ask(w.ctx, w.up, http.MethodPost, "/v1/jobs/"+j.Id+"/actions/cancel", nil)
			refused[i] = schema.Is(err, schema.CodeConflict)
			if err != nil && !refused[i] {
				w.t.Errorf("cancelling %s: %v", j.Name, err)
			}
		})
	}
	wg.Wait()
	done, stopped := 0, 0
	for i := range jobs {
		w.until("the end of "+jobs[i].Name, func() (bool, string) {
			w.do(http.MethodGet, "/v1/jobs/"+jobs[i].Id, nil, &jobs[i])
			return jobs[i].State.Ended(), string(jobs[i].State)
		})
		switch j := jobs[i]; {
		case j.State == schema.JobCompleted:
			done++
		case j.State == schema.JobCancelled && !refused[i]:
			stopped++
		default:
			w.t.Errorf("%s is %s (%s); its cancel was refused: %v", j.Name, j.State, j.Cause, refused[i])
		}
		if at := w.attempts(jobs[i].Id); len(at) != 1 || at[0].Outcome == schema.AttemptLive {
			w.t.Errorf("%s has the attempts %+v", jobs[i].Name, at)
		}
	}
	w.t.Logf("of %d jobs that were cancelled as they ended %d completed and %d were stopped", len(jobs), done, stopped)
}
