package bmc_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

// Case 1: the host is the system that can be reset, whatever the order, and nothing is ever asked of a baseboard.
func TestTheServerIsTheSystemThatCanBeResetWhateverTheOrder(t *testing.T) {
	t.Parallel()
	for name, host := range map[string]string{"nvidia_viking": "DGX", "nvidia_gb200": "System_0", "gb300_hgx": "System_0"} {
		for _, reversed := range []bool{false, true} {
			t.Run(name+map[bool]string{false: " as captured", true: " reversed"}[reversed], func(t *testing.T) {
				t.Parallel()
				opts := []lab.Option{lab.WithPower(false)}
				if reversed {
					opts = append(opts, lab.WithMembersReversed())
				}
				s := serve(t, captured(t, name), lab.Hooks{}, opts...)
				c := dial(t, s)
				id, err := c.Identify(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if !strings.HasSuffix(id.SystemID, "/"+host) {
					t.Fatalf("host %s, want %s", id.SystemID, host)
				}
				if id.Manufacturer == "" || id.Model == "" || id.Serial == "" {
					t.Fatalf("identity not filled from the chassis: %+v", id)
				}
				if p, err := c.Power(t.Context()); err != nil || p != bmc.PowerOff {
					t.Fatalf("power %s, %v; want off", p, err)
				}
				if err := c.SetPower(t.Context(), bmc.On); err != nil {
					t.Fatal(err)
				}
				if !s.PowerOn() {
					t.Fatal("SetPower returned and the machine is off")
				}
				for _, r := range s.Requests() {
					if strings.Contains(r.Path, "HGX_Baseboard_0") && r.Method != "GET" {
						t.Errorf("%s %s went to the baseboard", r.Method, r.Path)
					}
				}
				if bad := refusals(s); bad != nil {
					t.Errorf("refused: %v", bad)
				}
			})
		}
	}
}

// twins is a tree with a second server beside the one that it has: one BMC for the blades of an enclosure.
type twins struct {
	lab.Tree
	host, serial string
}

const twin = "/redfish/v1/Systems/Twin"

func (t twins) Read(path string) ([]byte, bool) {
	b, ok := t.Tree.Read(path)
	var d lab.Doc
	switch path {
	case "/redfish/v1/Systems":
		if json.Unmarshal(b, &d) != nil {
			return b, ok
		}
		d["Members"] = append([]any{lab.Doc{"@odata.id": twin}}, d["Members"].([]any)...)
	case twin:
		if b, _ = t.Tree.Read(t.host); json.Unmarshal(b, &d) != nil {
			return nil, false
		}
		d["@odata.id"], d["Id"], d["SerialNumber"], d["UUID"], d["SKU"] = twin, "Twin", t.serial, nil, nil
		d["Actions"] = lab.Doc{"#ComputerSystem.Reset": lab.Doc{"target": twin + "/Actions/ComputerSystem.Reset"}}
	default:
		return b, ok
	}
	b, err := json.Marshal(d)
	return b, err == nil
}

func (t twins) Paths() []string { return append(t.Tree.Paths(), twin) }

// Of several servers behind one BMC the one with the serial that was enrolled is meant; without it none is, and none is touched.
func TestOfSeveralServersTheSerialSaysWhichOne(t *testing.T) {
	t.Parallel()
	base := profile(t, lab.GB200) // its standby power is a chassis's action: it would cut off the other server as well
	host := lab.New(base, lab.Hooks{}).SystemPath()
	for serial, want := range map[string]string{"TWIN-2": twin, "": "", "NOBODY": ""} {
		p, err := lab.NewProfile("twins", twins{base.Tree, host, "TWIN-2"})
		if err != nil {
			t.Fatal(err)
		}
		s := serve(t, p, lab.Hooks{})
		user, password := s.Credential()
		c, err := pool(t, bmc.Config{Timing: quick}).Client(bmc.Endpoint{Address: s.URL(), Credential: bmc.Static(user, password), Serial: serial})
		if err != nil {
			t.Fatal(err)
		}
		id, err := c.Identify(t.Context())
		if want != "" && (err != nil || id.SystemID != want || id.Serial != "TWIN-2") || want == "" && !errors.Is(err, bmc.ErrNoHost) {
			t.Fatalf("serial %q: %s, %v", serial, id.SystemID, err)
		}
		if err := c.SetPower(t.Context(), bmc.ACCycle); err == nil {
			t.Errorf("serial %q: the enclosure's power was cut", serial)
		}
		if bad := sent(s); len(bad) != 0 {
			t.Errorf("serial %q: %v", serial, bad)
		}
	}
}

func TestTheIdentityOfEachBuiltInMachineIsItsOwn(t *testing.T) {
	t.Parallel()
	want := map[string]struct {
		make  bmc.Make
		gpus  int
		model string
	}{
		lab.DGXH100: {bmc.MakeAMI, 8, "H100"}, lab.SupermicroHGX: {bmc.MakeSupermicro, 8, "H100"}, lab.SupermicroMI300X: {bmc.MakeSupermicro, 8, "MI300X"},
		lab.Dell: {bmc.MakeDell, 4, "H100"}, lab.HPE: {bmc.MakeHPE, 4, "H100"}, lab.Lenovo: {bmc.MakeLenovo, 8, "H100"}, lab.GB200: {bmc.MakeNVIDIA, 4, "GB200"},
	}
	for _, name := range lab.ProfileNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gpus := make([]lab.GPU, want[name].gpus)
			for i := range gpus {
				gpus[i] = lab.GPU{Serial: "GPU-SERIAL-" + string(rune('A'+i))}
			}
			s := serve(t, profile(t, name), lab.Hooks{}, lab.WithIdentity(lab.Identity{
				Serial: "SRV-0001", UUID: "11111111-2222-3333-4444-5555555555AA", MACs: []string{"52:54:00:00:00:02", "52:54:00:00:00:01"}, GPUs: gpus}))
			id, err := dial(t, s).Identify(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if id.Serial != "SRV-0001" || id.UUID != "11111111-2222-3333-4444-5555555555aa" || id.Make != want[name].make {
				t.Fatalf("identity %+v", id)
			}
			if len(id.GPUs) != want[name].gpus {
				t.Fatalf("%d gpus, want %d", len(id.GPUs), want[name].gpus)
			}
			slots := map[string]bool{}
			for i, g := range id.GPUs {
				if g.Serial != gpus[i].Serial || !strings.Contains(g.Model, want[name].model) || g.Health != "OK" || slots[g.Slot] {
					t.Fatalf("gpu %d: %+v", i, g)
				}
				slots[g.Slot] = true
			}
			if name != lab.GB200 && (len(id.MACs) < 2 || id.MACs[len(id.MACs)-2] != "52:54:00:00:00:01") {
				t.Fatalf("macs %v", id.MACs)
			}
			if bad := refusals(s); bad != nil {
				t.Fatalf("refused: %v", bad)
			}
		})
	}
}
