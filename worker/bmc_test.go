package worker_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpupool/deploy/lab/bmc"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/secret"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/worker"
	"gpupool/worker/config"
)

// eventually waits for a condition of the record.
func eventually(t testing.TB, s *store.Store, what string, ok func() (bool, error)) {
	t.Helper()
	w := s.Watch(store.TopicAll)
	defer w.Close()
	deadline := time.After(60 * time.Second)
	for {
		done, err := ok()
		if err != nil {
			t.Fatal(err)
		}
		if done {
			return
		}
		select {
		case <-w.C:
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// bmcSite is a whole process with one site, in which one server of the pool has a BMC of a profile.
func bmcSite(t *testing.T, profile, listen string, settings ...string) (*bmc.Server, *store.Store, schema.Server) {
	t.Helper()
	of, err := bmc.ByName(profile)
	if err != nil {
		t.Fatal(err)
	}
	machine := bmc.New(of, bmc.Hooks{}, bmc.WithIdentity(bmc.Identity{Serial: "SN-1"}))
	if err := machine.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := machine.Close(); err != nil {
			t.Error(err)
		}
	})
	c, err := config.Load(config.Source{Set: append([]string{"data_dir=" + t.TempDir(), "regions=eu", "sites=hall-1", "roles=api,worker,allocator", "api.listen=" + listen, "durability=normal",
		"bmc.watch_interval=1s"}, settings...)})
	if err != nil {
		t.Fatal(err)
	}
	p, err := worker.Start(t.Context(), c, slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	ring, err := secret.Load(c.Secrets.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	user, password := machine.Credential()
	n := storetest.NewServer(1, h100, 8)
	n.Site, n.Region, n.Serial, n.BMCAddress, n.BMCUsername, n.BMCPassword = "hall-1", "eu", "SN-1", machine.URL(), user, password
	return machine, p.Store, storetest.AvailableWith(t, p.Store, ring, n)
}

// What a person asks of a BMC goes through the record, a workflow and the site's worker; what the watch sees comes back as
// faults.
func TestBMCsAreOperatedAndWatchedByTheWholeProcess(t *testing.T) {
	t.Parallel()
	machine, db, v := bmcSite(t, bmc.DGXH100, "127.0.0.1:0", "bmc.rotate_after=1h")
	ctx := t.Context()
	act := func(verb schema.BMCVerb, args schema.BMCArgs) schema.BMCAct {
		t.Helper()
		a, err := db.AskBMC(ctx, v.ID, verb, args, "", "op")
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, db, string(verb)+" ended", func() (bool, error) {
			a, err = db.BMCAct(ctx, a.ID)
			return a.EndedAt != 0, err
		})
		if a.Failure != "" {
			t.Fatalf("%s: %s", verb, a.Failure)
		}
		return a
	}

	if a := act(schema.BMCIdentify, schema.BMCArgs{}); !strings.Contains(string(a.Result), `"SN-1"`) || !strings.Contains(string(a.Result), `"accelerators":"known"`) {
		t.Fatalf("identity %s", a.Result)
	}
	var doctor struct {
		Usable   bool
		Findings []struct{ Check, State, Text string }
	}
	if err := json.Unmarshal(act(schema.BMCDoctor, schema.BMCArgs{}).Result, &doctor); err != nil || !doctor.Usable || len(doctor.Findings) < 12 {
		t.Fatalf("doctor %+v, %v", doctor, err)
	}
	capture := act(schema.BMCCapture, schema.BMCArgs{})
	if f, err := db.BMCFile(ctx, capture.ID); err != nil || f.Name != v.Name+"-redfish.tar.gz" || len(f.Content) < 1000 {
		t.Fatalf("file %s, %d bytes, %v", f.Name, len(f.Content), err)
	}
	_, password := machine.Credential()
	act(schema.BMCRotate, schema.BMCArgs{})
	if _, now := machine.Credential(); now == password {
		t.Fatal("the password is the old one")
	}

	// Jobs may come at any moment: nobody cuts its power.
	if _, err := db.AskBMC(ctx, v.ID, schema.BMCPower, schema.BMCArgs{Want: "off"}, "", "op"); !schema.Is(err, schema.CodeUnsafe) {
		t.Fatalf("power off of an available server: %v", err)
	}
	for verb, args := range map[schema.BMCVerb]schema.BMCArgs{schema.BMCOrder: {First: []string{"Boot0002"}}, schema.BMCBIOS: {Attributes: map[string]string{"NumaNodes": "4"}}, schema.BMCMedia: {Image: "http://192.0.2.1/x.iso"}} {
		if _, err := db.AskBMC(ctx, v.ID, verb, args, "", "op"); !schema.Is(err, schema.CodeUnsafe) {
			t.Fatalf("%s of an available server: %v", verb, err)
		}
	}
	if _, err := db.Cordon(ctx, v.ID, "", schema.CordonOperator, "op", "a new fan"); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		verb  schema.BMCVerb
		args  schema.BMCArgs
		wants []string
	}{
		{schema.BMCFirmware, schema.BMCArgs{}, []string{`"version":"`}},
		{schema.BMCMetrics, schema.BMCArgs{}, []string{`"slot":"SXM8"`, `"correctable_ecc":0`}},
		{schema.BMCBIOS, schema.BMCArgs{Attributes: map[string]string{"NumaNodes": "4", "SRIOVEnable": "false"}}, []string{`{"reboot":true}`}},
		{schema.BMCBIOS, schema.BMCArgs{}, []string{`{"name":"NumaNodes","value":2,"next":4}`, `{"name":"SRIOVEnable","value":true,"next":false}`}},
		{schema.BMCMedia, schema.BMCArgs{Image: "http://192.0.2.1/x.iso"}, []string{`"image":"http://192.0.2.1/x.iso","inserted":true`}},
		{schema.BMCMedia, schema.BMCArgs{Eject: true}, []string{`"inserted":false`}},
	} {
		a := act(x.verb, x.args)
		for _, want := range x.wants {
			if !strings.Contains(string(a.Result), want) {
				t.Errorf("%s: %s is not in %s", x.verb, want, a.Result)
			}
		}
	}
	var entries []struct{ Ref string }
	if err := json.Unmarshal(act(schema.BMCOrder, schema.BMCArgs{}).Result, &entries); err != nil || len(entries) < 2 {
		t.Fatalf("%d boot entries, %v", len(entries), err)
	}
	last := entries[len(entries)-1].Ref
	if a := act(schema.BMCOrder, schema.BMCArgs{First: []string{last}}); !strings.HasPrefix(string(a.Result), `[{"ref":"`+last+`"`) {
		t.Errorf("%s is not first in %s", last, a.Result)
	}
	act(schema.BMCBoot, schema.BMCArgs{From: "disk"})
	if a := act(schema.BMCPower, schema.BMCArgs{Want: "off", Hard: true}); !strings.Contains(string(a.Result), `"now":"off"`) {
		t.Fatalf("power %s", a.Result)
	}
	eventually(t, db, "the watch sees the power off", func() (bool, error) {
		list, err := db.BMCSightings(ctx, v.ID)
		return len(list) == 1 && list[0].Power == "off", err
	})
	act(schema.BMCPower, schema.BMCArgs{Want: "on"})

	// The first sight is a baseline, so there has to have been one.
	eventually(t, db, "the watch knows the server", func() (bool, error) {
		m, err := db.BMCMemories(ctx, "hall-1")
		return m[v.ID] != nil, err
	})
	if _, err := machine.AddLogEntry(machine.SystemPath()+"/LogServices/EventLog", bmc.Doc{"Message": "GPU_SXM_3 Driver Event Message '[XID 79 GPU has fallen off the bus]'", "MessageId": "ResourceEvent.1.0.ResourceErrorsDetected",
		"MessageArgs": []any{"GPU_SXM_3 Driver Event Message", "XID 79"}, "Created": time.Now().UTC().Format(time.RFC3339), "Severity": "Critical"}); err != nil {
		t.Fatal(err)
	}
	var f schema.Fault
	eventually(t, db, "the log's XID is a judged fault", func() (bool, error) {
		list, err := db.Faults(ctx, v.ID)
		if len(list) > 0 {
			f = list[0]
		}
		return f.Verdict != "", err
	})
	if f.Source != "redfish" || f.Kind != "xid" || f.Code != "79" || f.Verdict != "reset" || f.Repair == "" || f.Accelerator == "" {
		t.Fatalf("fault %+v", f)
	}
	// The agent tells of the same event.
	same := agentproto.Evidence{ID: "e1", Device: fmt.Sprintf("%s-GPU3", "x"), Kind: "xid", Code: "79", Severity: schema.SeverityCritical, Text: "XID 79", At: f.At}
	acc, err := db.Accelerators(ctx, store.AcceleratorFilter{Server: v.ID})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range acc {
		if a.ID == f.Accelerator {
			same.Device = a.Serial
		}
	}
	if _, err := db.Heartbeat(ctx, v.ID, agentproto.Heartbeat{Apart: true, BootID: "b", Evidence: []agentproto.Evidence{same}}); err != nil {
		t.Fatal(err)
	}
	if list, err := db.Faults(ctx, v.ID); err != nil || len(list) != 1 {
		t.Fatalf("%d faults of one event, %v", len(list), err)
	}
	if n := machine.OpenSessions(); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// What a server's BMC shows of its power, its fans and its coolant becomes a verdict: one that fails is only told, none to
// spare calls a technician, a leak takes the server out. What is mended is told as over.
func TestPowerFansAndLeaksOfABMCAreJudged(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		profile    string
		unit       bmc.Unit
		kind       string
		names      []string // of the units that fail, in order
		first, all string   // verdicts: of the first, and of the whole kind
		lastPart   string   // what the repair is of
	}{
		{bmc.DGXH100, bmc.PSU, "power-supply", []string{"PSU3", "PSU1", "PSU6"}, "observe", "cordon", "power supplies"},
		{bmc.GB200, bmc.Fan, "fan", []string{"FAN8", "FAN2"}, "observe", "cordon", "fans"},
		{bmc.GB200, bmc.Leak, "leak", []string{"Chassis_0_LeakDetector_1_ColdPlate"}, "repair", "repair", "Chassis_0_LeakDetector_1_ColdPlate"},
	} {
		t.Run(tc.kind, func(t *testing.T) {
			t.Parallel()
			machine, db, v := bmcSite(t, tc.profile, "127.0.0.1:0")
			ctx := t.Context()
			eventually(t, db, "the watch knows the server", func() (bool, error) {
				m, err := db.BMCMemories(ctx, "hall-1")
				return m[v.ID] != nil, err
			})
			judged := func(part string) schema.Fault {
				t.Helper()
				var f schema.Fault
				eventually(t, db, part+" is judged", func() (bool, error) {
					list, err := db.Faults(ctx, v.ID)
					for _, x := range list {
						if x.Part == part && x.Verdict != "" {
							f = x
						}
						if x.Kind != tc.kind || x.Source != "redfish" {
							return false, fmt.Errorf("%+v", x)
						}
					}
					return f.ID != "", err
				})
				return f
			}
			for _, name := range tc.names {
				if _, err := machine.SetUnit(tc.unit, name, "Critical"); err != nil {
					t.Fatal(err)
				}
				if f := judged(name); f.Verdict != tc.first || !strings.Contains(f.Text, name) {
					t.Fatalf("fault %+v", f)
				}
			}
			f := judged(tc.lastPart)
			if f.Verdict != tc.all || f.Repair == "" {
				t.Fatalf("fault %+v", f)
			}
			r, err := db.Repair(ctx, f.Repair)
			if err != nil || r.Part != tc.lastPart || r.Cure != schema.CureTechnician {
				t.Fatalf("repair %+v, %v", r, err)
			}
			if tc.unit == bmc.Leak {
				return // one that has dried has leaked all the same
			}
			for _, name := range tc.names {
				if _, err := machine.SetUnit(tc.unit, name, "OK"); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, db, "all are over", func() (bool, error) {
				list, err := db.Faults(ctx, v.ID)
				for _, x := range list {
					if x.ClearedAt == 0 {
						return false, err
					}
				}
				return len(list) == len(tc.names)+1, err
			})
			if r, err = db.Repair(ctx, f.Repair); err != nil || r.Cure != schema.CureBurnIn {
				t.Fatalf("nothing is left to cure, and the repair asks for %s, %v", r.Cure, err)
			}
		})
	}
}

// A BMC without an event stream is told where to push its events, and what it pushes reaches the watch through the API.
func TestWhatABMCPushesReachesTheWatch(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	machine, db, v := bmcSite(t, bmc.SupermicroMI300X, address, "bmc.event_url=http://"+address)
	ctx := t.Context()
	eventually(t, db, "the BMC knows where to push", func() (bool, error) { return len(machine.Subscriptions()) == 1, nil })
	if to := machine.Subscriptions()[0]; !strings.HasPrefix(to, "http://"+address+schema.PathBMCEvents+"/"+v.ID+"/") || len(to) < len("http://"+address+schema.PathBMCEvents+"/"+v.ID+"/")+20 {
		t.Fatalf("it pushes to %s", to)
	}
	eventually(t, db, "the watch knows the server", func() (bool, error) {
		m, err := db.BMCMemories(ctx, "hall-1")
		return m[v.ID] != nil, err
	})
	if _, err := machine.AddLogEntry("/redfish/v1/Systems/UBB/LogServices/EventLog", bmc.Doc{"Message": "OAM_3 Driver Event Message '[XID 79 GPU has fallen off the bus]'", "Severity": "Critical",
		"MessageArgs": []any{"OAM_3 Driver Event Message"}, "Created": time.Now().UTC().Format(time.RFC3339)}); err != nil {
		t.Fatal(err)
	}
	eventually(t, db, "the event is a fault", func() (bool, error) {
		list, err := db.Faults(ctx, v.ID)
		return len(list) == 1 && list[0].Source == "redfish" && list[0].Code == "79", err
	})
	if heard, err := db.BMCHeard(ctx, v.ID); err != nil || heard == 0 {
		t.Fatalf("heard at %v, %v: the fault came by polling", heard, err)
	}
}

// A range is probed by a worker of the site: what answers is kept, what is enrolled is no find, and nobody is logged in to.
func TestASitesWorkerProbesARange(t *testing.T) {
	t.Parallel()
	machine, db, _ := bmcSite(t, bmc.Dell, "127.0.0.1:0", "bmc.watch_interval=1h")
	_, port, err := net.SplitHostPort(strings.TrimPrefix(machine.URL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.3:"+port)
	if err != nil {
		t.Skipf("only one loopback address here: %v", err)
	}
	of, err := bmc.ByName(bmc.HPE)
	if err != nil {
		t.Fatal(err)
	}
	stranger := bmc.New(of, bmc.Hooks{})
	stranger.Serve(l)
	t.Cleanup(func() {
		if err := stranger.Close(); err != nil {
			t.Error(err)
		}
	})
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	for field, ask := range map[string]func() error{
		"site": func() error {
			_, err := db.AskBMCProbe(t.Context(), store.NewBMCProbe{Site: "Hall 1", Range: "127.0.0.0/29", Port: 0, PlainHTTP: false}, storetest.Ring(t), "op")
			return err
		},
		"range": func() error {
			_, err := db.AskBMCProbe(t.Context(), store.NewBMCProbe{Site: "hall-1", Range: "127.0.0.0/8", Port: 0, PlainHTTP: false}, storetest.Ring(t), "op")
			return err
		},
		"port": func() error {
			_, err := db.AskBMCProbe(t.Context(), store.NewBMCProbe{Site: "hall-1", Range: "127.0.0.0/29", Port: 1 << 16, PlainHTTP: false}, storetest.Ring(t), "op")
			return err
		},
	} {
		var e *schema.Error
		if err := ask(); !errors.As(err, &e) || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	p, err := db.AskBMCProbe(t.Context(), store.NewBMCProbe{Site: "hall-1", Range: "127.0.0.0/29", Port: number, PlainHTTP: true}, storetest.Ring(t), "op")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, db, "the probe has ended", func() (bool, error) { p, err = db.BMCProbe(t.Context(), p.ID); return p.EndedAt != 0, err })
	if p.Failure != "" || len(p.Found) != 2 || p.StartedAt == 0 || p.Found[1].Address != stranger.URL() || p.Found[1].Vendor != "HPE" {
		t.Fatalf("%+v", p)
	}
	kept, err := db.BMCsFound(t.Context(), "hall-1")
	if err != nil || len(kept) != 1 || kept[0].Address != stranger.URL() {
		t.Fatalf("kept %+v, %v", kept, err)
	}
	for _, r := range stranger.Requests() {
		if r.Method != "GET" || r.Path != "/redfish/v1" {
			t.Errorf("%s %s", r.Method, r.Path)
		}
	}
}
