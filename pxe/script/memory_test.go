package script_test

import (
	"context"
	"errors"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"gpupool/pxe/boot"
	"gpupool/pxe/pxetest"
	"gpupool/pxe/script"
	"gpupool/schema"
)

const mac = "52:54:00:00:00:01"

// profiles are two: "live" lives in memory, "image" does not.
type profiles struct{}

func (profiles) Plan(_ context.Context, m boot.Machine) (boot.Plan, error) {
	return boot.Plan{Kernel: m.Armed.Profile + "/vmlinuz", Args: "user_data={{base}}/user-data attempt={{attempt}}"}, nil
}

func (profiles) Document(ctx context.Context, r boot.DocumentRequest) (boot.Document, error) {
	token, err := r.PhoneHome(ctx)
	return boot.Document{Body: []byte(token), Secret: true}, err
}

func (profiles) InMemory(profile string) bool { return profile == "live" }

// exchange is the DHCP exchange of the one machine.
type exchange string

func (e *exchange) MACAt(_ context.Context, ip netip.Addr) (string, string, bool, error) {
	return mac, string(*e), ip == netip.MustParseAddr("10.1.0.7"), nil
}

// TestASystemInMemoryIsGivenAgainAndNoOtherIs: a server in the pool boots from the network. Where its system lives in memory it
// is given that, once for each exchange, with a token for its own documents; else it is handed to its disk.
func TestASystemInMemoryIsGivenAgainAndNoOtherIs(t *testing.T) {
	t.Parallel()
	for profile, again := range map[string]bool{"live": true, "image": false, "": false} {
		p, dhcp := pxetest.New(), exchange("1")
		m := boot.Machine{ID: "srv_1", Name: "r1s1", Phase: schema.PhaseAvailable, Protected: true}
		if profile != "" {
			m.Runs = &schema.Running{Server: "srv_1", Attempt: 4, Profile: profile}
		}
		p.Put(m, mac)
		s := script.New(script.Config{URL: "http://b"}, script.Deps{Inventory: p, Tokens: p, Installer: profiles{}, Locator: &dhcp})
		own, other := netip.MustParseAddr("10.1.0.7"), netip.MustParseAddr("10.1.0.8")
		text, err := s.Script(t.Context(), own, mac, script.IPXE)
		if err != nil {
			t.Fatal(err)
		}
		token := regexp.MustCompile(`http://b/b/([^/]+)/user-data attempt=4`).FindStringSubmatch(string(text))
		if (token != nil) != again || strings.Contains(string(text), "booting from disk") == again {
			t.Fatalf("profile %q: it is given %s", profile, text)
		}
		if !again {
			continue
		}
		if _, err := s.Script(t.Context(), own, mac, script.IPXE); !errors.Is(err, script.ErrRefused) {
			t.Errorf("the same exchange again: %v", err)
		}
		if _, err := s.Authorize(t.Context(), other, token[1], "user-data"); !errors.Is(err, script.ErrRefused) {
			t.Errorf("its token from a neighbour: %v", err)
		}
		h, err := s.Authorize(t.Context(), own, token[1], "user-data")
		if err != nil {
			t.Fatal(err)
		}
		d, err := s.Document(t.Context(), own, h, "user-data")
		if err != nil {
			t.Fatal(err)
		}
		if g, err := p.Check(t.Context(), string(d.Body)); err != nil || g.Purpose != schema.PurposePhoneHome || g.Attempt != 4 {
			t.Errorf("its phone-home token stands for %+v, %v", g, err)
		}
		dhcp = "2"
		if _, err := s.Script(t.Context(), own, mac, script.IPXE); err != nil {
			t.Errorf("the next boot: %v", err)
		}
		m.Runs = nil // the next attempt has begun, or it left the pool
		p.Put(m, mac)
		if _, err := s.Authorize(t.Context(), own, token[1], "user-data"); !errors.Is(err, script.ErrRefused) {
			t.Errorf("its token once it runs nothing: %v", err)
		}
	}
}
