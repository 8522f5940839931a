package tftp

import (
	"strings"
	"testing"
	"time"
)

func TestBlocksFitThePath(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ask  string
		mtu  int
		want int
	}{{"1468", 1500, 1468}, {"1469", 1500, 1468}, {"65464", 1500, 1468}, {"8192", 9000, 8192}, {"65464", 65536, 65464}, {"1428", 576, 544}, {"1468", 400, 512}} {
		if got := agree([]pair{{"blksize", c.ask}}, c.mtu, 1, time.Second); got.block != c.want {
			t.Errorf("blksize %s at MTU %d is %d, want %d", c.ask, c.mtu, got.block, c.want)
		}
	}
}

// FuzzRequest: whatever comes in is parsed or refused without a panic; a clean name stays inside; the options agreed
// are within their bounds and only what was asked for.
func FuzzRequest(f *testing.F) {
	for _, s := range []string{"\x00\x01snponly.efi\x00octet\x00tsize\x000\x00blksize\x001468\x00", "\x00\x02x\x00netascii\x00", `` + "\x00\x01..\\..\\etc\\passwd\x00octet\x00", "\x00\x01/\x00\x00windowsize\x0064\x00timeout\x00255\x00", "\x00\x01"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRequest(b)
		if err != nil {
			return
		}
		if name, err := clean(r.name); err == nil {
			if name == "" || strings.HasPrefix(name, "/") || strings.Contains("/"+name+"/", "/../") || strings.ContainsAny(name, "\\\x00\n") {
				t.Fatalf("%q became %q", r.name, name)
			}
		}
		a := agree(r.options, 1500, 12345, time.Second)
		if a.block < minBlock || a.block > 1468 || a.window < 1 || a.window > maxWindow || a.timeout < time.Second || a.timeout > 255*time.Second {
			t.Fatalf("agreed %+v", a)
		}
		if len(a.oack) > len(b)+64 || len(r.options) == 0 && a.oack != nil {
			t.Fatalf("acknowledged %q to %q", a.oack, b)
		}
	})
}
