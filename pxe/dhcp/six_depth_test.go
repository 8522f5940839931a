package dhcp

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
)

// TestAMessageOfNothingButOptionsInOptionsIsNotRead: each of these is one packet that took up to 16 ms to read.
func TestAMessageOfNothingButOptionsInOptionsIsNotRead(t *testing.T) {
	t.Parallel()
	opt := func(code uint16, v []byte) []byte {
		b := binary.BigEndian.AppendUint16(nil, code)
		return append(binary.BigEndian.AppendUint16(b, uint16(len(v))), v...)
	}
	solicit := []byte{1, 0, 0, 1}
	within := func(code uint16, head, size int) []byte {
		var b []byte
		for len(b) < size {
			b = opt(code, append(make([]byte, head), b...))
		}
		return append(solicit[:4:4], b...)
	}
	many := func(code uint16, v []byte, n int) []byte {
		b := solicit[:4:4]
		for range n {
			b = append(b, opt(code, v)...)
		}
		return b
	}
	relayed := func(n int) []byte {
		b := solicit
		for range n {
			b = append(append([]byte{12, 0}, make([]byte, 32)...), opt(9, b)...)
		}
		return b
	}
	id := opt(1, []byte{0, 3, 0, 1, 0x52, 0x54, 0, 0, 0, 1})
	for name, c := range map[string]struct {
		in   []byte
		from string
		want Garbage
	}{
		"associations in associations":  {within(3, 12, 3000), "fe80::1", BadOptions},
		"addresses in addresses":        {within(5, 24, 3000), "fe80::1", BadOptions},
		"temporary ones":                {within(4, 4, 3000), "fe80::1", BadOptions},
		"prefixes":                      {within(25, 12, 3000), "fe80::1", BadOptions},
		"relays in relays":              {relayed(50), "2001:db8::1", TooManyHops},
		"nine relays":                   {relayed(9), "2001:db8::1", TooManyHops},
		"a thousand options":            {many(200, nil, 1000), "fe80::1", BadOptions},
		"more than any message has":     {many(200, make([]byte, 100), 50), "fe80::1", TooLong},
		"a header that ends in between": {[]byte{12, 0, 1}, "2001:db8::1", TooShort},
		"nine associations":             {append(many(3, make([]byte, 12), 9), id...), "fe80::1", BadValue},
		"from another network":          {append(many(3, make([]byte, 12), 1), id...), "2001:db8::1", NotOnLink},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := parse6(c.in, netip.MustParseAddr(c.from))
			var g Garbage
			if !errors.As(err, &g) || g != c.want {
				t.Fatalf("got %v, %v; want %s", p, err, c.want)
			}
		})
	}
	if _, err := parse6(append(many(3, make([]byte, 12), 8), id...), netip.MustParseAddr("fe80::1")); err != nil {
		t.Fatalf("eight associations of a client that is here: %v", err)
	}
}
