package dhcp_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"gpupool/pxe/boot"
	"gpupool/pxe/dhcp"
	"gpupool/pxe/lease"
	"gpupool/pxe/pxetest"
	"gpupool/schema"
)

var (
	hw6    = net.HardwareAddr{0x52, 0x54, 0, 0x77, 0, 1}
	local6 = netip.MustParseAddrPort("[fe80::5054:ff:fe77:1%lo]:546")
	own6   = netip.MustParseAddr("2001:db8:1:0:5254:67:7077:1")
)

// six is a server of 2001:db8:1::/64, directly on lo, and of 2001:db8:2::/64, behind relays.
type six struct {
	*dhcp.Server
	*pxetest.Platform
	t     *testing.T
	busy  map[netip.Addr]bool // addresses that answer a probe
	now   time.Time
	store *lease.Memory
	seen  []schema.BootEvidence
	cfg   dhcp.Config
}

func newSix(t *testing.T) *six {
	t.Helper()
	s := &six{Platform: pxetest.New(), t: t, now: time.Unix(1_800_000_000, 0), store: lease.NewMemory(), busy: map[netip.Addr]bool{}}
	s.Put(boot.Machine{ID: "srv-1", Phase: schema.PhaseAvailable}, boot.MAC(hw6))
	s.cfg = dhcp.Config{ServerID: netip.MustParseAddr("10.0.0.2"), ScriptURL: func(string) string { return "" }, Subnets: []dhcp.Subnet{{Prefix: netip.MustParsePrefix("10.0.0.0/24")}}, V6: dhcp.Config6{
		Subnets:  []dhcp.Subnet6{{Prefix: netip.MustParsePrefix("2001:db8:1::/64"), Interface: "lo", DNS: []netip.Addr{netip.MustParseAddr("2001:db8::53")}}, {Prefix: netip.MustParsePrefix("2001:db8:2::/64")}},
		FilesURL: "http://[2001:db8:1::2]:8080/files", TFTPURL: "tftp://[2001:db8:1::2]", ScriptURL: func(mac string) string { return "http://[2001:db8:1::2]:8080/boot/" + mac },
	}}
	s.start()
	return s
}

// start makes the server, as another process on the same leases would.
func (s *six) start() {
	s.t.Helper()
	clock := func() time.Time { return s.now }
	book := lease.NewBook(s.store, lease.Options{Now: clock, Prober: s, Conflict: func(a netip.Addr, mac string) {
		s.seen = append(s.seen, schema.BootEvidence{Kind: boot.KindConflict, MAC: mac, IP: a.String()})
	}})
	var err error
	if s.Server, err = dhcp.New(s.cfg, dhcp.Deps{Inventory: s, Now: clock, Book: book, Record: func(e schema.BootEvidence) { s.seen = append(s.seen, e) }}); err != nil {
		s.t.Fatal(err)
	}
}

// InUse implements lease.Prober.
func (s *six) InUse(_ context.Context, a netip.Addr, _ string) bool { return s.busy[a] }

// ask sends m as the machine that is directly connected, and returns the answer; nil = silence.
func (s *six) ask(m dhcpv6.DHCPv6) *dhcpv6.Message {
	s.t.Helper()
	return s.askFrom(local6, m)
}

func (s *six) askFrom(from netip.AddrPort, m dhcpv6.DHCPv6) *dhcpv6.Message {
	s.t.Helper()
	b, to, ok := s.Answer6(s.t.Context(), m.ToBytes(), dhcp.Arrival6{Src: from, IfIndex: loopback(s.t)})
	if !ok {
		return nil
	}
	if to != from {
		s.t.Fatalf("answered to %s, want %s", to, from)
	}
	r, err := dhcpv6.MessageFromBytes(b)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// address is what an answer gives.
func (s *six) address(m *dhcpv6.Message) netip.Addr {
	s.t.Helper()
	if m == nil || m.Options.OneIANA() == nil || m.Options.OneIANA().Options.OneAddress() == nil {
		s.t.Fatalf("no address in %v", m)
	}
	a, _ := netip.AddrFromSlice(m.Options.OneIANA().Options.OneAddress().IPv6Addr)
	return a
}

func message(t *testing.T, typ dhcpv6.MessageType, mods ...dhcpv6.Modifier) *dhcpv6.Message {
	t.Helper()
	m, err := dhcpv6.NewSolicit(hw6, mods...)
	if err != nil {
		t.Fatal(err)
	}
	m.MessageType = typ
	return m
}

func class(text string) dhcpv6.Modifier {
	return dhcpv6.WithOption(&dhcpv6.OptVendorClass{EnterpriseNumber: 343, Data: [][]byte{[]byte(text)}})
}

func held(a netip.Addr) dhcpv6.Modifier {
	return dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: a.AsSlice()})
}

