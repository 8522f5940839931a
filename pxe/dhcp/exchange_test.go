package dhcp_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"gpupool/pxe/boot"
	"gpupool/pxe/dhcp"
	"gpupool/pxe/lease"
	"gpupool/pxe/pxetest"
)

// counted is an inventory that counts what it is asked.
type counted struct {
	*pxetest.Platform
	asked int
}

func (c *counted) ByMAC(ctx context.Context, mac string) (boot.Machine, bool, error) {
	c.asked++
	return c.Platform.ByMAC(ctx, mac)
}

// TestTheInventoryIsAskedOnceForAnExchange: and again for a REQUEST that is repeated, of another transaction, or late.
func TestTheInventoryIsAskedOnceForAnExchange(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	clock := func() time.Time { return now }
	inv := &counted{Platform: pxetest.New()}
	inv.Put(boot.Machine{ID: "srv-1"}, "52:54:00:00:00:01")
	s, err := dhcp.New(dhcp.Config{ServerID: netip.MustParseAddr("10.0.0.2"), Subnets: []dhcp.Subnet{{Prefix: netip.MustParsePrefix("10.0.0.0/24")}}, ScriptURL: func(string) string { return "" }},
		dhcp.Deps{Inventory: inv, Book: lease.NewBook(lease.NewMemory(), lease.Options{Now: clock}), Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	send := func(m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
		t.Helper()
		m.GatewayIPAddr = []byte{10, 0, 0, 9}
		r, ok := s.Answer(t.Context(), m.ToBytes(), dhcp.Arrival{})
		if !ok {
			return nil
		}
		a, err := dhcpv4.FromBytes(r.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	discover := func() *dhcpv4.DHCPv4 {
		t.Helper()
		d, err := dhcpv4.NewDiscovery([]byte{0x52, 0x54, 0, 0, 0, 1})
		if err != nil {
			t.Fatal(err)
		}
		return send(d)
	}
	request := func(offer *dhcpv4.DHCPv4, change func(*dhcpv4.DHCPv4)) {
		t.Helper()
		q, err := dhcpv4.NewRequestFromOffer(offer)
		if err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(q)
		}
		if a := send(q); a == nil || a.MessageType() != dhcpv4.MessageTypeAck {
			t.Fatalf("REQUEST: %v", a)
		}
	}
	want := func(what string, n int) {
		t.Helper()
		if inv.asked != n {
			t.Fatalf("%s: the inventory was asked %d times, want %d", what, inv.asked, n)
		}
	}
	offer := discover()
	request(offer, nil)
	want("an exchange", 1)
	request(offer, nil)
	want("its REQUEST again", 2)

	offer = discover()
	request(offer, func(q *dhcpv4.DHCPv4) { q.TransactionID[0]++ })
	want("a REQUEST of another transaction", 4)

	offer = discover()
	now = now.Add(6 * time.Second)
	request(offer, nil)
	want("a late REQUEST", 6)

	offer = discover()
	now = now.Add(-time.Hour)
	request(offer, nil)
	want("a REQUEST after the clock was set back", 8)
}
