//go:build netns

package realclients

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpupool/pxe"
	"gpupool/pxe/boot"
	"gpupool/schema"
)

// script is what the clients call: it keeps what they were given, and gives the interface its address.
func script(t *testing.T) (path, out string) {
	t.Helper()
	out = filepath.Join(t.TempDir(), "given")
	path = filepath.Join(filepath.Dir(out), "script")
	if err := os.WriteFile(path, []byte(`#!/bin/sh
echo "event=$1$reason" >>`+out+`
env >>`+out+`
a=${ip:-$new_ip_address}
[ -z "$a" ] || ip address replace $a/24 dev eth0
`), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, out
}

func given(t *testing.T, out string, lines ...string) {
	t.Helper()
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		if !strings.Contains(string(b), l+"\n") {
			t.Fatalf("the client was not given %q:\n%s", l, b)
		}
	}
}

func TestUdhcpc(t *testing.T) {
	need(t, "udhcpc", "udhcpc")
	s := newSite(t, nil)
	h := s.host(t, 1, "br0")
	s.machine(h, schema.PhaseAvailable)
	sh, out := script(t)
	h.do("udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", "4", "-s", sh)
	ip := s.leased(h.mac)
	given(t, out, "event=bound", "ip="+ip, "router=10.77.0.254", "dns=10.77.0.53", "lease=3600", "serverid=10.77.0.1", "hostname=node-0101", "mask=24")
	// It asks for its earlier address, and releases it at its end.
	// (With -q busybox says that it releases and sends nothing, so it is ended instead.)
	if out, err := h.try("timeout", "--preserve-status", "-s", "TERM", "2", "udhcpc", "-i", "eth0", "-f", "-n", "-R", "-t", "4", "-s", sh, "-r", ip); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	s.wait(5*time.Second, boot.KindRelease, h.mac, func(e schema.BootEvidence) bool { return e.Result == "ok" && e.IP == ip })
	if s.leased(h.mac) != "" {
		t.Fatal("the lease is still live after its release")
	}
}

func TestDhclient(t *testing.T) {
	need(t, "dhclient", "isc-dhcp-client")
	s := newSite(t, nil)
	h := s.host(t, 2, "br0")
	s.machine(h, schema.PhaseAvailable)
	sh, out := script(t)
	dir := t.TempDir()
	run := func() {
		t.Helper()
		c := h.command("dhclient", "-4", "-1", "-sf", sh, "-lf", dir+"/leases", "-pf", dir+"/pid", "eth0")
		if b, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, b)
		}
	}
	run()
	ip := s.leased(h.mac)
	given(t, out, "event=BOUND", "new_ip_address="+ip, "new_routers=10.77.0.254", "new_dhcp_lease_time=3600", "new_subnet_mask=255.255.255.0")
	h.do("dhclient", "-4", "-x", "-sf", sh, "-lf", dir+"/leases", "-pf", dir+"/pid", "eth0")
	// With its lease file it comes up in INIT-REBOOT.
	run()
	given(t, out, "event=REBOOT")
	if got := s.leased(h.mac); got != ip {
		t.Fatalf("after the reboot it has %s, had %s", got, ip)
	}
	h.do("dhclient", "-4", "-r", "-sf", sh, "-lf", dir+"/leases", "-pf", dir+"/pid", "eth0")
	s.wait(5*time.Second, boot.KindRelease, h.mac, func(e schema.BootEvidence) bool { return e.Result == "ok" })
}

func TestDhcpcd(t *testing.T) {
	need(t, "dhcpcd", "dhcpcd")
	s := newSite(t, nil)
	h := s.host(t, 3, "br0")
	s.machine(h, schema.PhaseAvailable)
	sh, out := script(t)
	h.do("dhcpcd", "-4", "-1", "-B", "-t", "10", "-c", sh, "--noipv4ll", "eth0")
	given(t, out, "new_ip_address="+s.leased(h.mac), "new_routers=10.77.0.254", "new_dhcp_server_identifier=10.77.0.1")
}

// TestAMachineIsOneWhateverItCallsItself: three clients on one interface, each with its own client identifier.
func TestAMachineIsOneWhateverItCallsItself(t *testing.T) {
	need(t, "udhcpc", "udhcpc")
	s := newSite(t, nil)
	h := s.host(t, 4, "br0")
	s.machine(h, schema.PhaseAvailable)
	sh, _ := script(t)
	ips := map[string]bool{}
	for _, id := range []string{"3d:0101020304050607", "3d:ff00000000000200000ab1", "3d:00666972"} {
		h.do("udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", "4", "-s", sh, "-C", "-x", strings.Replace(id, "3d", "0x3d", 1))
		ips[s.leased(h.mac)] = true
	}
	if len(ips) != 1 || ips[""] {
		t.Fatalf("one machine was given %v", ips)
	}
}