func TestUEFIBootsOverIPv6ByHTTPAndByTFTPAndIPXEGetsItsScript(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mods []dhcpv6.Modifier
		want string
		http bool
	}{
		"HTTP":    {[]dhcpv6.Modifier{class("HTTPClient:Arch:00016:UNDI:003001"), dhcpv6.WithArchType(iana.EFI_X86_64_HTTP)}, "http://[2001:db8:1::2]:8080/files/snponly.efi", true},
		"PXE":     {[]dhcpv6.Modifier{class("PXEClient:Arch:00011:UNDI:003001"), dhcpv6.WithArchType(iana.EFI_ARM64)}, "tftp://[2001:db8:1::2]/snponly-arm64.efi", false},
		"iPXE":    {[]dhcpv6.Modifier{class("PXEClient:Arch:00007:UNDI:003001"), dhcpv6.WithUserClass([]byte("iPXE"))}, "http://[2001:db8:1::2]:8080/boot/52:54:00:77:00:01", false},
		"no boot": {nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSix(t)
			adv := s.ask(message(t, dhcpv6.MessageTypeSolicit, c.mods...))
			if adv == nil || adv.MessageType != dhcpv6.MessageTypeAdvertise || adv.Options.BootFileURL() != c.want || (adv.Options.VendorClass(343) != nil) != c.http || len(adv.Options.DNS()) != 1 {
				t.Fatalf("want %q in an ADVERTISE, got %v", c.want, adv)
			}
			if rows, _ := s.store.List(t.Context(), "2001:db8:1::/64"); len(rows) != 0 {
				t.Fatalf("an ADVERTISE keeps a lease: %v", rows)
			}
			req, err := dhcpv6.NewRequestFromAdvertise(adv, c.mods...)
			if err != nil {
				t.Fatal(err)
			}
			rep := s.ask(req)
			if got := s.address(rep); got != own6 || rep.Options.BootFileURL() != c.want || !rep.Options.ServerID().Equal(s.cfg.DUID()) || !rep.Options.ClientID().Equal(req.Options.ClientID()) {
				t.Fatalf("REPLY %v", rep)
			}
			ia := rep.Options.OneIANA()
			want := 10 * time.Minute
			if c.want == "" {
				want = 12 * time.Hour
			}
			if ia.IaId != req.Options.OneIANA().IaId || ia.T1 != want/2 || ia.T2 != want*4/5 || ia.Options.OneAddress().ValidLifetime != want {
				t.Fatalf("IA_NA %v", ia)
			}
			l, ok, err := lease.NewBook(s.store, lease.Options{Now: func() time.Time { return s.now }}).At(t.Context(), own6)
			if err != nil || !ok || l.MAC != boot.MAC(hw6) || l.Server != "srv-1" {
				t.Fatalf("lease %+v %v", l, err)
			}
		})
	}
}

