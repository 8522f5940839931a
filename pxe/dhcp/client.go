package dhcp

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Firmware is which kind of program sent the message.
type Firmware string

const (
	OS   Firmware = ""     // no boot firmware: an operating system or installer that wants an address
	PXE  Firmware = "pxe"  // vendor class PXEClient
	HTTP Firmware = "http" // vendor class HTTPClient: UEFI HTTP boot
	IPXE Firmware = "ipxe" // iPXE, whatever else it says
	// UBoot is U-Boot's own stack (vendor class U-Boot.armv8 and the like). It asks as PXEClient too, for what it can
	// run as UEFI does.
	UBoot Firmware = "u-boot"
)

// optIPXE is iPXE's encapsulated option: its features in a request, its settings in a reply.
const optIPXE = 175

// Client is who sent a message: which firmware, on which architecture.
type Client struct {
	Firmware Firmware
	Arch     Arch
	Class    string   // option 60
	UserOf   []string // option 77's classes
}

// isIPXE takes each of iPXE's signs as enough: FlexBoot has no user class, and some builds leave option 175 out. Who
// misses one of them hands iPXE its own binary again, for ever.
func isIPXE(p *Packet, classes []string) bool {
	if len(p.Options.Get(dhcpv4.GenericOptionCode(optIPXE))) > 0 {
		return true
	}
	for _, c := range classes {
		if c == "iPXE" {
			return true
		}
	}
	return false
}

// userClasses reads option 77 as RFC 3004 has it, length-prefixed, or else as the one raw string that iPXE sends.
func userClasses(v []byte) []string {
	if len(v) == 0 {
		return nil
	}
	var all []string
	for rest := v; len(rest) > 0; {
		n := int(rest[0])
		if n == 0 || len(rest) < 1+n {
			return []string{string(v)}
		}
		all = append(all, string(rest[1:1+n]))
		rest = rest[1+n:]
	}
	return all
}

func clientOf(p *Packet) Client {
	c := Client{Class: string(p.Options.Get(dhcpv4.OptionClassIdentifier)), UserOf: userClasses(p.Options.Get(dhcpv4.OptionUserClassInformation)), Arch: ArchUnknown}
	switch {
	case isIPXE(p, c.UserOf):
		c.Firmware = IPXE
	case strings.HasPrefix(c.Class, "HTTPClient"):
		c.Firmware = HTTP
	case strings.HasPrefix(c.Class, "PXEClient"):
		c.Firmware = PXE
	}
	c.Arch = archOf(p.Options.Get(dhcpv4.OptionClientSystemArchitectureType), c.Class)
	if c.Firmware == OS && strings.HasPrefix(c.Class, "U-Boot") {
		c.Firmware = UBoot
	}
	return c
}

// archOf takes the first architecture of option 93's list that has a first stage, else the one in the vendor class
// (PXEClient:Arch:00007:UNDI:003016), which some firmware sends alone.
func archOf(option []byte, class string) Arch {
	for ; len(option) >= 2; option = option[2:] {
		if a := Arch(binary.BigEndian.Uint16(option)); a.known() {
			return a
		}
	}
	if parts := strings.Split(class, ":"); len(parts) >= 3 && parts[1] == "Arch" {
		if n, err := strconv.ParseUint(parts[2], 10, 16); err == nil {
			return Arch(n)
		}
	}
	return ArchUnknown
}