func TestAStrangerIsNotAnswered(t *testing.T) {
	need(t, "udhcpc", "udhcpc")
	s := newSite(t, func(c *pxe.Config) { c.Unknown = "record" })
	h := s.host(t, 5, "br0")
	sh, _ := script(t)
	if out, err := h.try("udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", "2", "-T", "1", "-s", sh); err == nil {
		t.Fatalf("a stranger was given an address: %s", out)
	}
	s.wait(5*time.Second, boot.KindUnknown, h.mac, nil)
}

// TestAnAddressThatIsInUseIsNotOffered: the address that the machine would get has been taken by hand.
func TestAnAddressThatIsInUseIsNotOffered(t *testing.T) {
	need(t, "udhcpc", "udhcpc")
	s := newSite(t, func(c *pxe.Config) { c.Subnets[0].Range = "10.77.0.100-10.77.0.101" })
	squatter := s.host(t, 6, "br0")
	squatter.run("ip address add 10.77.0.100/24 dev eth0")
	squatter2 := s.host(t, 7, "br0")
	s.machine(squatter2, schema.PhaseAvailable)
	sh, _ := script(t)
	squatter2.do("udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", "6", "-s", sh, "-r", "10.77.0.100")
	if got := s.leased(squatter2.mac); got != "10.77.0.101" {
		t.Fatalf("it was given %q, want 10.77.0.101: 10.77.0.100 is in use", got)
	}
}

func TestNmapsDiscovery(t *testing.T) {
	need(t, "nmap", "nmap")
	s := newSite(t, nil)
	h := s.host(t, 8, "br0")
	s.machine(h, schema.PhaseAvailable)
	h.run("ip address add 10.77.0.200/24 dev eth0") // nmap wants one to use an interface at all
	out := h.do("nmap", "--script", "broadcast-dhcp-discover", "-e", "eth0", "--script-args", "broadcast-dhcp-discover.mac="+h.mac)
	for _, want := range []string{"DHCP Message Type: DHCPOFFER", "Server Identifier: 10.77.0.1", "Router: 10.77.0.254", "Subnet Mask: 255.255.255.0", "IP Offered: 10.77.0.1"} {
		if !strings.Contains(out, want) {
			t.Fatalf("nmap does not report %q:\n%s", want, out)
		}
	}
	// Its other script asks by INFORM what a host that has an address is told.
	out = h.do("nmap", "-sU", "-p", "67", "-e", "eth0", "--script", "dhcp-discover", "10.77.0.1")
	for _, want := range []string{"DHCP Message Type: DHCPACK", "Server Identifier: 10.77.0.1", "Router: 10.77.0.254", "Subnet Mask: 255.255.255.0"} {
		if !strings.Contains(out, want) {
			t.Fatalf("nmap does not report %q:\n%s", want, out)
		}
	}
	for _, no := range []string{"IP Address Lease Time", "Renewal Time"} {
		if strings.Contains(out, no) {
			t.Fatalf("an INFORM is answered with %q:\n%s", no, out)
		}
	}
}

// TestAnAddressThatIsInUseBehindARelayIsNotOffered: where no ARP reaches, ICMP does. One host answers an echo and nothing else,
// the other refuses a datagram and doesn't echo.
func TestAnAddressThatIsInUseBehindARelayIsNotOffered(t *testing.T) {
	need(t, "dnsmasq", "dnsmasq-base")
	need(t, "udhcpc", "udhcpc")
	s := newSite(t, func(c *pxe.Config) {
		c.Mode = "relay"
		c.Subnets = append(c.Subnets, pxe.Subnet{CIDR: "10.88.0.0/24", Range: "10.88.0.100-10.88.0.103", Routers: []string{"10.88.0.1"}})
	})
	s.relay(t)
	echoes, refuses := s.host(t, 23, "br1"), s.host(t, 24, "br1")
	for i, squatter := range []*host{echoes, refuses} {
		squatter.run(fmt.Sprintf("ip address add 10.88.0.%d/24 dev eth0", 100+i))
		squatter.run("ip route add default via 10.88.0.1")
	}
	echoes.silent(9)
	refuses.run("sysctl -qw net.ipv4.icmp_echo_ignore_all=1")
	for i, taken := range []string{"10.88.0.100", "10.88.0.101"} {
		h := s.host(t, 25+i, "br1")
		s.machine(h, schema.PhaseAvailable)
		sh, out := script(t)
		h.do("udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", "8", "-s", sh, "-r", taken)
		given(t, out, "event=bound")
		conflicts := slices.DeleteFunc(s.Evidence(), func(e schema.BootEvidence) bool { return e.Kind != boot.KindConflict || e.IP != taken })
		if len(conflicts) != 1 {
			t.Fatalf("%s was found to be in use %d times, want once: %+v", taken, len(conflicts), conflicts)
		}
	}
	rows, err := s.leases.List(t.Context(), "10.88.0.0/24")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range rows {
		if (l.State == schema.LeaseBound) != (l.IP == "10.88.0.102" || l.IP == "10.88.0.103") {
			t.Errorf("lease %+v", l)
		}
	}
}

