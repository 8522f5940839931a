package dhcp_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"gpupool/pxe/boot"
	"gpupool/pxe/dhcp"
	"gpupool/pxe/lease"
	"gpupool/pxe/pxetest"
	"gpupool/schema"
	"gpupool/schema/shared"
)

// datagram is a UDP datagram of a capture.
type datagram struct {
	src, dst netip.AddrPort
	payload  []byte
}

// capture reads a classic pcap file of Ethernet frames from the shared data.
func capture(t *testing.T, name string) []datagram {
	t.Helper()
	b, err := os.ReadFile(shared.Path(t, "data", "dhcp", name))
	if err != nil {
		t.Fatal(err)
	}
	var all []datagram
	for b = b[24:]; len(b) >= 16; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		f := b[16 : 16+n]
		b = b[16+n:]
		ip := f[14:]
		udp := ip[int(ip[0]&15)*4:]
		at := func(a []byte, port []byte) netip.AddrPort {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(a)), binary.BigEndian.Uint16(port))
		}
		all = append(all, datagram{at(ip[12:16], udp), at(ip[16:20], udp[2:]), udp[8:binary.BigEndian.Uint16(udp[4:])]})
	}
	return all
}

// replayed is a server on the capture's own network, that knows its clients.
func replayed(t *testing.T, id string, n dhcp.Subnet, macs ...string) *world {
	t.Helper()
	w := &world{Platform: pxetest.New(), store: lease.NewMemory(), now: time.Unix(1_800_000_000, 0), busy: map[string]bool{}}
	for _, mac := range macs {
		w.Put(boot.Machine{ID: "srv-" + mac, Phase: schema.PhaseAvailable}, mac)
	}
	if err := w.start(dhcp.Config{ServerID: netip.MustParseAddr(id), Subnets: []dhcp.Subnet{n}}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) replay(t *testing.T, d datagram) (*dhcpv4.DHCPv4, dhcp.Reply) {
	t.Helper()
	r, ok := w.Answer(t.Context(), d.payload, dhcp.Arrival{Src: d.src, Dst: d.dst.Addr(), IfIndex: loopback(t)})
	if !ok {
		return nil, r
	}
	m, err := dhcpv4.FromBytes(r.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return m, r
}

// same compares what the capture's server answered and what this one does: the header, and each option that both
// must send alike.
func same(t *testing.T, got, want *dhcpv4.DHCPv4, options ...uint8) {
	t.Helper()
	if got.TransactionID != want.TransactionID || got.HWType != want.HWType || !bytes.Equal(got.ClientHWAddr, want.ClientHWAddr) ||
		!got.ClientIPAddr.Equal(want.ClientIPAddr) || !got.YourIPAddr.Equal(want.YourIPAddr) || !got.GatewayIPAddr.Equal(want.GatewayIPAddr) {
		t.Fatalf("header differs: got %s\nwant %s", got.Summary(), want.Summary())
	}
	for _, o := range options {
		if !bytes.Equal(got.Options[o], want.Options[o]) {
			t.Fatalf("option %d is %x, the capture has %x", o, got.Options[o], want.Options[o])
		}
	}
}

func parsed(t *testing.T, d datagram) *dhcpv4.DHCPv4 {
	t.Helper()
	m, err := dhcpv4.FromBytes(d.payload)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func cmu(from, to string) dhcp.Subnet {
	a := netip.MustParseAddr
	return dhcp.Subnet{
		Prefix: netip.MustParsePrefix("128.2.6.0/24"), Ranges: []lease.Range{{From: a(from), To: a(to)}}, Routers: []netip.Addr{a("128.2.6.1")},
		DNS: []netip.Addr{a("128.2.1.11"), a("128.2.1.10")}, NTP: []netip.Addr{a("128.2.1.20"), a("128.2.1.21"), a("128.2.1.22")}, Domain: "cmu.edu", Interface: "lo", Lease: 900 * time.Second,
	}
}

func TestTheCaptureOfEveryMessageType(t *testing.T) {
	t.Parallel()
	c := capture(t, "dhcp.pcap")
	const mac = "90:b1:1c:99:49:29"
	w := replayed(t, "128.2.6.152", cmu("128.2.6.97", "128.2.6.97"), mac)

	offer, r := w.replay(t, c[0])
	if offer == nil || r.To.String() != "128.2.6.97:68" || r.HWAddr == nil {
		t.Fatalf("DISCOVER: %v %v", offer, r.To)
	}
	same(t, offer, parsed(t, c[1]), 53, 54, 51, 1, 3, 6, 15, 42)

	// It requests, of this server, an address of another network, and not the one it was offered.
	nak, r := w.replay(t, c[2])
	if nak == nil || r.To.String() != "255.255.255.255:68" {
		t.Fatalf("REQUEST of a foreign address: %v %v", nak, r.To)
	}
	same(t, nak, parsed(t, c[3]), 53, 54)
	if len(nak.Options) != 3 || nak.Message() == "" {
		t.Fatalf("a NAK holds 53, 54 and 56 only: %s", nak.Summary())
	}

	// INIT-REBOOT: silence without a record, an ACK with one.
	if m, _ := w.replay(t, c[4]); m != nil {
		t.Fatalf("INIT-REBOOT without a record was answered: %s", m.Summary())
	}
	w = replayed(t, "128.2.6.152", cmu("128.2.6.189", "128.2.6.189"), mac)
	if offer, _ := w.replay(t, c[0]); offer == nil {
		t.Fatal("DISCOVER was not answered")
	}
	take := parsed(t, c[4])
	take.UpdateOption(dhcpv4.OptServerIdentifier([]byte{128, 2, 6, 152}))
	if m, _ := w.replay(t, datagram{c[4].src, c[4].dst, take.ToBytes()}); m == nil || m.MessageType() != dhcpv4.MessageTypeAck {
		t.Fatalf("SELECTING was not acknowledged: %v", m)
	}
	ack, _ := w.replay(t, c[4])
	if ack == nil {
		t.Fatal("INIT-REBOOT with a record was not answered")
	}
	same(t, ack, parsed(t, c[5]), 53, 54, 51, 1, 3, 6, 15, 42)

	// DECLINE without 50 and 54, RELEASE without an address, INFORM without one: nothing happens.
	before, _ := w.store.List(t.Context(), "128.2.6.0/24")
	for i, what := range []string{"DECLINE", "RELEASE", "INFORM"} {
		if m, _ := w.replay(t, c[6+i]); m != nil {
			t.Fatalf("%s was answered: %s", what, m.Summary())
		}
	}
	after, _ := w.store.List(t.Context(), "128.2.6.0/24")
	if len(after) != 1 || len(before) != 1 || after[0] != before[0] {
		t.Fatalf("leases were %v, are %v", before, after)
	}
}

func TestTheCaptureOfAnInform(t *testing.T) {
	t.Parallel()
	c := capture(t, "dhcp_inform.pcap")
	w := replayed(t, "128.2.6.152", cmu("128.2.6.97", "128.2.6.97"), "90:b1:1c:99:49:29")
	ack, r := w.replay(t, c[0])
	if ack == nil || r.To != c[1].dst {
		t.Fatalf("INFORM: %v to %v, want to %v", ack, r.To, c[1].dst)
	}
	same(t, ack, parsed(t, c[1]), 53, 54, 1)
	for _, o := range []uint8{51, 58, 59} {
		if ack.Options[o] != nil {
			t.Fatalf("an INFORM's answer holds option %d", o)
		}
	}
}

func TestTheCaptureOfARenewalWithATextualClientIdentifier(t *testing.T) {
	t.Parallel()
	c := capture(t, "hw-type0.pcap")
	n := dhcp.Subnet{Prefix: netip.MustParsePrefix("192.168.0.0/24"), Interface: "lo"}
	w := replayed(t, "192.168.0.1", n, "cc:00:0a:c4:00:00")
	for _, what := range []string{"no record", "its own lease"} {
		ack, r := w.replay(t, c[0])
		if ack == nil || ack.MessageType() != dhcpv4.MessageTypeAck || r.To.String() != "192.168.0.3:68" || ack.YourIPAddr.String() != "192.168.0.3" {
			t.Fatalf("RENEW with %s: %v to %v", what, ack, r.To)
		}
		if id := string(ack.Options[61]); id != "\x00cisco-cc00.0ac4.0000-Fa0/0" {
			t.Fatalf("client identifier came back as %q", id)
		}
		if len(r.Bytes) > 1152-28 {
			t.Fatalf("%d bytes to a client that takes 1152 with headers", len(r.Bytes))
		}
	}
	rows, _ := w.store.List(t.Context(), "192.168.0.0/24")
	if len(rows) != 1 || rows[0].MAC != "cc:00:0a:c4:00:00" || !strings.HasPrefix(rows[0].ClientID, "00636973") {
		t.Fatalf("leases: %+v", rows)
	}
}

func TestTheCaptureOfBadCookies(t *testing.T) {
	t.Parallel()
	c := capture(t, "dhcp_bad_cookie_option_retention.pcap")
	w := replayed(t, "10.0.0.2", dhcp.Subnet{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Interface: "lo"}, "00:11:22:33:44:55")
	answered := 0
	for _, d := range c {
		if m, _ := w.replay(t, d); m != nil {
			answered++
		}
	}
	if n := w.Metrics.Read().Garbage[dhcp.BadCookie]; answered != 2 || n != 3 {
		t.Fatalf("%d answered, %d bad cookies; want 2 and 3", answered, n)
	}
	if rows, _ := w.store.List(t.Context(), "10.0.0.0/24"); len(rows) != 0 {
		t.Fatalf("leases without a request: %v", rows)
	}
}
