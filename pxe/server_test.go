package pxe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
	pin "github.com/pin/tftp/v3"
	"go.uber.org/goleak"

	"gpupool/pxe"
	"gpupool/pxe/boot"
	"gpupool/pxe/lease"
	"gpupool/pxe/pxetest"
	"gpupool/pxe/script"
	"gpupool/schema"
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(childEnv); dsn != "" {
		child(dsn)
		return
	}
	goleak.VerifyTestMain(m)
}

const mac = "52:54:00:77:00:01"

// site is a boot service on loopback that clients reach as if behind a relay: the addresses it gives are loopback's
// too, so that a client can really speak from the one it was leased.
type site struct {
	*pxetest.Platform
	*pxe.Server
	leases lease.Store
	root   string
}

func newSite(t *testing.T, net string, change func(*pxe.Config)) *site {
	t.Helper()
	root := t.TempDir()
	for name, content := range map[string]string{"undionly.kpxe": "bios", "snponly.efi": strings.Repeat("efi", 1000), "vmlinuz": "kernel", "initrd": "initrd"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cfg := pxe.Config{
		Mode: "relay", ServerID: "127.0.0.1", DHCP: "127.0.0.1:0", PXE: "127.0.0.1:0", TFTP: "127.0.0.1:0", HTTP: "127.0.0.1:0",
		APIURL: "http://127.0.0.1:9", Root: root, Subnets: []pxe.Subnet{{CIDR: net + ".0/24", Range: net + ".10-" + net + ".20"}},
		Plan: pxe.Plan{Kernel: "vmlinuz", Initrd: []string{"initrd"}, Args: "gpupool.enrol={{base}}/enrol console=ttyS0"},
	}
	if change != nil {
		change(&cfg)
	}
	s := &site{Platform: pxetest.New(), leases: lease.NewMemory(), root: root}
	s.Put(boot.Machine{ID: "srv-1", Name: "r1s1", Phase: schema.PhaseAvailable}, mac)
	var err error
	s.Server, err = pxe.New(cfg, pxe.Deps{Inventory: s, Leases: s.leases, Tokens: s, Recorder: s, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// client boots as behind a relay that listens at giaddr on a port of its own and says so (RFC 8357).
type client struct {
	t      *testing.T
	s      *site
	hw     net.HardwareAddr
	relay  *net.UDPConn
	giaddr net.IP
	extra  []dhcpv4.Modifier
}

func (s *site) client(t *testing.T, mac, giaddr string, extra ...dhcpv4.Modifier) *client {
	t.Helper()
	hw, err := net.ParseMAC(mac)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, s: s, hw: hw, giaddr: net.ParseIP(giaddr).To4(), extra: extra}
	if c.relay, err = net.ListenUDP("udp4", &net.UDPAddr{IP: c.giaddr}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.relay.Close() })
	return c
}

var pxeX64 = []dhcpv4.Modifier{
	dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:003016")),
	dhcpv4.WithOption(dhcpv4.OptClientArch(iana.EFI_X86_64)),
}

var ipxeX64 = append([]dhcpv4.Modifier{dhcpv4.WithUserClass("iPXE", false)}, pxeX64...)

func (c *client) send(m *dhcpv4.DHCPv4) {
	c.t.Helper()
	m.GatewayIPAddr, m.HopCount = c.giaddr, 1
	m.Options[dhcpv4.OptionRelayAgentInformation.Code()] = []byte{1, 4, 'p', 'o', 'r', 't', 19, 0}
	if _, err := c.relay.WriteToUDPAddrPort(m.ToBytes(), c.s.Addrs().DHCP); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) receive(m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	c.t.Helper()
	buf := make([]byte, 1500)
	c.relay.SetReadDeadline(time.Now().Add(5 * time.Second))
	n, err := c.relay.Read(buf)
	if err != nil {
		c.t.Fatalf("no answer: %v; evidence %+v", err, c.s.Evidence())
	}
	r, err := dhcpv4.FromBytes(buf[:n])
	if err != nil {
		c.t.Fatal(err)
	}
	if r.TransactionID != m.TransactionID || !bytes.Equal(r.ClientHWAddr, c.hw) || !r.GatewayIPAddr.Equal(c.giaddr) {
		c.t.Fatalf("answer is not to this request: %s", r.Summary())
	}
	if got, want := r.Options.Get(dhcpv4.OptionRelayAgentInformation), m.Options.Get(dhcpv4.OptionRelayAgentInformation); !bytes.Equal(got, want) {
		c.t.Fatalf("option 82 came back as %x, was %x", got, want)
	}
	return r
}

// lease goes through DISCOVER, OFFER, REQUEST, ACK.
func (c *client) lease(extra []dhcpv4.Modifier) *dhcpv4.DHCPv4 {
	c.t.Helper()
	d, err := dhcpv4.NewDiscovery(c.hw, extra...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(d)
	offer := c.receive(d)
	if offer.MessageType() != dhcpv4.MessageTypeOffer {
		c.t.Fatalf("want an OFFER, got %s", offer.Summary())
	}
	r, err := dhcpv4.NewRequestFromOffer(offer, extra...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(r)
	ack := c.receive(r)
	if ack.MessageType() != dhcpv4.MessageTypeAck || !ack.YourIPAddr.Equal(offer.YourIPAddr) {
		c.t.Fatalf("want an ACK of %s, got %s", offer.YourIPAddr, ack.Summary())
	}
	return ack
}

// from is an HTTP client that speaks from an address.
func from(t *testing.T, ip string) *http.Client {
	tr := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}).DialContext}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func get(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	r, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestAMachineBootsFromItsFirstDiscoverToItsPhoneHomeToken(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.1", nil)
	s.Arm("srv-1", 3)
	c := s.client(t, mac, "127.77.1.1")

	// The firmware: an address and iPXE by TFTP.
	ack := c.lease(pxeX64)
	if got := ack.BootFileNameOption(); got != "snponly.efi" || ack.BootFileName != got {
		t.Fatalf("first stage in option 67 is %q, in the header %q; want snponly.efi in both", got, ack.BootFileName)
	}
	p, err := pin.NewClient(s.Addrs().TFTP.String())
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.Receive("snponly.efi", "octet")
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	if _, err := w.WriteTo(&file); err != nil || file.Len() != 3000 {
		t.Fatalf("TFTP gave %d bytes, %v; want 3000", file.Len(), err)
	}

	// iPXE: the same address, and the script.
	ack2 := c.lease(ipxeX64)
	if !ack2.YourIPAddr.Equal(ack.YourIPAddr) {
		t.Fatalf("iPXE was given %s, the firmware %s", ack2.YourIPAddr, ack.YourIPAddr)
	}
	url := ack2.BootFileNameOption()
	if url != s.URL()+"/boot/"+mac+"/script.ipxe" {
		t.Fatalf("script is at %q", url)
	}
	h := from(t, ack2.YourIPAddr.String())
	status, text := get(t, h, url)
	if status != 200 || !strings.HasPrefix(text, "#!ipxe\n") {
		t.Fatalf("script: %d %s", status, text)
	}
	enrol := regexp.MustCompile(`gpupool\.enrol=(\S+)`).FindStringSubmatch(text)
	if enrol == nil {
		t.Fatalf("script has no enrol URL: %s", text)
	}
	for _, f := range []string{"vmlinuz", "initrd"} {
		if status, _ := get(t, h, s.URL()+"/files/"+f); status != 200 {
			t.Fatalf("%s: %d", f, status)
		}
	}

	// The installer: who it is, and how to phone home, once.
	status, text = get(t, h, enrol[1])
	var e script.Enrol
	if err := json.Unmarshal([]byte(text), &e); status != 200 || err != nil {
		t.Fatalf("enrol: %d %s", status, text)
	}
	if g, err := s.Check(t.Context(), e.Token); err != nil || g != (boot.Grant{Server: "srv-1", Attempt: 3, Purpose: schema.PurposePhoneHome}) {
		t.Fatalf("phone-home token stands for %+v, %v", g, err)
	}
	if status, text = get(t, h, enrol[1]); status != 403 {
		t.Fatalf("a secret was given twice: %d %s", status, text)
	}

	// And each step is evidence of attempt 3.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for _, kind := range []string{boot.KindDiscover, boot.KindOffer, boot.KindAck, boot.KindTFTP, boot.KindScript, boot.KindHTTP, boot.KindDocument, boot.KindToken} {
		e, err := s.Wait(ctx, func(e schema.BootEvidence) bool { return e.Kind == kind && (kind == boot.KindTFTP || e.MAC == mac) })
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if kind != boot.KindTFTP && (e.Server != "srv-1" || e.Attempt != 3) {
			t.Fatalf("%s is of server %q attempt %d", kind, e.Server, e.Attempt)
		}
	}
	token := enrol[1][strings.Index(enrol[1], "/b/")+3:]
	token = token[:strings.IndexByte(token, '/')]
	for _, e := range s.Evidence() {
		if strings.Contains(e.What+e.Result, token) {
			t.Fatalf("a token stands in the evidence: %+v", e)
		}
	}
}

func TestWhoMayHaveAnInstallScript(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.2", nil)
	s.Put(boot.Machine{ID: "srv-2", Name: "r1s2", Phase: schema.PhaseAvailable}, "52:54:00:77:00:02")
	url := func(mac string) string { return s.URL() + "/boot/" + mac + "/script.ipxe" }
	ip := s.client(t, mac, "127.77.2.1").lease(ipxeX64).YourIPAddr.String()
	other := s.client(t, "52:54:00:77:00:02", "127.77.2.2").lease(ipxeX64).YourIPAddr.String()
	self, neighbour := from(t, ip), from(t, other)

	toDisk := func(what, mac string, c *http.Client) {
		t.Helper()
		if status, text := get(t, c, url(mac)); status != 200 || !strings.Contains(text, "booting from disk") || strings.Contains(text, "/b/") {
			t.Fatalf("%s: %d %s", what, status, text)
		}
	}
	toDisk("a machine that is available", mac, self)
	toDisk("a MAC that nobody knows", "52:54:00:99:99:99", self)

	s.Arm("srv-1", 1)
	if status, text := get(t, neighbour, url(mac)); status != 403 {
		t.Fatalf("a neighbour was given the script: %d %s", status, text)
	}
	status, text := get(t, self, url(mac))
	if status != 200 || !strings.Contains(text, "/b/") {
		t.Fatalf("the armed machine: %d %s", status, text)
	}
	base := regexp.MustCompile(`http://\S+/b/[^/]+`).FindString(text)
	if status, _ := get(t, self, url(mac)); status != 403 {
		t.Fatalf("the script was given twice in one DHCP exchange: %d", status)
	}
	if status, _ := get(t, neighbour, base+"/enrol"); status != 403 {
		t.Fatalf("a neighbour's use of the token: %d, want 403", status)
	}
	r, _ := http.NewRequest(http.MethodGet, base+"/enrol", nil)
	r.Header.Set("X-Forwarded-For", ip)
	if resp, err := neighbour.Do(r); err != nil || resp.StatusCode != 403 {
		t.Fatalf("with X-Forwarded-For: %v %v, want 403", resp, err)
	} else {
		resp.Body.Close()
	}

	// A reboot is a new exchange: a new token, and the earlier one is worth nothing.
	s.client(t, mac, "127.77.2.3").lease(ipxeX64)
	if status, text = get(t, self, url(mac)); status != 200 {
		t.Fatalf("after a reboot: %d %s", status, text)
	}
	if status, _ := get(t, self, base+"/enrol"); status != 403 {
		t.Fatalf("the earlier token: %d, want 403", status)
	}
	base = regexp.MustCompile(`http://\S+/b/[^/]+`).FindString(text)
	s.Disarm("srv-1")
	if status, _ := get(t, self, base+"/enrol"); status != 403 {
		t.Fatalf("a token after the attempt: %d, want 403", status)
	}
	toDisk("the machine after the attempt", mac, self)
	s.Arm("srv-1", 2)
	m, _, _ := s.ByID(t.Context(), "srv-1")
	m.Protected = true
	s.Put(m)
	toDisk("a protected machine, though armed", mac, self)
}

func TestAnInstallersReportIsHeardFromItsOwnMachineOnly(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.21", nil)
	s.Put(boot.Machine{ID: "srv-2", Name: "r1s2", Phase: schema.PhaseAvailable}, "52:54:00:77:00:02")
	self := from(t, s.client(t, mac, "127.77.21.1").lease(ipxeX64).YourIPAddr.String())
	neighbour := from(t, s.client(t, "52:54:00:77:00:02", "127.77.21.2").lease(ipxeX64).YourIPAddr.String())
	s.Arm("srv-1", 1)
	_, text := get(t, self, s.URL()+"/boot/"+mac+"/script.ipxe")
	report := regexp.MustCompile(`http://\S+/b/[^/]+`).FindString(text) + "/" + schema.InstallReportName
	post := func(c *http.Client, url, body string) int {
		t.Helper()
		r, err := c.Post(url, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		return r.StatusCode
	}
	for name, c := range map[string]struct {
		from   *http.Client
		url    string
		body   string
		status int
	}{
		"its machine":      {self, report, `{"state":"running","text":"writing\n40 %"}`, 204},
		"a neighbour":      {neighbour, report, `{"state":"installed"}`, 403},
		"a guess":          {self, s.URL() + "/b/guess/report", `{"state":"installed"}`, 403},
		"an unknown state": {self, report, `{"state":"half"}`, 400},
		"no JSON":          {self, report, `state=installed`, 400},
		"another path":     {self, strings.TrimSuffix(report, "report") + "enrol", `{}`, 405},
		"a long body":      {self, report, `{"state":"running","text":"` + strings.Repeat("x", 300<<10) + `"}`, 400},
	} {
		if got := post(c.from, c.url, c.body); got != c.status {
			t.Errorf("%s: HTTP %d, want %d", name, got, c.status)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	e, err := s.Wait(ctx, func(e schema.BootEvidence) bool { return e.Kind == boot.KindReport })
	if err != nil || e.What != "running" || e.Result != "writing 40 %" || e.Server != "srv-1" || e.Attempt != 1 {
		t.Fatalf("evidence %+v, %v", e, err)
	}
}

func TestGuessingTokensIsLimitedAndAudited(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.3", nil)
	c := from(t, "127.77.3.99")
	for i := range 10 {
		if status, _ := get(t, c, s.URL()+"/b/guess/user-data"); status != 403 {
			t.Fatalf("guess %d: %d", i, status)
		}
	}
	if status, _ := get(t, c, s.URL()+"/b/guess/user-data"); status != 429 {
		t.Fatalf("after ten guesses: %d, want 429", status)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := s.Wait(ctx, func(e schema.BootEvidence) bool { return e.Kind == boot.KindToken && e.IP == "127.77.3.99" }); err != nil {
		t.Fatal(err)
	}
}

func TestAddrsAreKnownBeforeRun(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.4", nil)
	for what, a := range map[string]netip.AddrPort{"dhcp": s.Addrs().DHCP, "pxe": s.Addrs().PXE, "tftp": s.Addrs().TFTP, "http": s.Addrs().HTTP} {
		if a.Port() == 0 {
			t.Errorf("%s has no port", what)
		}
	}
}
