package dhcp

import (
	"bytes"
	"errors"
	"net"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// message is a well-formed DISCOVER to be spoilt.
func message(t testing.TB, mods ...dhcpv4.Modifier) []byte {
	t.Helper()
	m, err := dhcpv4.NewDiscovery(net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}, mods...)
	if err != nil {
		t.Fatal(err)
	}
	return m.ToBytes()
}

func TestGarbageIsDroppedByReason(t *testing.T) {
	t.Parallel()
	spoil := func(at int, v ...byte) []byte { b := message(t); copy(b[at:], v); return b }
	option := func(code uint8, v ...byte) []byte {
		return message(t, dhcpv4.WithGeneric(dhcpv4.GenericOptionCode(code), v))
	}
	for name, c := range map[string]struct {
		in   []byte
		want Garbage
	}{
		"nothing":                          {nil, TooShort},
		"a header without a cookie":        {message(t)[:238], TooShort},
		"a reply":                          {spoil(0, 2), NotRequest},
		"another cookie":                   {spoil(236, 1, 2, 3, 4), BadCookie},
		"no hardware address":              {spoil(2, 0), BadHardware},
		"a hardware address of 17 bytes":   {spoil(2, 17), BadHardware},
		"an Ethernet address of 8 bytes":   {spoil(2, 8), BadHardware},
		"a hardware address of zeros":      {spoil(28, 0, 0, 0, 0, 0, 0), BadHardware},
		"seventeen hops":                   {spoil(3, 17), TooManyHops},
		"an option past the end":           {append(message(t)[:240], 53, 200, 1), BadOptions},
		"no end":                           {message(t)[:243], BadOptions},
		"no message type":                  {append(message(t)[:240], 255), BadType},
		"a server's message type":          {option(53, 2), BadType},
		"a message type of two bytes":      {option(53, 1, 1), BadType},
		"a requested address of 3 bytes":   {option(50, 10, 0, 0), BadValue},
		"a server identifier of 8 bytes":   {option(54, 1, 2, 3, 4, 5, 6, 7, 8), BadValue},
		"an overload that does not exist":  {option(52, 4), BadValue},
		"a maximum size of one byte":       {option(57, 1), BadValue},
		"an identifier of 256 bytes":       {option(61, make([]byte, 256)...), BadValue},
		"a relay's 600 bytes":              {option(82, make([]byte, 600)...), BadValue},
		"an overloaded file that is noise": {func() []byte { b := option(52, 1); copy(b[108:], bytes.Repeat([]byte{7}, 128)); return b }(), BadOptions},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Parse(c.in)
			var g Garbage
			if !errors.As(err, &g) || g != c.want {
				t.Fatalf("got %v, %v; want %s", p, err, c.want)
			}
		})
	}
}

func TestOverloadedOptionsAreRead(t *testing.T) {
	t.Parallel()
	b := message(t, dhcpv4.WithGeneric(dhcpv4.OptionOptionOverload, []byte{3}))
	copy(b[108:], []byte{60, 9, 'P', 'X', 'E', 'C', 'l', 'i', 'e', 'n', 't', 255})
	copy(b[44:], []byte{77, 4, 'i', 'P', 'X', 'E', 93, 2, 0, 11, 255})
	p, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if p.Client.Firmware != IPXE || p.Client.Class != "PXEClient" || p.Client.Arch != EFIArm64 || p.BootFileName != "" || p.ServerHostName != "" {
		t.Fatalf("client %+v, file %q, sname %q", p.Client, p.BootFileName, p.ServerHostName)
	}
}

