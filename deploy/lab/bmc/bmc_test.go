package bmc_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gpupool/deploy/lab/bmc"
	"gpupool/schema/shared"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client is the least that speaks Redfish, so that the lab is judged without the product's own client.
type client struct {
	t     *testing.T
	url   string
	token string
	http  *http.Client
}

func start(t *testing.T, profile string, h bmc.Hooks, opts ...bmc.Option) (*bmc.Server, *client) {
	t.Helper()
	p, err := bmc.ByName(profile)
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, bmc.New(p, h, opts...))
}

func serve(t *testing.T, s *bmc.Server) (*bmc.Server, *client) {
	t.Helper()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, url: s.URL(), http: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(func() {
		c.http.CloseIdleConnections()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	user, password := s.Credential()
	resp, _ := c.do("POST", "/redfish/v1/SessionService/Sessions", nil, map[string]any{"UserName": user, "Password": password})
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("login: %s", resp.Status)
	}
	c.token = resp.Header.Get("X-Auth-Token")
	return s, c
}

func (c *client) do(method, path string, header map[string]string, body any) (*http.Response, map[string]any) {
	c.t.Helper()
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			c.t.Fatal(err)
		}
		in = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.url+path, in)
	if err != nil {
		c.t.Fatal(err)
	}
	if c.token != "" {
		req.Header.Set("X-Auth-Token", c.token)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	var d map[string]any
	if len(b) > 0 {
		_ = json.Unmarshal(b, &d) // some resources are broken on purpose
	}
	return resp, d
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(5 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 5 s: %s", what)
		}
	}
}

func TestADGXWantsItsOverrideOnTheSettingsResourceWithThatResourcesTag(t *testing.T) {
	t.Parallel()
	s, c := start(t, bmc.DGXH100, bmc.Hooks{})
	triple := map[string]any{"Boot": map[string]any{"BootSourceOverrideEnabled": "Once", "BootSourceOverrideMode": "UEFI", "BootSourceOverrideTarget": "Pxe"}}

	sysResp, _ := c.do("GET", "/redfish/v1/Systems/DGX", nil, nil)
	sdResp, _ := c.do("GET", "/redfish/v1/Systems/DGX/SD", nil, nil)
	for _, step := range []struct {
		path, tag string
		want      int
	}{
		{"/redfish/v1/Systems/DGX", sysResp.Header.Get("ETag"), 400},
		{"/redfish/v1/Systems/DGX/SD", "", 428},
		{"/redfish/v1/Systems/DGX/SD", sysResp.Header.Get("ETag"), 412},
		{"/redfish/v1/Systems/DGX/SD", sdResp.Header.Get("ETag"), 204},
	} {
		h := map[string]string{}
		if step.tag != "" {
			h["If-Match"] = step.tag
		}
		if resp, _ := c.do("PATCH", step.path, h, triple); resp.StatusCode != step.want {
			t.Fatalf("PATCH %s If-Match %q: %d, want %d", step.path, step.tag, resp.StatusCode, step.want)
		}
	}
	if b := s.BootOverride(); b.Target != "Pxe" || !b.Once || b.Mode != "UEFI" {
		t.Fatalf("override %+v, want Pxe once UEFI", b)
	}
}

func TestAMachineIsToldOfItsPowerAndBootOnceIsConsumed(t *testing.T) {
	t.Parallel()
	boots := make(chan bmc.Boot, 4)
	offs := make(chan bool, 4)
	_, c := start(t, bmc.SupermicroHGX, bmc.Hooks{
		PowerOn: func(b bmc.Boot) { boots <- b }, PowerOff: func(g bool) { offs <- g },
	})
	reset := func(kind string, want int) {
		t.Helper()
		if resp, _ := c.do("POST", "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset", nil, map[string]any{"ResetType": kind}); resp.StatusCode != want {
			t.Fatalf("reset %s: %d, want %d", kind, resp.StatusCode, want)
		}
	}
	c.do("PATCH", "/redfish/v1/Systems/1", nil, map[string]any{"Boot": map[string]any{
		"BootSourceOverrideEnabled": "Once", "BootSourceOverrideMode": "UEFI", "BootSourceOverrideTarget": "Pxe"}})
	reset("Suspend", 400)
	reset("GracefulShutdown", 204)
	if graceful := <-offs; !graceful {
		t.Fatal("the shutdown was not graceful")
	}
	reset("On", 204)
	if b := <-boots; b.Target != "Pxe" || !b.Network() {
		t.Fatalf("first boot %+v, want Pxe", b)
	}
	reset("PowerCycle", 204)
	if b := <-boots; b.Target != "None" {
		t.Fatalf("second boot %+v, want the boot order", b)
	}
}

