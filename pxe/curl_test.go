package pxe_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"gpupool/pxe"
)

// TestForeignClientsFetch has curl and tftp-hpa fetch by HTTP and TFTP over IPv4 and IPv6; the ones that need a network
// of their own are in realclients.
func TestForeignClientsFetch(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.24", func(c *pxe.Config) {
		c.HTTP = "[::]:0"
		c.IPv6 = pxe.IPv6{Address: "::1", DHCP: pxe.Off, TFTP: "[::1]:0", Subnets: []pxe.Subnet6{{CIDR: "2001:db8::/64"}}}
	})
	want := make([]byte, 1<<20+13)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(want)
	if err := os.WriteFile(filepath.Join(s.root, "big"), want, 0o600); err != nil {
		t.Fatal(err)
	}
	at := s.Addrs()
	http4, http6 := fmt.Sprintf("http://127.0.0.1:%d/files/big", at.HTTP.Port()), fmt.Sprintf("http://[::1]:%d/files/big", at.HTTP.Port())
	for name, args := range map[string][]string{
		"HTTP":                    {"curl", "-sf", "-o", "f", http4},
		"HTTP, IPv6":              {"curl", "-sf", "-o", "f", http6},
		"HTTP, resumed":           {"sh", "-c", "curl -sf -r 0-99999 -o f " + http4 + " && curl -sf -C - -o f " + http4},
		"TFTP":                    {"curl", "-sf", "-o", "f", "tftp://" + at.TFTP.String() + "/big"},
		"TFTP, 1468":              {"curl", "-sf", "--tftp-blksize", "1468", "-o", "f", "tftp://" + at.TFTP.String() + "/big"},
		"TFTP without options":    {"curl", "-sf", "--tftp-no-options", "-o", "f", "tftp://" + at.TFTP.String() + "/big"},
		"TFTP, IPv6":              {"curl", "-sf", "-o", "f", "tftp://" + at.TFTP6.String() + "/big"},
		"TFTP by tftp-hpa":        {"tftp", "-m", "binary", "127.0.0.1", fmt.Sprint(at.TFTP.Port()), "-c", "get", "big", "f"},
		"TFTP by tftp-hpa, slash": {"tftp", "-m", "binary", "127.0.0.1", fmt.Sprint(at.TFTP.Port()), "-c", "get", "//big", "f"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := args[0]
			if program == "sh" {
				program = "curl"
			}
			if _, err := exec.LookPath(program); err != nil {
				t.Skipf("%s is not installed", program)
			}
			c := exec.CommandContext(t.Context(), args[0], args[1:]...)
			c.Dir = t.TempDir()
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v %s", args, err, out)
			}
			got, err := os.ReadFile(filepath.Join(c.Dir, "f"))
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%v: %d bytes of %d, or others: %v", args, len(got), len(want), err)
			}
		})
	}
}
