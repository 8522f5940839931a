package dhcp_test

import (
	"bytes"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"gpupool/pxe/dhcp"
	"gpupool/schema"
)

// FuzzAnswer gives the server anything: it must not panic, must answer nothing but a well-formed request of a known
// machine, must answer it in kind, and must keep no lease that no request was acknowledged for.
func FuzzAnswer(f *testing.F) {
	seed := func(mods ...dhcpv4.Modifier) {
		m, err := dhcpv4.NewDiscovery([]byte{0x52, 0x54, 0, 0, 0, 1}, mods...)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(m.ToBytes(), false)
		f.Add(m.ToBytes(), true)
	}
	seed()
	seed(dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress([]byte{10, 0, 0, 50})))
	seed(dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP([]byte{10, 0, 0, 50}))
	seed(dhcpv4.WithMessageType(dhcpv4.MessageTypeDecline), dhcpv4.WithOption(dhcpv4.OptServerIdentifier([]byte{10, 0, 0, 2})))
	seed(dhcpv4.WithGatewayIP([]byte{10, 0, 0, 9}), dhcpv4.WithGeneric(dhcpv4.OptionRelayAgentInformation, []byte{5, 4, 10, 0, 0, 1, 19, 0}))
	seed(dhcpv4.WithGeneric(dhcpv4.OptionOptionOverload, []byte{3}), dhcpv4.WithUserClass("iPXE", true))
	seed(dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007")), dhcpv4.WithMessageType(dhcpv4.MessageTypeInform))
	f.Fuzz(func(t *testing.T, b []byte, port4011 bool) {
		n := dhcp.Subnet{Prefix: netip.MustParsePrefix("10.0.0.0/24"), Interface: "lo"}
		w := replayed(t, "10.0.0.2", n, "52:54:00:00:00:01")
		r, ok := w.Answer(t.Context(), b, dhcp.Arrival{Src: netip.MustParseAddrPort("10.0.0.9:68"), IfIndex: loopback(t), PXEPort: port4011})
		rows, _ := w.store.List(t.Context(), "10.0.0.0/24")
		p, err := dhcp.Parse(b)
		if err != nil || p.MAC != "52:54:00:00:00:01" {
			if ok || len(rows) != 0 {
				t.Fatalf("garbage or a stranger was answered: %v; leases %v", r, rows)
			}
			return
		}
		if len(rows) != 0 && (!ok || r.Type != dhcpv4.MessageTypeAck) {
			t.Fatalf("a lease without an ACK: %v", rows)
		}
		if !ok {
			return
		}
		m, err := dhcpv4.FromBytes(r.Bytes)
		if err != nil || m.OpCode != dhcpv4.OpcodeBootReply || m.TransactionID != p.TransactionID || !bytes.Equal(m.ClientHWAddr, p.ClientHWAddr) {
			t.Fatalf("answer is not one to the request: %v %v", m, err)
		}
		if len(r.Bytes) > 1472 || !bytes.Contains(r.Bytes, p.Relay.Raw) {
			t.Fatalf("answer of %d bytes, option 82 %x not in it whole", len(r.Bytes), p.Relay.Raw)
		}
		if p.Type == dhcpv4.MessageTypeInform && !m.YourIPAddr.IsUnspecified() {
			t.Fatal("an INFORM was given an address")
		}
		if r.Type == dhcpv4.MessageTypeNak && (p.Type != dhcpv4.MessageTypeRequest || !m.YourIPAddr.IsUnspecified()) {
			t.Fatalf("a NAK to %s", p.Type)
		}
	})
}

// FuzzTwoMachines: whatever two machines send in turn, no address is two machines'.
func FuzzTwoMachines(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})
	f.Add([]byte{3, 3, 3, 9, 9, 9, 14, 2, 2, 2, 2})
	f.Fuzz(func(t *testing.T, story []byte) {
		if len(story) > 200 {
			return
		}
		// The bubble's clock passes over the time in which the lease book waits for others.
		synctest.Test(t, func(t *testing.T) { twoMachines(t, story) })
	})
}

func twoMachines(t *testing.T, story []byte) {
	types := []dhcpv4.MessageType{dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeDecline, dhcpv4.MessageTypeRelease, dhcpv4.MessageTypeInform}
	macs := []string{"52:54:00:00:00:01", "52:54:00:00:00:02"}
	n := dhcp.Subnet{Prefix: netip.MustParsePrefix("10.0.0.0/29"), Interface: "lo"}
	w := replayed(t, "10.0.0.2", n, macs...)
	has := map[string]string{}
	for i, op := range story {
		who := int(op) & 1
		ip := []byte{10, 0, 0, op >> 5}
		mods := []dhcpv4.Modifier{dhcpv4.WithMessageType(types[int(op>>1)%5])}
		if op&16 != 0 {
			mods = append(mods, dhcpv4.WithOption(dhcpv4.OptServerIdentifier([]byte{10, 0, 0, 2})))
		}
		if op&8 != 0 {
			mods = append(mods, dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(ip)))
		} else {
			mods = append(mods, dhcpv4.WithClientIP(ip))
		}
		m, err := dhcpv4.NewDiscovery([]byte{0x52, 0x54, 0, 0, 0, byte(1 + who)}, mods...)
		if err != nil {
			t.Fatal(err)
		}
		r, ok := w.Answer(t.Context(), m.ToBytes(), dhcp.Arrival{IfIndex: loopback(t)})
		if types[int(op>>1)%5] == dhcpv4.MessageTypeRelease || types[int(op>>1)%5] == dhcpv4.MessageTypeDecline {
			delete(has, macs[who])
		}
		if ok && r.Type == dhcpv4.MessageTypeAck && r.YIAddr.IsValid() {
			has[macs[who]] = r.YIAddr.String()
			if has[macs[0]] == has[macs[1]] {
				t.Fatalf("step %d: %s is both machines'", i, r.YIAddr)
			}
		}
	}
	rows, _ := w.store.List(t.Context(), "10.0.0.0/29")
	live := map[string]int{}
	for _, l := range rows {
		if l.State == schema.LeaseBound {
			live[l.MAC]++
		}
		if l.IP == "10.0.0.0" || l.IP == "10.0.0.7" || l.IP == "10.0.0.2" {
			t.Fatalf("%s is the network's own", l.IP)
		}
	}
	for mac, k := range live {
		if k > 1 {
			t.Fatalf("%s has %d leases", mac, k)
		}
	}
}