func TestDHCPv6ClientStates(t *testing.T) {
	t.Parallel()
	s := newSix(t)
	mine, other := dhcpv6.WithServerID(s.cfg.DUID()), dhcpv6.WithServerID(&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}})
	if r := s.ask(message(t, dhcpv6.MessageTypeRequest, other)); r != nil {
		t.Fatalf("a REQUEST for another server: %v", r)
	}
	if got := s.address(s.ask(message(t, dhcpv6.MessageTypeRequest, mine))); got != own6 {
		t.Fatalf("it was given %s", got)
	}
	stray := netip.MustParseAddr("2001:db8:9::1")
	for _, typ := range []dhcpv6.MessageType{dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind} {
		mods := []dhcpv6.Modifier{held(stray)}
		if typ == dhcpv6.MessageTypeRenew {
			mods = append(mods, mine)
		}
		r := s.ask(message(t, typ, mods...))
		if got := s.address(r); got != own6 {
			t.Fatalf("%s: %s", typ, got)
		}
		if all := r.Options.OneIANA().Options.Addresses(); len(all) != 2 || all[1].ValidLifetime != 0 || !all[1].IPv6Addr.Equal(stray.AsSlice()) {
			t.Fatalf("%s: an address that isn't its own comes back as %v", typ, all)
		}
	}
	for a, want := range map[netip.Addr]iana.StatusCode{own6: iana.StatusSuccess, stray: iana.StatusNotOnLink} {
		if r := s.ask(message(t, dhcpv6.MessageTypeConfirm, held(a))); r == nil || r.Options.Status().StatusCode != want {
			t.Fatalf("CONFIRM of %s: %v", a, r)
		}
	}
	if r := s.ask(message(t, dhcpv6.MessageTypeConfirm)); r != nil {
		t.Fatalf("a CONFIRM of nothing: %v", r)
	}
	if r := s.ask(message(t, dhcpv6.MessageTypeDecline, mine, held(own6))); r == nil || r.Options.Status().StatusCode != iana.StatusSuccess {
		t.Fatalf("DECLINE: %v", r)
	}
	second := s.address(s.ask(message(t, dhcpv6.MessageTypeSolicit)))
	if second == own6 || s.address(s.ask(message(t, dhcpv6.MessageTypeRequest, mine))) != second {
		t.Fatalf("after its DECLINE of %s it was offered %s", own6, second)
	}
	if r := s.ask(message(t, dhcpv6.MessageTypeRelease, mine, held(second), dhcpv6.WithIAID([4]byte{9}))); r == nil || r.Options.Status().StatusCode != iana.StatusSuccess {
		t.Fatalf("RELEASE: %v", r)
	}
	if rows, _ := s.store.Find(t.Context(), []lease.Key{{IPs: []string{second.String()}}}); len(rows) != 1 || rows[0].State != schema.LeaseBound {
		t.Fatalf("the RELEASE of another association ended the lease: %v", rows)
	}
	if r := s.ask(message(t, dhcpv6.MessageTypeRelease, mine, held(second))); r == nil {
		t.Fatal("RELEASE: silence")
	}
	rows, err := s.store.Find(t.Context(), []lease.Key{{IPs: []string{second.String()}}})
	if err != nil || len(rows) != 1 || rows[0].State != schema.LeaseReleased {
		t.Fatalf("after the RELEASE: %v %v", rows, err)
	}
	if got := s.address(s.ask(message(t, dhcpv6.MessageTypeSolicit))); got != second {
		t.Fatalf("it had %s and is offered %s", second, got)
	}
}

// TestDHCPv6AfterRenumbering: the prefix of a network has changed; who renews gets an address of the new one, and the
// old one with no time left.
func TestDHCPv6AfterRenumbering(t *testing.T) {
	t.Parallel()
	s := newSix(t)
	mine := dhcpv6.WithServerID(s.cfg.DUID())
	if got := s.address(s.ask(message(t, dhcpv6.MessageTypeRequest, mine))); got != own6 {
		t.Fatalf("it was given %s", got)
	}
	s.cfg.V6.Subnets[0].Prefix = netip.MustParsePrefix("2001:db8:7::/64")
	s.start()
	if r := s.ask(message(t, dhcpv6.MessageTypeConfirm, held(own6))); r == nil || r.Options.Status().StatusCode != iana.StatusNotOnLink {
		t.Fatalf("CONFIRM of the old address: %v", r)
	}
	r := s.ask(message(t, dhcpv6.MessageTypeRenew, mine, held(own6)))
	all := r.Options.OneIANA().Options.Addresses()
	if want := net.ParseIP("2001:db8:7:0:5254:67:7077:1"); len(all) != 2 || !all[0].IPv6Addr.Equal(want) || all[0].ValidLifetime == 0 || !all[1].IPv6Addr.Equal(own6.AsSlice()) || all[1].ValidLifetime != 0 {
		t.Fatalf("RENEW of the old address: %v", all)
	}
}