func TestSupermicroTurnsToLegacyWithoutTheModeAndShowsPxeAsBootNext(t *testing.T) {
	t.Parallel()
	_, c := start(t, bmc.SupermicroHGX, bmc.Hooks{})
	for _, step := range []struct{ mode, wantMode string }{{"", "Legacy"}, {"UEFI", "UEFI"}} {
		boot := map[string]any{"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}
		if step.mode != "" {
			boot["BootSourceOverrideMode"] = step.mode
		}
		c.do("PATCH", "/redfish/v1/Systems/1", nil, map[string]any{"Boot": boot})
		_, d := c.do("GET", "/redfish/v1/Systems/1", nil, nil)
		got := d["Boot"].(map[string]any)
		if got["BootSourceOverrideMode"] != step.wantMode || got["BootSourceOverrideTarget"] != "UefiBootNext" {
			t.Fatalf("sent mode %q: got %v %v, want %s UefiBootNext", step.mode, got["BootSourceOverrideMode"], got["BootSourceOverrideTarget"], step.wantMode)
		}
	}
}

func TestTheAccountLocksAfterTheThresholdOverEveryWayIn(t *testing.T) {
	t.Parallel()
	s, c := start(t, bmc.SupermicroHGX, bmc.Hooks{})
	user, password := s.Credential()
	c.token = ""
	basic := func(pw string) int {
		req, _ := http.NewRequestWithContext(t.Context(), "GET", c.url+"/redfish/v1/Systems", nil)
		req.SetBasicAuth(user, pw)
		resp, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	basic("wrong")
	basic("wrong")
	if got := basic(password); got != 200 {
		t.Fatalf("right password after two wrong ones: %d", got)
	}
	basic("wrong")
	c.do("POST", "/redfish/v1/SessionService/Sessions", nil, map[string]any{"UserName": user, "Password": "wrong"})
	basic("wrong")
	if got := basic(password); got != 401 || !s.Locked() {
		t.Fatalf("after three wrong ones: %d, locked %v; want 401 and locked", got, s.Locked())
	}
	for _, r := range s.Requests() {
		if strings.Contains(r.Body, "wrong") || strings.Contains(r.Body, password) {
			t.Fatalf("a password is in the request log: %s", r.Body)
		}
	}
}

func TestFaultRulesSpoilWhatTheyMatchAndEndWithTheirCount(t *testing.T) {
	t.Parallel()
	s, c := start(t, bmc.Dell, bmc.Hooks{})
	s.AddFault(bmc.Fault{Path: "/redfish/v1/Systems/**", Status: 503, Header: http.Header{"retry-after": {"1"}}, Count: 1})
	if resp, _ := c.do("GET", "/redfish/v1/Systems", nil, nil); resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" {
		t.Fatalf("first: %d", resp.StatusCode)
	}
	if resp, _ := c.do("GET", "/redfish/v1/Systems", nil, nil); resp.StatusCode != 200 {
		t.Fatalf("second: %d", resp.StatusCode)
	}
	s.AddFault(bmc.Fault{Path: "/redfish/v1/Systems/*", Merge: bmc.Doc{"Status": bmc.Doc{"Health": "Critical"}}})
	if _, d := c.do("GET", "/redfish/v1/Systems/System.Embedded.1", nil, nil); d["Status"].(map[string]any)["Health"] != "Critical" {
		t.Fatalf("merge: %v", d["Status"])
	}
}

func TestOneProfileServesManyMachinesEachWithItsOwnIdentity(t *testing.T) {
	t.Parallel()
	for _, name := range bmc.ProfileNames() {
		a, ca := start(t, name, bmc.Hooks{}, bmc.WithIdentity(bmc.Identity{Serial: "SER-AAAA1", MACs: []string{"52:54:00:00:00:01"}, GPUs: []bmc.GPU{{Serial: "GPU-AAAA1"}}}))
		b, cb := start(t, name, bmc.Hooks{}, bmc.WithIdentity(bmc.Identity{Serial: "SER-BBBB2"}))
		_, da := ca.do("GET", a.SystemPath(), nil, nil)
		_, db := cb.do("GET", b.SystemPath(), nil, nil)
		if da["SerialNumber"] != "SER-AAAA1" || db["SerialNumber"] != "SER-BBBB2" {
			t.Fatalf("%s: serials %v and %v", name, da["SerialNumber"], db["SerialNumber"])
		}
		if a.GPUs() == 0 {
			t.Fatalf("%s shows no accelerator", name)
		}
		if err := a.SetGPU(0, bmc.GPU{Serial: "GPU-NEW", Health: "Critical"}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestEveryCapturedTreeIsServedUnderAnotherIdentity(t *testing.T) {
	t.Parallel()
	archives, err := filepath.Glob(filepath.Join(shared.Path(t, "data", "redfish"), "*.tar.xz"))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(a), ".tar.xz"), func(t *testing.T) {
			t.Parallel()
			p, err := bmc.FromTree(a)
			if errors.Is(err, exec.ErrNotFound) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			s, c := serve(t, bmc.New(p, bmc.Hooks{}, bmc.WithIdentity(bmc.Identity{Serial: "SER-LAB-1", UUID: "11111111-2222-3333-4444-555555555555"}), bmc.WithMembersReversed()))
			_, d := c.do("GET", s.SystemPath(), nil, nil)
			if d["SerialNumber"] != "SER-LAB-1" || d["UUID"] != "11111111-2222-3333-4444-555555555555" {
				t.Fatalf("identity %v %v", d["SerialNumber"], d["UUID"])
			}
			t.Logf("%s: system %s, %d gpus, quirks %+v", p.Name, s.SystemPath(), s.GPUs(), p.Quirks)
			if resp, _ := c.do("POST", s.SystemPath()+"/Actions/ComputerSystem.Reset", nil, map[string]any{"ResetType": "ForceOff"}); resp.StatusCode != 204 {
				t.Fatalf("ForceOff: %s", resp.Status)
			}
			eventually(t, "off", func() bool { return !s.PowerOn() })
		})
	}
}

func TestAFolderAndAnArchiveOfItAreOneTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for p, body := range map[string]string{"": `{"Name":"root"}`, "/Systems": `{"Name":"systems"}`, "/../schemas": `{"Name":"schema"}`} {
		at := filepath.Join(dir, "capture", "redfish", "v1", filepath.FromSlash(p))
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "index.json"), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	folder, err := bmc.OpenTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := folder.Paths()
	slices.Sort(want)
	for name, flag := range map[string]string{"capture.tar.xz": "-cJf", "capture.tar.gz": "-czf"} {
		archive := filepath.Join(t.TempDir(), name)
		if out, err := exec.CommandContext(t.Context(), "tar", flag, archive, "-C", dir, "capture").CombinedOutput(); err != nil {
			t.Skipf("no tar, xz or gzip: %v: %s", err, out)
		}
		packed, err := bmc.OpenTree(archive)
		if err != nil {
			t.Fatal(err)
		}
		got := packed.Paths()
		slices.Sort(got)
		if len(want) != 3 || !slices.Equal(want, got) {
			t.Fatalf("the folder has %q, %s %q", want, name, got)
		}
		for _, p := range want {
			w, _ := folder.Read(p)
			if g, ok := packed.Read(p); !ok || !bytes.Equal(w, g) {
				t.Errorf("%s: %s: %q, not %q", name, p, g, w)
			}
		}
	}
}

