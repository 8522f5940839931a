package dhcp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"regexp"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// What an OFFER, an ACK, a NAK carry, in the order of weight that draft keeps.

// head is what every answer carries.
func (d *draft) head(c *call) {
	id := c.cfg.ServerID
	if c.p.Relay.Override.IsValid() {
		id = c.p.Relay.Override
	}
	d.set(dhcpv4.OptionDHCPMessageType, []byte{byte(d.typ)})
	d.addrs(dhcpv4.OptionServerIdentifier, id)
}

// lease is an OFFER or ACK of ip.
func (c *call) lease(t dhcpv4.MessageType, ip netip.Addr) *draft {
	d := &draft{typ: t, yiaddr: ip}
	n := c.length()
	d.head(c)
	d.seconds(dhcpv4.OptionIPAddressLeaseTime, n)
	d.network(c)
	d.boot(c)
	d.seconds(dhcpv4.OptionRenewTimeValue, n/2)
	d.seconds(dhcpv4.OptionRebindingTimeValue, n*7/8)
	if hostName.MatchString(c.m.Name) && c.wanted(dhcpv4.OptionHostName) {
		d.text(dhcpv4.OptionHostName, c.m.Name)
	}
	return d
}

var hostName = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)

// wanted reports whether the client asks for an option, or doesn't say what it asks for.
func (c *call) wanted(o dhcpv4.OptionCode) bool {
	list := c.p.Options.Get(dhcpv4.OptionParameterRequestList)
	if list == nil {
		return true
	}
	for _, code := range list {
		if code == o.Code() {
			return true
		}
	}
	return false
}

func (d *draft) network(c *call) {
	n := c.subnet
	d.set(dhcpv4.OptionSubnetMask, net.CIDRMask(n.Prefix.Bits(), 32))
	d.addrs(dhcpv4.OptionRouter, n.Routers...)
	// A URL with a name needs it, and the list of what UEFI HTTP boot asks for has it anyway.
	if c.wanted(dhcpv4.OptionDomainNameServer) {
		d.addrs(dhcpv4.OptionDomainNameServer, n.DNS...)
	}
	if c.wanted(dhcpv4.OptionDomainName) {
		d.text(dhcpv4.OptionDomainName, n.Domain)
	}
	if c.wanted(dhcpv4.OptionNTPServers) {
		d.addrs(dhcpv4.OptionNTPServers, n.NTP...)
	}
	if n.MTU != 0 && c.wanted(dhcpv4.OptionInterfaceMTU) {
		d.set(dhcpv4.OptionInterfaceMTU, binary.BigEndian.AppendUint16(nil, n.MTU))
	}
}

// PXE 2.1, table 2-2: option 43, sub-option 6 (discovery control) with bit 3: no discovery, boot the file named
// here. Without it EDK2 takes the answer for BINL and asks port 4011 instead.
var bootFromHere = []byte{6, 1, 8, 255}

// noProxyDHCP is iPXE's encapsulated option 175.176: don't wait 2 s for a proxy's offer. keepSAN (175.8) leaves a
// disk hooked by sanboot in place, so that handing over to the disk works. priority (175.1) puts a proxy's answer before
// that of the server that gives the address, which may name a boot file of its own: iPXE else goes by that one.
var (
	priority    = []byte{1, 1, 1}
	noProxyDHCP = []byte{176, 1, 1}
	keepSAN     = []byte{8, 1, 1}
)

// boot says what to boot, in each of the ways that some firmware alone understands: option 67 and the header's file
// (U-Boot reads only the header, EDK2 prefers the option), siaddr and option 66.
func (d *draft) boot(c *call) {
	cl := c.p.Client
	if c.boot.File == "" {
		return
	}
	d.text(dhcpv4.OptionBootfileName, c.boot.File)
	d.siaddr = c.cfg.ServerID
	if len(c.boot.File) < 128 {
		d.file = c.boot.File
	}
	switch cl.Firmware {
	case HTTP:
		d.text(dhcpv4.OptionClassIdentifier, "HTTPClient")
	case PXE:
		d.text(dhcpv4.OptionClassIdentifier, "PXEClient")
		d.set(dhcpv4.OptionVendorSpecificInformation, bootFromHere)
	case IPXE:
		if c.cfg.Mode != ModeProxy {
			d.set(dhcpv4.GenericOptionCode(optIPXE), append(append([]byte{}, noProxyDHCP...), keepSAN...))
		} else {
			d.text(dhcpv4.OptionClassIdentifier, "PXEClient")
			d.set(dhcpv4.OptionVendorSpecificInformation, bootFromHere)
			d.set(dhcpv4.GenericOptionCode(optIPXE), append(append([]byte{}, priority...), keepSAN...))
		}
	case OS, UBoot:
	}
	d.text(dhcpv4.OptionTFTPServerName, c.cfg.ServerID.String())
	// PXE 2.1 section 2.4.2: the client compares the identifier it sent. It may be missing, or empty.
	if id := c.p.Options.Get(dhcpv4.OptionClientMachineIdentifier); len(id) > 0 {
		d.set(dhcpv4.OptionClientMachineIdentifier, id)
	}
}