// TestDHCPv6ConfirmMakesTheLeaseAnew: a client that comes back after its lease ran out, or was released, goes on with
// its address, so the record must say whose it is; another's address is not right here.
func TestDHCPv6ConfirmMakesTheLeaseAnew(t *testing.T) {
	t.Parallel()
	s := newSix(t)
	mine := dhcpv6.WithServerID(s.cfg.DUID())
	s.ask(message(t, dhcpv6.MessageTypeRequest, mine))
	s.ask(message(t, dhcpv6.MessageTypeRelease, mine, held(own6)))
	if _, _, ok, err := s.MACAt(t.Context(), own6); ok || err != nil {
		t.Fatalf("after its RELEASE: %v %v", ok, err)
	}
	if r := s.ask(message(t, dhcpv6.MessageTypeConfirm, held(own6))); r == nil || r.Options.Status().StatusCode != iana.StatusSuccess {
		t.Fatalf("CONFIRM: %v", r)
	}
	if mac, _, ok, err := s.MACAt(t.Context(), own6); !ok || err != nil || mac != boot.MAC(hw6) {
		t.Fatalf("after its CONFIRM: %s %v %v", mac, ok, err)
	}
	if r := s.ask(message(t, dhcpv6.MessageTypeConfirm, held(netip.MustParseAddr("2001:db8:1::77")))); r == nil || r.Options.Status().StatusCode != iana.StatusNotOnLink {
		t.Fatalf("CONFIRM of an address of this network that isn't its own: %v", r)
	}
}

func TestDHCPv6AddressInUseIsNotGiven(t *testing.T) {
	t.Parallel()
	s := newSix(t)
	s.busy[own6] = true
	got := s.address(s.ask(message(t, dhcpv6.MessageTypeSolicit)))
	if got == own6 || s.seen[0].Kind != boot.KindConflict || s.seen[0].IP != own6.String() {
		t.Fatalf("offered %s; evidence %+v", got, s.seen)
	}
	mine := dhcpv6.WithServerID(s.cfg.DUID())
	if a := s.address(s.ask(message(t, dhcpv6.MessageTypeRequest, mine))); a != got {
		t.Fatalf("offered %s, given %s", got, a)
	}
	// What it has is its own: it answers there itself, and isn't asked.
	s.busy[got] = true
	if a := s.address(s.ask(message(t, dhcpv6.MessageTypeRenew, mine, held(got)))); a != got {
		t.Fatalf("had %s, renewed to %s", got, a)
	}
	rows, err := s.store.Find(t.Context(), []lease.Key{{IPs: []string{own6.String()}}})
	if err != nil || len(rows) != 1 || rows[0].State != schema.LeaseDeclined {
		t.Fatalf("the address in use is not quarantined: %v %v", rows, err)
	}
}

// TestDHCPv6MachineFoundByItsUUID: a host with an address that hides its MAC and an identifier that is its SMBIOS UUID
// (RFC 6355), in either byte order.
func TestDHCPv6MachineFoundByItsUUID(t *testing.T) {
	t.Parallel()
	hidden := netip.MustParseAddrPort("[fe80::1234:5678:9abc:def0%lo]:546")
	printed := [16]byte{0x4c, 0x4c, 0x45, 0x44, 0x00, 0x39, 0x4a, 0x10, 0x80, 0x52, 0xb8, 0xc0, 0x4f, 0x4e, 0x33, 0x32}
	smbios := [16]byte{0x44, 0x45, 0x4c, 0x4c, 0x39, 0x00, 0x10, 0x4a, 0x80, 0x52, 0xb8, 0xc0, 0x4f, 0x4e, 0x33, 0x32}
	for name, id := range map[string][16]byte{"as printed": printed, "as in SMBIOS": smbios} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSix(t)
			m := message(t, dhcpv6.MessageTypeSolicit, dhcpv6.WithClientID(&dhcpv6.DUIDUUID{UUID: id}), class("HTTPClient:Arch:00016"), dhcpv6.WithArchType(iana.EFI_X86_64_HTTP))
			if r := s.askFrom(hidden, m); r != nil {
				t.Fatalf("the inventory doesn't have that UUID, and answers %v", r)
			}
			s.SetUUID("srv-1", "4c4c4544-0039-4a10-8052-b8c04f4e3332")
			if r := s.askFrom(hidden, m); s.address(r) != own6 || r.Options.BootFileURL() == "" {
				t.Fatalf("%v", r)
			}
			// Two that say they have it are nobody.
			s.Put(boot.Machine{ID: "srv-2", Phase: schema.PhaseAvailable}, "52:54:00:77:00:02")
			s.SetUUID("srv-2", "44454c4c-3900-104a-8052-b8c04f4e3332")
			if r := s.askFrom(hidden, m); r != nil {
				t.Fatalf("two servers have that UUID in one order or the other, and one is answered: %v", r)
			}
		})
	}
}

