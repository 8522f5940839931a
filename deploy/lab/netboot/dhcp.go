package netboot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
)

// Program is which program of a boot asks for an address.
type Program string

const (
	Firmware Program = "firmware" // PXE
	HTTPBoot Program = "http"     // UEFI HTTP boot
	IPXE     Program = "ipxe"
)

// Client is a network card that boots.
type Client struct {
	Relay *Relay
	MAC   net.HardwareAddr
	UUID  [16]byte // SMBIOS; sent as option 97
	Arch  string   // x86_64, arm64
	BIOS  bool     // legacy boot, x86_64 only
	Port  string   // where it is plugged in; the relay tells
	// Unit is the first wait for an answer; each of the four is twice as long as the one before. Firmware waits
	// 4, 8, 16 and 32 s.
	Unit time.Duration
}

// Lease is what a client was given.
type Lease struct {
	Addr   netip.Addr
	File   string     // option 67, else the header's file
	Server netip.Addr // siaddr, else option 54: where TFTP is
	MTU    int
}

// ErrNoAnswer says that nobody answered a client's broadcasts.
var ErrNoAnswer = errors.New("no DHCP answer")

const tries = 4

// Lease asks for an address: DISCOVER, OFFER, REQUEST, ACK (RFC 2131 section 3.1).
func (c *Client) Lease(ctx context.Context, p Program) (Lease, error) {
	offer, err := c.exchange(ctx, dhcpv4.MessageTypeOffer, func() (*dhcpv4.DHCPv4, error) {
		return dhcpv4.NewDiscovery(c.MAC, c.options(p)...)
	})
	if err != nil {
		return Lease{}, fmt.Errorf("DISCOVER: %w", err)
	}
	if offer.ServerIdentifier() == nil {
		return Lease{}, errors.New("the OFFER carries no server identifier (option 54): firmware drops it")
	}
	ack, err := c.exchange(ctx, dhcpv4.MessageTypeAck, func() (*dhcpv4.DHCPv4, error) {
		return dhcpv4.NewRequestFromOffer(offer, c.options(p)...)
	})
	if err != nil {
		return Lease{}, fmt.Errorf("REQUEST of %s: %w", offer.YourIPAddr, err)
	}
	return lease(ack)
}

func lease(ack *dhcpv4.DHCPv4) (Lease, error) {
	l := Lease{File: strings.TrimRight(ack.BootFileNameOption(), "\x00")}
	if l.File == "" {
		l.File = ack.BootFileName
	}
	var ok bool
	if l.Addr, ok = netip.AddrFromSlice(ack.YourIPAddr.To4()); !ok || l.Addr.IsUnspecified() {
		return l, fmt.Errorf("the ACK gives the address %v", ack.YourIPAddr)
	}
	server := ack.ServerIPAddr.To4()
	if server == nil || server.IsUnspecified() {
		server = ack.ServerIdentifier().To4()
	}
	l.Server, _ = netip.AddrFromSlice(server)
	return l, nil
}

// exchange sends what make makes until the wanted answer comes. A NAK ends it: the client must begin anew.
func (c *Client) exchange(ctx context.Context, want dhcpv4.MessageType, make func() (*dhcpv4.DHCPv4, error)) (*dhcpv4.DHCPv4, error) {
	m, err := make()
	if err != nil {
		return nil, err
	}
	answers, free := c.Relay.open(m.TransactionID)
	defer free()
	began := time.Now()
	wait := c.Unit
	for range tries {
		m.NumSeconds = uint16(min(time.Since(began)/time.Second, 0xffff))
		m.HopCount = 0
		if err := c.Relay.forward(ctx, m, c.Port); err != nil {
			return nil, err
		}
		timer := time.NewTimer(wait)
		for waiting := true; waiting; {
			select {
			case a := <-answers:
				switch {
				case !bytes.Equal(a.ClientHWAddr, c.MAC):
				case a.MessageType() == want:
					timer.Stop()
					return a, nil
				case a.MessageType() == dhcpv4.MessageTypeNak:
					timer.Stop()
					return nil, fmt.Errorf("NAK: %s", a.Message())
				}
			case <-timer.C:
				waiting = false
			case <-ctx.Done():
				timer.Stop()
				return nil, ctx.Err()
			}
		}
		wait *= 2
	}
	return nil, fmt.Errorf("%w in %d tries", ErrNoAnswer, tries)
}

// options are those that the program sends, as firmware and iPXE do.
func (c *Client) options(p Program) []dhcpv4.Modifier {
	class, arch := "PXEClient", iana.EFI_X86_64
	switch {
	case c.Arch == "arm64" && p == HTTPBoot:
		arch = iana.EFI_ARM64_HTTP
	case c.Arch == "arm64":
		arch = iana.EFI_ARM64
	case p == HTTPBoot:
		arch = iana.EFI_X86_64_HTTP
	case c.BIOS:
		arch = iana.INTEL_X86PC
	}
	if p == HTTPBoot {
		class = "HTTPClient"
	}
	m := []dhcpv4.Modifier{
		dhcpv4.WithBroadcast(true),
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier(fmt.Sprintf("%s:Arch:%05d:UNDI:003016", class, uint16(arch)))),
		dhcpv4.WithOption(dhcpv4.OptClientArch(arch)),
		dhcpv4.WithGeneric(dhcpv4.OptionClientNetworkInterfaceIdentifier, []byte{1, 3, 16}),
		dhcpv4.WithGeneric(dhcpv4.OptionClientMachineIdentifier, append([]byte{0}, c.UUID[:]...)),
		dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(1472)),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer, dhcpv4.OptionTFTPServerName, dhcpv4.OptionBootfileName),
	}
	if p == IPXE {
		// Encapsulated options (175): feature HTTP (0x13), feature TFTP (0x12), version 1.21.1 (0xeb).
		m = append(m, dhcpv4.WithUserClass("iPXE", false), dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(175), []byte{0x13, 1, 1, 0x12, 1, 1, 0xeb, 3, 1, 21, 1}))
	}
	return m
}

// ParseUUID reads a text UUID as SMBIOS stores it: the first three fields little-endian (SMBIOS 2.6, section 7.2.1).
func ParseUUID(s string) (u [16]byte) {
	var b []byte
	for _, c := range strings.ToLower(s) {
		switch {
		case c >= '0' && c <= '9':
			b = append(b, byte(c-'0'))
		case c >= 'a' && c <= 'f':
			b = append(b, byte(c-'a')+10)
		}
	}
	if len(b) != 32 {
		return u
	}
	for i := range u {
		u[i] = b[2*i]<<4 | b[2*i+1]
	}
	binary.LittleEndian.PutUint32(u[0:], binary.BigEndian.Uint32(u[0:]))
	binary.LittleEndian.PutUint16(u[4:], binary.BigEndian.Uint16(u[4:]))
	binary.LittleEndian.PutUint16(u[6:], binary.BigEndian.Uint16(u[6:]))
	return u
}