func TestLongOptionsAreJoinedAndSplit(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("0123456789"), 40)
	p, err := Parse(message(t, dhcpv4.WithGeneric(dhcpv4.OptionVendorSpecificInformation, long)))
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Options.Get(dhcpv4.OptionVendorSpecificInformation); !bytes.Equal(got, long) {
		t.Fatalf("%d bytes were read as %d", len(long), len(got))
	}
	d := &draft{typ: dhcpv4.MessageTypeAck}
	d.set(dhcpv4.OptionDHCPMessageType, []byte{5})
	d.set(dhcpv4.OptionVendorSpecificInformation, long)
	p.MaxSize = 1500
	m, err := dhcpv4.FromBytes(d.encode(p))
	if err != nil || !bytes.Equal(m.Options.Get(dhcpv4.OptionVendorSpecificInformation), long) {
		t.Fatalf("%v: %d bytes came back as %d", err, len(long), len(m.Options.Get(dhcpv4.OptionVendorSpecificInformation)))
	}
}

// TestAnAnswerIsWholeWhateverComesBackInIt: the longest identifier, all that relays may add, and the smallest size. What a
// relay takes off again leaves its client no less room.
func TestAnAnswerIsWholeWhateverComesBackInIt(t *testing.T) {
	t.Parallel()
	id, added := bytes.Repeat([]byte{7}, maxClientID), bytes.Repeat([]byte{1, 253}, 1)
	added = append(added, bytes.Repeat([]byte("x"), 253)...)
	added = append(added, added...)
	in := message(t, dhcpv4.WithGeneric(dhcpv4.OptionClientIdentifier, id), dhcpv4.WithGatewayIP(net.IPv4(10, 9, 0, 1)), dhcpv4.WithGeneric(dhcpv4.OptionRelayAgentInformation, added))
	p, err := Parse(in)
	if err != nil {
		t.Fatal(err)
	}
	d := &draft{typ: dhcpv4.MessageTypeOffer}
	for _, code := range []dhcpv4.OptionCode{dhcpv4.OptionDHCPMessageType, dhcpv4.OptionServerIdentifier, dhcpv4.OptionIPAddressLeaseTime, dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter} {
		d.set(code, []byte{2, 0, 0, 0}[:map[bool]int{true: 1, false: 4}[code == dhcpv4.OptionDHCPMessageType]])
	}
	b := d.encode(p)
	m, err := dhcpv4.FromBytes(b)
	if err != nil || len(m.Options) != 7 || !bytes.Equal(m.Options.Get(dhcpv4.OptionClientIdentifier), id) || !bytes.Contains(b, p.Relay.Raw) {
		t.Fatalf("%v: %d options in %d bytes", err, len(m.Options), len(b))
	}
	if own := len(b) - len(p.Relay.Raw); own > dhcpMin-ipUDPHeader {
		t.Errorf("the client gets %d bytes, and takes %d", own, dhcpMin-ipUDPHeader)
	}
}

func TestAReplyIsNeverLongerThanItsClientTakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ told, limit int }{
		"not told": {0, 548}, "less than the least there is": {68, 548}, "1152": {1152, 1124}, "more than Ethernet takes": {9000, 1472},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Parse(message(t, dhcpv4.WithGeneric(dhcpv4.OptionRelayAgentInformation, bytes.Repeat([]byte{1, 2, 'a', 'b'}, 20))))
			if err != nil {
				t.Fatal(err)
			}
			p.MaxSize = c.told
			d := &draft{typ: dhcpv4.MessageTypeOffer}
			d.set(dhcpv4.OptionDHCPMessageType, []byte{2})
			for code := uint8(100); code < 140; code++ {
				d.set(dhcpv4.GenericOptionCode(code), bytes.Repeat([]byte{code}, 60))
			}
			b := d.encode(p)
			m, err := dhcpv4.FromBytes(b)
			if err != nil || len(b) > c.limit || len(b) < c.limit-62 {
				t.Fatalf("%d bytes, %v; want close to and at most %d", len(b), err, c.limit)
			}
			if !bytes.HasSuffix(bytes.TrimRight(b, "\x00"), append(append([]byte{82, 80}, bytes.Repeat([]byte{1, 2, 'a', 'b'}, 20)...), 255)) {
				t.Fatal("option 82 is not last, or not whole")
			}
			if m.Options[100] == nil || m.Options[139] != nil {
				t.Fatal("the first options must stay and the last go")
			}
		})
	}
}
