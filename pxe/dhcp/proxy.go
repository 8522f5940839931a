package dhcp

import (
	"github.com/insomniacslk/dhcp/dhcpv4"

	"gpupool/pxe/boot"
)

// proxy answers on port 67 beside another DHCP server: an offer without an address, to boot firmware only. What the
// client then requests is the other server's affair.
func (c *call) proxy() (Reply, bool) {
	if c.p.Type != dhcpv4.MessageTypeDiscover || c.boot.File == "" || c.looped() {
		return Reply{}, false
	}
	c.booted() // what comes of it is between the client and the other server
	c.note(boot.KindDiscover, "ok")
	d := c.bootOnly(dhcpv4.MessageTypeOffer)
	c.note(boot.KindOffer, "ok, without an address (proxy)")
	return d.reply(c.p, c.a), true
}

// pxe answers on port 4011, where firmware asks once it has an address: PXE 2.1 section 2.2.3. It is open in every
// mode, since firmware asks there too when another server's offer names this one.
func (c *call) pxe() (Reply, bool) {
	switch c.p.Type {
	case dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeInform, dhcpv4.MessageTypeDiscover:
	default:
		return Reply{}, false
	}
	if c.boot.File == "" {
		c.note(boot.KindProxy, "no first stage for "+c.p.Client.describe()+": not answered")
		return Reply{}, false
	}
	if c.looped() {
		return Reply{}, false
	}
	c.booted()
	if c.p.CIAddr.IsValid() {
		c.sightings.saw(c.p.CIAddr, c.p.MAC, c.now())
	}
	d := c.bootOnly(dhcpv4.MessageTypeAck)
	d.ciaddr = c.p.CIAddr
	c.noted(boot.KindProxy, c.p.CIAddr, "ok")
	return d.reply(c.p, c.a), true
}

// bootOnly is an answer that gives no address. EDK2 drops an offer without option 54.
func (c *call) bootOnly(t dhcpv4.MessageType) *draft {
	d := &draft{typ: t}
	d.head(c)
	d.boot(c)
	return d
}