// TestBehindARealRelay: dnsmasq relays between a network of clients and the service.
func TestBehindARealRelay(t *testing.T) {
	need(t, "dnsmasq", "dnsmasq-base")
	need(t, "udhcpc", "udhcpc")
	s := newSite(t, func(c *pxe.Config) {
		c.Mode = "relay"
		c.Subnets = append(c.Subnets, pxe.Subnet{CIDR: "10.88.0.0/24", Range: "10.88.0.100-10.88.0.110", Routers: []string{"10.88.0.1"}})
	})
	s.relay(t)
	h := s.host(t, 21, "br1")
	s.machine(h, schema.PhaseAvailable)
	sh, out := script(t)
	h.do("udhcpc", "-i", "eth0", "-f", "-n", "-q", "-t", "4", "-s", sh)
	given(t, out, "event=bound", "router=10.88.0.1", "serverid=10.77.0.1")
	rows, _ := s.leases.List(t.Context(), "10.88.0.0/24")
	if len(rows) != 1 || rows[0].MAC != h.mac {
		t.Fatalf("leases: %+v", rows)
	}
}

func TestTFTPAndHTTPClients(t *testing.T) {
	need(t, "curl", "curl")
	need(t, "tftp", "tftp-hpa")
	need(t, "atftp", "atftp")
	s := newSite(t, nil)
	h := s.host(t, 9, "br0")
	h.run("ip address add 10.77.0.9/24 dev eth0")
	b := make([]byte, 9<<20+13)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	s.put("initrd", b)
	want := fmt.Sprintf("%x", sha256.Sum256(b))
	for name, args := range map[string][]string{
		"curl by HTTP":                {"curl", "-sf", "-o", "f", "http://10.77.0.1:8080/files/initrd"},
		"curl by HTTP in two parts":   {"sh", "-c", "curl -sf -r 0-999999 -o f http://10.77.0.1:8080/files/initrd && curl -sf -C - -o f http://10.77.0.1:8080/files/initrd"},
		"curl by TFTP":                {"curl", "-sf", "-o", "f", "tftp://10.77.0.1/initrd"},
		"curl by TFTP, 1468":          {"curl", "-sf", "--tftp-blksize", "1468", "-o", "f", "tftp://10.77.0.1/initrd"},
		"curl by TFTP, no options":    {"curl", "-sf", "--tftp-no-options", "-o", "f", "tftp://10.77.0.1/initrd"},
		"curl by TFTP, too large":     {"curl", "-sf", "--tftp-blksize", "60000", "-o", "f", "tftp://10.77.0.1/initrd"},
		"tftp-hpa":                    {"tftp", "-m", "binary", "10.77.0.1", "-c", "get", "initrd", "f"},
		"atftp, windows of 4":         {"atftp", "--option", "blksize 1428", "--option", "windowsize 4", "-g", "-r", "initrd", "-l", "f", "10.77.0.1"},
		"tftp-hpa with IPv4, slashes": {"tftp", "-4", "-m", "binary", "10.77.0.1", "-c", "get", "//initrd", "f"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			out := h.do(append([]string{"sh", "-c", "cd " + dir + " && \"$@\" && sha256sum f", "sh"}, args...)...)
			if !strings.Contains(out, want) { // atftp says what it agreed
				t.Fatalf("got %q, want %s", out, want)
			}
		})
	}
	if out, err := h.try("tftp", "-m", "binary", "10.77.0.1", "-c", "put", "/etc/hostname", "x"); err == nil && !strings.Contains(out, "Error code 2") {
		t.Fatalf("a write was taken: %s", out)
	}
}

