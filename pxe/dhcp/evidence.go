package dhcp

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"gpupool/pxe/boot"
	"gpupool/schema"
)

// note records what came of the packet being answered.
func (c *call) note(kind, result string) { c.noted(kind, netip.Addr{}, result) }

func (c *call) noted(kind string, ip netip.Addr, result string) {
	e := schema.BootEvidence{Kind: kind, MAC: c.p.MAC, IP: text(ip), Server: c.m.ID, Result: result}
	if c.m.Armed != nil {
		e.Attempt = c.m.Armed.Attempt
	}
	switch kind {
	case boot.KindDiscover:
		e.What = c.p.Client.describe()
		if cpu := c.p.Client.Arch.cpu(); cpu != "" && c.m.Arch != "" && cpu != c.m.Arch {
			e.What += ", where the inventory says " + c.m.Arch
		}
	case boot.KindOffer, boot.KindAck, boot.KindProxy, boot.KindLoop:
		if e.What = c.boot.File; c.boot.Why != "" {
			e.What = "nothing to boot: " + c.boot.Why
		}
	}
	c.Metrics.answered(kind)
	c.record(e)
}

func (cl Client) describe() string {
	if cl.Firmware == OS {
		return "operating system"
	}
	return string(cl.Firmware) + ", " + cl.Arch.String()
}

// stranger is describe with the class that an unknown machine gives itself where it doesn't boot: it tells a BMC from others.
func (cl Client) stranger() string {
	if cl.Firmware != OS || cl.Class == "" {
		return cl.describe()
	}
	return fmt.Sprintf("%s, class %q", cl.describe(), cl.Class)
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func kindOf(t dhcpv4.MessageType) string {
	switch t {
	case dhcpv4.MessageTypeDiscover:
		return boot.KindDiscover
	case dhcpv4.MessageTypeDecline:
		return boot.KindDecline
	case dhcpv4.MessageTypeRelease:
		return boot.KindRelease
	case dhcpv4.MessageTypeInform:
		return boot.KindInform
	}
	return boot.KindRequest
}

// sightings remembers who asked port 4011 from which address: in proxy mode the only record of it that is here.
type sightings struct {
	mu   sync.Mutex
	byIP map[netip.Addr]sighting
}

type sighting struct {
	mac string
	at  time.Time
}

const sightingHold = 30 * time.Minute

func (s *sightings) saw(ip netip.Addr, mac string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a, o := range s.byIP {
		if now.Sub(o.at) > sightingHold {
			delete(s.byIP, a)
		}
	}
	s.byIP[ip] = sighting{mac, now}
}

func (s *sightings) at(ip netip.Addr, now time.Time) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.byIP[ip]
	return o.mac, ok && now.Sub(o.at) <= sightingHold
}
