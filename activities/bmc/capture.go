package bmc

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
)

// CaptureConfig bounds a capture.
type CaptureConfig struct {
	// Most is how many resources are read; 0 is 8000. The largest tree captured so far has 5,100.
	Most int
	// Entries is how many members of a log are kept; 0 is 20.
	Entries int
}

// Captured says what a capture has, and what it could not read.
type Captured struct {
	Resources int               `json:"resources"`
	Failed    map[string]string `json:"failed,omitempty"` // URI -> why
	Truncated bool              `json:"truncated"`        // Most was reached
}

// Capture reads everything that a BMC links to into dir, in the layout of the DMTF's mockups (one index.json a resource),
// for a bug report: the lab serves such a folder as a BMC. What tells who owns it is replaced: serials, UUIDs, MAC and IP
// addresses, user and host names, each by one stand-in wherever it appears, so that references stay right. Bodies that are
// no JSON are left out and named. It only reads.
func (c *Client) Capture(ctx context.Context, dir string, cfg CaptureConfig) (out Captured, err error) {
	defer c.conn.named("capture", &err)
	if cfg.Most <= 0 {
		cfg.Most = 8000
	}
	if cfg.Entries <= 0 {
		cfg.Entries = 20
	}
	ctx = inBulk(ctx)
	red, err := newRedactor()
	if err != nil {
		return out, err
	}
	out.Failed = map[string]string{}
	seen := map[string]bool{"/redfish/v1": true}
	docs := map[string]any{}
	for queue := []string{"/redfish/v1"}; len(queue) > 0; {
		uri := queue[0]
		queue = queue[1:]
		if len(docs) >= cfg.Most {
			out.Truncated = true
			break
		}
		a, err := c.conn.do(ctx, http.MethodGet, uri, nil, nil)
		if err != nil {
			if ctx.Err() != nil || isKind(err, ErrCredential) || isKind(err, ErrUntrusted) {
				return out, err
			}
			out.Failed[uri] = err.Error()
			continue
		}
		var body any
		if a.status != http.StatusOK || json.Unmarshal(a.body, &body) != nil {
			out.Failed[uri] = fmt.Sprintf("%d, %d bytes that are no resource", a.status, len(a.body))
			continue
		}
		if m, ok := body.(map[string]any); ok && strings.HasSuffix(uri, "/Entries") {
			if list, ok := m["Members"].([]any); ok && len(list) > cfg.Entries {
				m["Members"] = list[:cfg.Entries]
				m["Members@odata.count"] = cfg.Entries
				delete(m, "Members@odata.nextLink")
			}
		}
		red.learn(body)
		docs[uri] = body
		for _, next := range refs(body) {
			if n := normalURI(next); strings.HasPrefix(n, "/redfish/v1") && !seen[n] && !strings.HasPrefix(n, "/redfish/v1/SessionService/Sessions/") {
				seen[n] = true
				queue = append(queue, n)
			}
		}
	}
	for uri, body := range docs {
		b, err := json.MarshalIndent(red.redact(body), "", "  ")
		if err != nil {
			return out, fmt.Errorf("capture %s: %w", uri, err)
		}
		// A path can hold what is replaced in bodies (bmcweb names accounts by user).
		path := filepath.Join(dir, filepath.FromSlash(red.text(uri)))
		if err := os.MkdirAll(path, 0o755); err != nil {
			return out, fmt.Errorf("capture: %w", err)
		}
		if err := os.WriteFile(filepath.Join(path, "index.json"), b, 0o644); err != nil {
			return out, fmt.Errorf("capture: %w", err)
		}
		out.Resources++
	}
	return out, nil
}

// refs lists the links of decoded JSON.
func refs(v any) []string {
	var out []string
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				if s, ok := x.(string); ok && (k == "@odata.id" || k == "@Redfish.ActionInfo" || strings.HasSuffix(k, "@odata.nextLink")) {
					out = append(out, strings.SplitN(s, "#", 2)[0])
					continue
				}
				walk(x)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(v)
	sort.Strings(out)
	return out
}

// redactor replaces what identifies. The stand-ins are keyed by a random key that is thrown away, so that a short serial
// can't be found by trying.
type redactor struct {
	key   []byte
	known map[string]string
	made  map[string]bool   // stand-ins, which aren't replaced again
	all   *strings.Replacer // of known values inside other texts; nil after a value was learned
}

func newRedactor() (*redactor, error) {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return &redactor{key: key, known: map[string]string{}, made: map[string]bool{}}, nil
}

// identifying are the properties whose values are replaced everywhere.
var identifying = regexp.MustCompile(`(?i)^(.*serialnumber|uuid|.*guid|macaddress|permanentmacaddress|hostname|fqdn|username|assettag|durablename|chassisservicetag|servicetag|nodeid|.*servicetag|emailaddress|contact.*|user)$`)

// dropped are properties whose values say nothing about firmware and may hold secrets.
var dropped = regexp.MustCompile(`(?i)(password|passphrase|secret|token|privatekey|authenticationkey|encryptionkey|certificatestring|^destination$|sshkey|publickey|snmp.*community|communitystring)`)