// TestClientsOverIPv6: two clients of other makes, the second after the first on one machine, get its one address.
func TestClientsOverIPv6(t *testing.T) {
	need(t, "dhclient", "isc-dhcp-client")
	need(t, "dhcpcd", "dhcpcd-base")
	for name, own := range map[string]bool{"beside radvd": false, "with advertisements of our own": true} {
		t.Run(name, func(t *testing.T) { clientsOverIPv6(t, own) })
	}
}

func clientsOverIPv6(t *testing.T, advertise bool) {
	s := newSite6(t, advertise)
	h := s.host(t, 11, "br0")
	s.machine(h, schema.PhaseAvailable)
	h.linkLocal()
	sh, out := script(t)
	dir := t.TempDir()
	const want = "2001:db8:77:0:5254:67:7077:10b"
	h.do("dhclient", "-6", "-1", "-sf", sh, "-lf", dir+"/leases", "-pf", dir+"/pid", "eth0")
	given(t, out, "event=BOUND6", "new_ip6_address="+want, "new_dhcp6_name_servers=2001:db8:77::53")
	h.waitFile(dir + "/pid") // else the next doesn't end it
	h.do("dhclient", "-6", "-r", "-sf", sh, "-lf", dir+"/leases", "-pf", dir+"/pid", "eth0")
	s.wait(5*time.Second, boot.KindRelease, h.mac, func(e schema.BootEvidence) bool { return e.Result == "ok" && e.IP == want })
	h.waitPort("udp6", 546, false)
	// dhcpcd asks DHCPv6 only once a router has told it to. It keeps its leases in one place for all that runs here.
	forget := func() {
		old, _ := filepath.Glob("/var/lib/dhcpcd/*eth0*")
		for _, f := range old {
			os.Remove(f)
		}
	}
	forget()
	t.Cleanup(forget)
	dhcpcd := func() {
		h.do("dhcpcd", "-6", "-1", "-B", "-t", "20", "-c", sh, "eth0")
	}
	dhcpcd()
	given(t, out, "new_dhcp6_ia_na1_ia_addr1="+want)
	// It comes back with its lease file, after an end of its lease that it has not heard of: it asks whether its address
	// still holds, goes on with it, and must be known by it again.
	rows, err := s.leases.List(t.Context(), "2001:db8:77::/64")
	if err != nil || len(rows) != 1 {
		t.Fatalf("%v %v", rows, err)
	}
	rows[0].State, rows[0].ExpiresAt = schema.LeaseReleased, schema.At(time.Now())
	if errs, err := s.leases.Commit(t.Context(), time.Now(), rows); err != nil || errs[0] != nil {
		t.Fatal(errs, err)
	}
	dhcpcd()
	s.wait(5*time.Second, boot.KindRequest, h.mac, func(e schema.BootEvidence) bool { return strings.HasPrefix(e.Result, "asks whether") })

	// Files come over IPv6 too.
	h.run("ip address replace " + want + "/64 dev eth0 nodad")
	b := make([]byte, 3<<20+13)
	r := rand.NewChaCha8([32]byte{6})
	r.Read(b)
	s.put("initrd", b)
	sum := fmt.Sprintf("%x", sha256.Sum256(b))
	for name, args := range map[string][]string{
		"by HTTP":       {"curl", "-sf", "-o", dir + "/f", "http://[2001:db8:77::1]:8080/files/initrd"},
		"by TFTP":       {"curl", "-sf", "-o", dir + "/f", "tftp://[2001:db8:77::1]/initrd"},
		"by TFTP, 1468": {"curl", "-sf", "--tftp-blksize", "1468", "-o", dir + "/f", "tftp://[2001:db8:77::1]/initrd"},
		"tftp-hpa":      {"tftp", "-6", "-m", "binary", "2001:db8:77::1", "-c", "get", "initrd", dir + "/f"},
	} {
		h.do(args...)
		if got := h.do("sha256sum", dir+"/f"); !strings.HasPrefix(got, sum) {
			t.Fatalf("%s: got %q, want %s", name, got, sum)
		}
		os.Remove(dir + "/f")
	}
	s.wait(time.Second, boot.KindTFTP, h.mac, func(e schema.BootEvidence) bool { return e.Result == "ok" && e.IP == want })
}

