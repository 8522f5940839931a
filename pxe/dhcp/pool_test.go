package dhcp

import (
	"net/netip"
	"testing"
	"time"
)

// TestThisMachinesOwnAddressesAreNotGiven: not only its server identifier, but whatever its interfaces have.
func TestThisMachinesOwnAddressesAreNotGiven(t *testing.T) {
	t.Parallel()
	own := netip.MustParseAddr("10.0.0.9")
	l := links{at: time.Now().Add(time.Hour), own: []netip.Addr{own, netip.MustParseAddr("192.0.2.1")}}
	c := Config{ServerID: netip.MustParseAddr("10.0.0.2"), ScriptURL: func(string) string { return "" }, Subnets: []Subnet{{Prefix: netip.MustParsePrefix("10.0.0.0/24")}}}
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	p := c.pool(c.Subnets[0], l.within(c.Subnets[0].Prefix)...)
	for a, want := range map[string]bool{"10.0.0.9": false, "10.0.0.2": false, "10.0.0.0": false, "10.0.0.255": false, "10.0.0.8": true, "192.0.2.1": false} {
		if got := p.Contains(netip.MustParseAddr(a)); got != want {
			t.Errorf("%s can be given: %v, want %v", a, got, want)
		}
	}
}
