package agentproto

import (
	"bytes"
	"crypto/ed25519"
	"testing"
	"time"
)

// FuzzAuthorization: no header but one that was signed for this request is good.
func FuzzAuthorization(f *testing.F) {
	now := time.UnixMilli(1_700_000_000_000)
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	body := []byte("{}")
	good := Sign(key, "srv_1", "POST", PathReport, body, now)
	f.Add(good)
	f.Add("Agent srv_1:1700000000000:AAAA")
	f.Add("Agent :9223372036854775807:")
	f.Fuzz(func(t *testing.T, header string) {
		server, at, sig, err := Parse(header)
		if err != nil {
			return
		}
		if Verify(key.Public().(ed25519.PublicKey), server, "POST", PathReport, body, at, sig, now) != nil {
			return
		}
		// Ed25519's signatures are deterministic (RFC 8032): there is one for each request.
		_, _, want, err := Parse(Sign(key, server, "POST", PathReport, body, at))
		if err != nil || !bytes.Equal(sig, want) {
			t.Errorf("%q is taken", header)
		}
	})
}
