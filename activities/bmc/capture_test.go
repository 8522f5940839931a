package bmc_test

import (
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

// A capture of a lab BMC is served by the lab again and behaves the same, and nothing of the owner is in it.
func TestACaptureIsRedactedAndCanBeServed(t *testing.T) {
	t.Parallel()
	id := lab.Identity{Serial: "OWNER-SERIAL-77", UUID: "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee", MACs: []string{"AC:1F:6B:00:00:01"}, GPUs: []lab.GPU{{Serial: "165000000777"}}}
	for _, name := range lab.ProfileNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, profile(t, name), lab.Hooks{}, lab.WithIdentity(id), lab.WithCredential("ownersuser", "owners-password"))
			log := s.SystemPath() + "/LogServices/EventLog"
			if _, err := s.AddLogEntry(log, lab.Doc{"Message": "login from 10.20.30.40 to OWNER-SERIAL-77", "Created": "2024-01-01T00:00:00Z"}); err != nil {
				t.Fatal(err)
			}
			owners := dial(t, s, fast)
			before, err := owners.Identify(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			got, err := owners.Capture(t.Context(), dir, bmc.CaptureConfig{})
			if err != nil || got.Resources < 40 || got.Truncated {
				t.Fatalf("%+v, %v", got, err)
			}
			noOwner(t, dir)
			p, err := lab.FromTree(dir)
			if err != nil {
				t.Fatal(err)
			}
			again := serve(t, p, lab.Hooks{})
			c := dial(t, again, fast)
			after, err := c.Identify(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if after.Model != before.Model || len(after.GPUs) != len(before.GPUs) || after.Make != before.Make || len(after.MACs) != len(before.MACs) || after.BMCFirmware != before.BMCFirmware {
				t.Fatalf("before %+v\nafter %+v", before, after)
			}
			if after.Serial == before.Serial || after.Serial == "" {
				t.Fatalf("serial %q", after.Serial)
			}
			if _, err := c.BootOnceFromNetwork(t.Context(), bmc.PXE); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func noOwner(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		for _, mine := range []string{"OWNER-SERIAL", "aaaaaaaa-bbbb", "ac:1f:6b", "ac1f6b", "165000000777", "ownersuser", "owners-password", "10.20.30.40"} {
			if strings.Contains(strings.ToLower(string(b)), strings.ToLower(mine)) {
				t.Errorf("%s holds %s", path, mine)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAProbeListsWhatAnswersWithoutLoggingIn(t *testing.T) {
	t.Parallel()
	cert, err := lab.SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	for _, secure := range []bool{true, false} {
		var opts []lab.Option
		if secure {
			opts = append(opts, lab.WithTLS(cert))
		}
		s := serve(t, profile(t, lab.GB200), lab.Hooks{}, opts...)
		u, err := url.Parse(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		port, err := strconv.Atoi(u.Port())
		if err != nil {
			t.Fatal(err)
		}
		// Only 127.0.0.1 listens; the others of the range refuse.
		found, err := bmc.Probe(t.Context(), netip.MustParsePrefix("127.0.0.0/30"), bmc.ProbeConfig{Port: port, HTTP: !secure})
		if err != nil || len(found) != 1 {
			t.Fatalf("found %+v, %v", found, err)
		}
		f := found[0]
		if f.Address != s.URL() || f.Vendor != "NVIDIA" || f.Product != "GB200 NVL" || (f.TLSPin != "") != secure {
			t.Fatalf("found %+v", f)
		}
		for _, r := range s.Requests() {
			if r.Method != "GET" || r.Path != "/redfish/v1" {
				t.Fatalf("asked %s %s", r.Method, r.Path)
			}
		}
	}
	if _, err := bmc.Probe(t.Context(), netip.MustParsePrefix("10.0.0.0/16"), bmc.ProbeConfig{}); err == nil {
		t.Fatal("a /16 was probed")
	}
}