// TestRouterAdvertisements: a client of another make is told that addresses are managed, and no more: no default router,
// no address made from the prefix.
func TestRouterAdvertisements(t *testing.T) {
	need(t, "rdisc6", "ndisc6")
	s := newSite6(t, true)
	h := s.host(t, 12, "br0")
	h.linkLocal()
	out := h.do("rdisc6", "-1", "-w", "6000", "eth0")
	for _, want := range []string{`Stateful address conf. *: *Yes`, `Stateful other conf. *: *Yes`, `Router lifetime *: *0 `, `Prefix *: 2001:db8:77::/64`, `On-link *: *Yes`, `Autonomous address conf.: *No`, `Recursive DNS server *: 2001:db8:77::53`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in what a host is told:\n%s", want, out)
		}
	}
	if routes := h.run("ip -6 route show default"); strings.TrimSpace(routes) != "" {
		t.Errorf("the host took it for a default router: %s", routes)
	}
	if a := h.run("ip -6 address show dev eth0 scope global"); strings.TrimSpace(a) != "" {
		t.Errorf("the host made an address for itself: %s", a)
	}
}

// TestAnAddressThatIsInUseIsNotOfferedOverIPv6: it has been taken by hand, and answers neighbor solicitations.
func TestAnAddressThatIsInUseIsNotOfferedOverIPv6(t *testing.T) {
	need(t, "dhclient", "isc-dhcp-client")
	s := newSite6(t, true)
	squatter, h := s.host(t, 13, "br0"), s.host(t, 14, "br0")
	const first = "2001:db8:77:0:5254:67:7077:10e"
	squatter.run("ip address add " + first + "/64 dev eth0 nodad")
	s.machine(h, schema.PhaseAvailable)
	h.linkLocal()
	sh, out := script(t)
	dir := t.TempDir()
	h.do("dhclient", "-6", "-1", "-sf", sh, "-lf", dir+"/leases", "-pf", dir+"/pid", "eth0")
	given(t, out, "event=BOUND6", "new_ip6_address=2001:db8:77:0:5254:67:7177:10e")
	s.wait(time.Second, boot.KindConflict, h.mac, func(e schema.BootEvidence) bool { return e.IP == first })
	for _, e := range s.Evidence() {
		if e.Kind == boot.KindDecline {
			t.Fatalf("the client had to find it out itself: %+v", e)
		}
	}
}

// TestDoctorOnTheWire: what `gpupool pxe doctor` finds on a network, with and without what should and shouldn't be there.
func TestDoctorOnTheWire(t *testing.T) {
	s := newSite6(t, true)
	cfg := pxe.Config{Mode: "full", Interface: "br0", ServerID: "10.77.0.1", Root: s.root, Subnets: []pxe.Subnet{{CIDR: "10.77.0.0/24"}},
		IPv6: pxe.IPv6{Address: "2001:db8:77::1", Subnets: []pxe.Subnet6{{CIDR: "2001:db8:77::/64"}}}}
	// What this machine advertises itself it does not see.
	check := func(name string, want pxe.Verdict, text string) {
		t.Helper()
		for _, c := range pxe.Doctor(t.Context(), cfg, true) {
			if c.Name == name {
				if c.Verdict != want || !strings.Contains(c.Text, text) || c.Verdict == pxe.Bad && c.Hint == "" {
					t.Errorf("%+v, want %s: %s", c, want, text)
				}
				return
			}
		}
		t.Errorf("no check %q", name)
	}
	check("IPv6 advertisements", pxe.Bad, "nobody advertises on br0")
	check("other DHCP servers", pxe.Good, "")
	check("route to 10.77.0.0/24", pxe.Good, "on br0")
	cfg.Subnets = append(cfg.Subnets, pxe.Subnet{CIDR: "10.99.0.0/24"})
	check("route to 10.99.0.0/24", pxe.Bad, "network is unreachable")
	cfg.Subnets = cfg.Subnets[:1]
	cfg.IPv6.Advertise = true
	check("IPv6 advertisements", pxe.Good, "this service")
	cfg.IPv6.Advertise = false

	s.host(t, 31, "br0").radvd("off")
	check("IPv6 advertisements", pxe.Bad, "without the managed flag")
	s.plainDHCP(t)
	check("other DHCP servers", pxe.Bad, "10.77.0.2")
	cfg.Mode, cfg.IPv6 = "proxy", pxe.IPv6{}
	check("other DHCP servers", pxe.Good, "10.77.0.2")
}