func TestABrokenArchiveIsRefusedWithWhatIsWrong(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skip(err)
	}
	for end, c := range map[string]struct{ flag, garbage, cut, absent string }{
		".tar.xz": {"-cJf", "not recognized", "end of input", "No such file"},
		".tar.gz": {"-czf", "invalid header", "unexpected EOF", "no such file"},
	} {
		garbage := filepath.Join(dir, "garbage"+end)
		if err := os.WriteFile(garbage, []byte("no archive"), 0o600); err != nil {
			t.Fatal(err)
		}
		empty := filepath.Join(dir, "empty"+end)
		if out, err := exec.CommandContext(t.Context(), "tar", c.flag, empty, "-T", os.DevNull).CombinedOutput(); err != nil {
			t.Skipf("%v: %s", err, out)
		}
		whole, err := os.ReadFile(empty)
		if err != nil {
			t.Fatal(err)
		}
		cut := filepath.Join(dir, "cut"+end)
		if err := os.WriteFile(cut, whole[:len(whole)/2], 0o600); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]string{garbage: c.garbage, empty: "no redfish/v1/index.json", cut: c.cut, filepath.Join(dir, "absent"+end): c.absent} {
			if _, err := bmc.OpenTree(path); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", filepath.Base(path), err, want)
			}
		}
	}
}