// TestRFC5970FieldByField: what UEFI's HTTP boot asks, byte by byte, and each option of the answer.
func TestRFC5970FieldByField(t *testing.T) {
	t.Parallel()
	s := newSix(t)
	ask := slices.Concat(
		[]byte{1, 0xaa, 0xbb, 0xcc},                               // SOLICIT, transaction
		option6(1, hex6("0004 33221100554477668899aabbccddeeff")), // DUID-UUID
		option6(3, hex6("00000005 00000000 00000000")),            // IA_NA
		option6(6, hex6("003b 003c 0017 0010")),                   // ORO: 59, 60, 23, 16
		option6(8, hex6("0000")),                                  // elapsed time
		option6(61, hex6("0010")),                                 // UEFI x86-64, HTTP
		option6(62, hex6("01 03 10")),                             // UNDI 3.16
		option6(16, append(hex6("00000157 0021"), "HTTPClient:Arch:00016:UNDI:003016"...)),
	)
	b, _, ok := s.Answer6(t.Context(), ask, dhcp.Arrival6{Src: local6, IfIndex: loopback(t)})
	if !ok || !bytes.Equal(b[:4], []byte{2, 0xaa, 0xbb, 0xcc}) {
		t.Fatalf("want an ADVERTISE of the same transaction, got %x", b)
	}
	got := map[int]string{}
	var order []int
	for o := b[4:]; len(o) > 0; {
		code, n := int(o[0])<<8|int(o[1]), int(o[2])<<8|int(o[3])
		order = append(order, code)
		got[code], o = string(o[4:4+n]), o[4+n:]
	}
	ten := "0000012c 000001e0" // T1 300 s, T2 480 s
	for code, want := range map[int][]byte{
		1:  hex6("0004 33221100554477668899aabbccddeeff"),
		2:  s.cfg.DUID().ToBytes(),
		3:  slices.Concat(hex6("00000005"+ten), option6(5, slices.Concat(own6.AsSlice(), hex6("00000258 00000258")))),
		16: append(hex6("00000157 000a"), "HTTPClient"...),
		23: netip.MustParseAddr("2001:db8::53").AsSlice(),
		59: []byte("http://[2001:db8:1::2]:8080/files/snponly.efi"),
	} {
		if got[code] != string(want) {
			t.Errorf("option %d is %x, want %x", code, got[code], want)
		}
	}
	if len(order) != 6 {
		t.Errorf("options %v: want each of 1, 2, 3, 16, 23, 59 once and no other", order)
	}
}

func option6(code byte, v []byte) []byte {
	return append([]byte{0, code, byte(len(v) >> 8), byte(len(v))}, v...)
}