var (
	macText = regexp.MustCompile(`(?i)\b([0-9a-f]{2}[:-]){5}[0-9a-f]{2}\b`)
	ipText  = regexp.MustCompile(`\b(\d{1,3}\.){3}\d{1,3}\b`)
	ip6Text = regexp.MustCompile(`(?i)\b[0-9a-f]{1,4}(:[0-9a-f]{0,4}){3,7}\b`)
	uuidRE  = regexp.MustCompile(`(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	barMAC  = regexp.MustCompile(`(?i)MAC\(([0-9a-f]{12})`)
)

// standIn is the replacement of a value, the same each time.
func (r *redactor) standIn(kind, value string) string {
	if r.made[value] {
		return value
	}
	s := r.make(kind, value)
	r.made[s] = true
	return s
}

func (r *redactor) make(kind, value string) string {
	m := hmac.New(sha256.New, r.key)
	m.Write([]byte(strings.ToLower(value)))
	h := hex.EncodeToString(m.Sum(nil))
	switch kind {
	case "mac":
		return fmt.Sprintf("02:%s:%s:%s:%s:%s", h[0:2], h[2:4], h[4:6], h[6:8], h[8:10])
	case "uuid":
		return fmt.Sprintf("%s-%s-4%s-8%s-%s", h[0:8], h[8:12], h[13:16], h[17:20], h[20:32])
	case "ip":
		return fmt.Sprintf("192.0.2.%d", 1+m.Sum(nil)[0]%254) // RFC 5737
	}
	return "R" + strings.ToUpper(h[:12])
}

// learn remembers the identifying values of a resource.
func (r *redactor) learn(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			s, ok := x.(string)
			if !ok {
				r.learn(x)
				continue
			}
			s = strings.TrimSpace(s)
			plain := len(s) < 4 || s == "root" || s == "admin" || s == "Administrator" || strings.HasPrefix(s, "/redfish/")
			if plain || !identifying.MatchString(k) || r.known[s] != "" || placeholder(s) {
				continue
			}
			kind := "text"
			switch {
			case macText.MatchString(s):
				kind = "mac"
			case uuidRE.MatchString(s):
				kind = "uuid"
			case ipText.MatchString(s):
				kind = "ip"
			}
			r.known[s] = r.standIn(kind, s)
			r.all = nil
		}
	case []any:
		for _, x := range v {
			r.learn(x)
		}
	}
}

func placeholder(s string) bool {
	return (&resource{body: map[string]any{"x": s}}).word("x") == ""
}

// redact returns a copy with everything identifying replaced.
func (r *redactor) redact(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			if s, ok := x.(string); ok && s != "" && dropped.MatchString(k) {
				out[k] = nil
				continue
			}
			if s, ok := x.(string); ok && strings.Contains(strings.ToLower(k), "version") {
				out[k] = r.values(s) // 7.10.30.00 is no address
				continue
			}
			out[k] = r.redact(x)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = r.redact(x)
		}
		return out
	case string:
		return r.text(v)
	}
	return v
}

// values replaces known values, alone or inside a text.
func (r *redactor) values(s string) string {
	if to := r.known[strings.TrimSpace(s)]; to != "" {
		return to
	}
	if r.all == nil {
		var long []string
		for k := range r.known {
			if len(k) >= 6 { // shorter ones occur inside innocent words
				long = append(long, k)
			}
		}
		sort.Slice(long, func(i, j int) bool {
			return len(long[i]) > len(long[j]) || len(long[i]) == len(long[j]) && long[i] < long[j]
		})
		var pairs []string
		for _, k := range long {
			pairs = append(pairs, k, r.known[k])
		}
		r.all = strings.NewReplacer(pairs...)
	}
	return r.all.Replace(s)
}

// text replaces known values, and what has the shape of an address.
func (r *redactor) text(s string) string {
	s = r.values(s)
	s = uuidRE.ReplaceAllStringFunc(s, func(x string) string { return r.standIn("uuid", x) })
	s = macText.ReplaceAllStringFunc(s, func(x string) string { return r.standIn("mac", x) })
	s = barMAC.ReplaceAllStringFunc(s, func(x string) string {
		m := x[len("MAC("):]
		colons := m[0:2] + ":" + m[2:4] + ":" + m[4:6] + ":" + m[6:8] + ":" + m[8:10] + ":" + m[10:12]
		to := r.known[colons]
		if to == "" {
			to = r.known[strings.ToLower(colons)]
		}
		if to == "" {
			to = r.standIn("mac", colons)
		}
		return "MAC(" + strings.ToUpper(strings.ReplaceAll(to, ":", ""))
	})
	s = ipText.ReplaceAllStringFunc(s, func(x string) string {
		a, err := netip.ParseAddr(x)
		if err != nil || a.IsUnspecified() || a.IsLoopback() || strings.HasPrefix(x, "255.") {
			return x
		}
		return r.standIn("ip", x)
	})
	return ip6Text.ReplaceAllStringFunc(s, func(x string) string {
		a, err := netip.ParseAddr(x)
		if err != nil || a.IsUnspecified() || a.IsLoopback() || r.made[x] {
			return x
		}
		return "2001:db8::" + r.standIn("text", x)[1:5] // RFC 3849
	})
}
