package pxe_test

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"gpupool/pxe"
	"gpupool/pxe/boot"
	"gpupool/schema"
)

func TestDoctorSaysWhatIsWrongAndWhatToDo(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.21", nil)
	taken, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg := pxe.Config{Mode: "relay", ServerID: "127.0.0.1", DHCP: "127.0.0.1:0", PXE: pxe.Off, TFTP: taken.LocalAddr().String(), HTTP: "127.0.0.1:0", Root: s.root, Subnets: []pxe.Subnet{{CIDR: "10.9.0.0/24"}}}
	find := func(all []pxe.Check, name string) pxe.Check {
		t.Helper()
		for _, c := range all {
			if c.Name == name {
				return c
			}
		}
		t.Fatalf("no check %q in %+v", name, all)
		return pxe.Check{}
	}
	all := pxe.Doctor(t.Context(), cfg, false)
	for name, want := range map[string]pxe.Verdict{"configuration": pxe.Good, "server address": pxe.Good, "dhcp port": pxe.Good, "pxe port": pxe.Good, "tftp port": pxe.Bad, "http port": pxe.Good, "boot files": pxe.Warning} {
		if c := find(all, name); c.Verdict != want || c.Verdict == pxe.Bad && c.Hint == "" {
			t.Errorf("%+v, want %s", c, want)
		}
	}
	if c := find(all, "boot files"); !strings.Contains(c.Text, "missing: snponly-arm64.efi (UEFI arm64)") {
		t.Errorf("boot files: %q", c.Text)
	}
	if c := find(pxe.Doctor(t.Context(), cfg, true), "tftp port"); c.Verdict != pxe.Good {
		t.Errorf("with the service running: %+v", c)
	}
	cfg.IPv6 = pxe.IPv6{Address: "::1", DHCP: "[::1]:0", TFTP: pxe.Off, Subnets: []pxe.Subnet6{{CIDR: "2001:db8::/64"}}}
	all = pxe.Doctor(t.Context(), cfg, false)
	for _, name := range []string{"IPv6 address", "dhcp port, IPv6", "tftp port, IPv6"} {
		if c := find(all, name); c.Verdict != pxe.Good {
			t.Errorf("%+v", c)
		}
	}
	cfg.IPv6 = pxe.IPv6{}
	cfg.ServerID = "192.0.2.1"
	if c := find(pxe.Doctor(t.Context(), cfg, false), "server address"); c.Verdict != pxe.Warning {
		t.Errorf("an address of somebody else's: %+v", c)
	}
	cfg.Root = s.root + "/nowhere"
	if c := find(pxe.Doctor(t.Context(), cfg, false), "boot files"); c.Verdict != pxe.Bad || !strings.Contains(c.Hint, "boot-files.sh "+cfg.Root) {
		t.Errorf("a folder that isn't there: %+v", c)
	}
	cfg.Interface = "nowhere0"
	if all := pxe.Doctor(t.Context(), cfg, false); len(all) != 1 || all[0].Verdict != pxe.Bad || !strings.Contains(all[0].Text, `interface: "nowhere0": there is none of that name: want one of`) || !strings.Contains(all[0].Text, "lo") {
		t.Errorf("an interface that isn't there: %+v", all)
	}
	cfg.Interface = ""
	cfg.Subnets[0].CIDR = "10.9.0.1/24"
	if all := pxe.Doctor(t.Context(), cfg, false); len(all) != 1 || all[0].Verdict != pxe.Bad || !strings.Contains(all[0].Text, "want 10.9.0.0/24") {
		t.Errorf("a configuration that can't be right: %+v", all)
	}
}

// TestDoctorSaysHowManyAddressesAreLeft: of the service that runs, before and when they are used up.
func TestDoctorSaysHowManyAddressesAreLeft(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			subnet := map[string]string{"http": "127.77.23", "https": "127.77.24"}[scheme]
			var cfg pxe.Config
			s := newSite(t, subnet, func(c *pxe.Config) {
				c.Subnets[0].Range = subnet + ".9-" + subnet + ".11" // .9 is the router's
				c.Subnets[0].Routers = []string{subnet + ".9"}
				if scheme == "https" {
					c.TLSCert, c.TLSKey, _ = certificate(t)
				}
				cfg = *c
			})
			cfg.HTTP = s.Addrs().HTTP.String()
			check := func(want pxe.Verdict, text string) {
				t.Helper()
				for end := time.Now().Add(20 * time.Second); ; <-time.After(200 * time.Millisecond) { // it counts every few seconds
					var said pxe.Check
					for _, c := range pxe.Doctor(t.Context(), cfg, true) {
						if c.Name == "addresses of "+subnet+".0/24" {
							said = c
						}
					}
					if said.Verdict == want && said.Text == text && (want == pxe.Good) == (said.Hint == "") {
						return
					}
					if time.Now().After(end) {
						t.Fatalf("%+v, want %s: %s", said, want, text)
					}
				}
			}
			check(pxe.Good, "2 of 2 are free; 0 leased, 0 quarantined")
			s.client(t, mac, subnet+".1").lease(nil)
			s.Put(boot.Machine{ID: "srv-2", Name: "r1s2", Phase: schema.PhaseAvailable}, "52:54:00:77:00:02")
			s.client(t, "52:54:00:77:00:02", subnet+".1").lease(nil)
			check(pxe.Bad, "0 of 2 are free; 2 leased, 0 quarantined")

			s.Put(boot.Machine{ID: "srv-3", Name: "r1s3", Phase: schema.PhaseAvailable}, "52:54:00:77:00:03")
			c := s.client(t, "52:54:00:77:00:03", subnet+".1")
			d, err := dhcpv4.NewDiscovery(c.hw)
			if err != nil {
				t.Fatal(err)
			}
			c.send(d)
			told := func(e schema.BootEvidence) bool {
				return e.Kind == boot.KindExhausted && e.Server == "srv-3" && strings.Contains(e.Result, "no free address in "+subnet+".0/24")
			}
			for end := time.Now().Add(20 * time.Second); !slices.ContainsFunc(s.Evidence(), told); <-time.After(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("nobody is told that a server finds no address: %+v", s.Evidence())
				}
			}
		})
	}
	cfg := pxe.Config{Mode: "relay", ServerID: "127.0.0.1", DHCP: pxe.Off, PXE: pxe.Off, TFTP: pxe.Off, HTTP: "127.0.0.1:1", Root: t.TempDir(), Subnets: []pxe.Subnet{{CIDR: "127.77.25.0/24"}}}
	for _, c := range pxe.Doctor(t.Context(), cfg, true) {
		if c.Name == "addresses" && (c.Verdict != pxe.Warning || !strings.Contains(c.Text, "connection refused")) {
			t.Errorf("of a service that isn't there: %+v", c)
		}
	}
}

func TestLineOfAWatchedBoot(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 14, 3, 7, 120e6, time.UTC)
	for want, e := range map[string]schema.BootEvidence{
		"14:03:07.120  r1s3 #2         52:54:00:77:00:01  tftp            10.1.0.57  snponly.efi  214 KiB  ok": {Kind: "tftp", MAC: "52:54:00:77:00:01", IP: "10.1.0.57", Server: "r1s3", Attempt: 2, What: "snponly.efi", Bytes: 219_136, Result: "ok"},
		"14:03:07.120  -                                  token-refused   10.1.0.9  user-data  unknown":        {Kind: "token-refused", IP: "10.1.0.9", What: "user-data", Result: "unknown"},
	} {
		if got := pxe.Line(at, e); got != want {
			t.Errorf("got\n%q, want\n%q", got, want)
		}
	}
}