func hex6(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

func TestDHCPv6ThroughRelays(t *testing.T) {
	t.Parallel()
	s := newSix(t)
	// A client that tells no MAC itself: its identifier is a UUID, its address is none of EUI-64's.
	m := message(t, dhcpv6.MessageTypeSolicit, dhcpv6.WithClientID(&dhcpv6.DUIDUUID{UUID: [16]byte{1, 2, 3}}))
	near, err := dhcpv6.EncapsulateRelay(m, dhcpv6.MessageTypeRelayForward, net.ParseIP("2001:db8:2::1"), net.ParseIP("fe80::1"))
	if err != nil {
		t.Fatal(err)
	}
	near.AddOption(dhcpv6.OptClientLinkLayerAddress(iana.HWTypeEthernet, hw6))
	near.AddOption(dhcpv6.OptInterfaceID([]byte("port 7")))
	far, err := dhcpv6.EncapsulateRelay(near, dhcpv6.MessageTypeRelayForward, net.IPv6unspecified, net.ParseIP("2001:db8:2::1"))
	if err != nil {
		t.Fatal(err)
	}
	relay := netip.MustParseAddrPort("[2001:db8:1::9]:4000")
	b, to, ok := s.Answer6(t.Context(), far.ToBytes(), dhcp.Arrival6{Src: relay})
	if !ok || to != netip.AddrPortFrom(relay.Addr(), 547) {
		t.Fatalf("answered %v to %s", ok, to)
	}
	d, err := dhcpv6.FromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	outer, ok := d.(*dhcpv6.RelayMessage)
	if !ok || outer.MessageType != dhcpv6.MessageTypeRelayReply {
		t.Fatalf("%v", d)
	}
	inner := outer.Options.RelayMessage().(*dhcpv6.RelayMessage)
	if !inner.LinkAddr.Equal(net.ParseIP("2001:db8:2::1")) || !inner.PeerAddr.Equal(net.ParseIP("fe80::1")) || string(inner.Options.InterfaceID()) != "port 7" {
		t.Fatalf("the relay that is nearer gets %v", inner)
	}
	adv, err := d.GetInnerMessage()
	if err != nil || s.address(adv) != netip.MustParseAddr("2001:db8:2:0:5254:67:7077:1") {
		t.Fatalf("%v %v", adv, err)
	}
	near, _ = dhcpv6.EncapsulateRelay(m, dhcpv6.MessageTypeRelayForward, net.ParseIP("2001:db8:3::1"), net.ParseIP("fe80::1"))
	near.AddOption(dhcpv6.OptClientLinkLayerAddress(iana.HWTypeEthernet, hw6))
	if _, _, ok := s.Answer6(t.Context(), near.ToBytes(), dhcp.Arrival6{Src: relay}); ok || s.seen[len(s.seen)-1].Kind != boot.KindRelay {
		t.Fatalf("a network that isn't configured: %v %+v", ok, s.seen)
	}
}

// FuzzAnswer6 gives the server anything: it must not panic, must answer nothing but its own machine, and must keep no
// lease but for a REQUEST, RENEW, REBIND or CONFIRM that it answers.
func FuzzAnswer6(f *testing.F) {
	for typ := dhcpv6.MessageTypeSolicit; typ <= dhcpv6.MessageTypeInformationRequest; typ++ {
		m, err := dhcpv6.NewSolicit(hw6, class("HTTPClient:Arch:00016"), held(own6))
		if err != nil {
			f.Fatal(err)
		}
		m.MessageType = typ
		f.Add(m.ToBytes())
		r, err := dhcpv6.EncapsulateRelay(m, dhcpv6.MessageTypeRelayForward, net.ParseIP("2001:db8:2::1"), net.ParseIP("fe80::1"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(r.ToBytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newSix(t)
		r, _, ok := s.Answer6(t.Context(), b, dhcp.Arrival6{Src: local6, IfIndex: loopback(t)})
		var rows []schema.Lease
		for _, n := range []string{"2001:db8:1::/64", "2001:db8:2::/64"} {
			more, _ := s.store.List(t.Context(), n)
			rows = append(rows, more...)
		}
		if !ok {
			if len(rows) != 0 {
				t.Fatalf("a lease without an answer: %v", rows)
			}
			return
		}
		in, err := dhcpv6.FromBytes(b)
		if err != nil {
			t.Fatal("garbage was answered")
		}
		asked, err := in.GetInnerMessage()
		if err != nil {
			t.Fatal("garbage was answered")
		}
		out, err := dhcpv6.FromBytes(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := out.GetInnerMessage()
		if err != nil || got.TransactionID != asked.TransactionID || in.IsRelay() != out.IsRelay() || got.Options.ServerID() == nil {
			t.Fatalf("%v is no answer to %v", out, in)
		}
		switch asked.MessageType {
		case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind, dhcpv6.MessageTypeConfirm:
		default:
			if len(rows) != 0 {
				t.Fatalf("%s keeps a lease: %v", asked.MessageType, rows)
			}
		}
	})
}
