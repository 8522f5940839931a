package bmc

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sort"
	"strings"
	"sync"
	"time"
	"unicode"

	"gpupool/schema"
)

// Found is what answers at an address of a probed range. Nothing was logged in to: it is what the service root tells
// everyone (DSP0266 13.3.1).
type Found struct {
	Address string `json:"address"` // https://10.0.0.7
	Vendor  string `json:"vendor,omitempty"`
	Product string `json:"product,omitempty"`
	UUID    string `json:"uuid,omitempty"` // of the service; on many BMCs the server's own
	Redfish string `json:"redfish"`        // version of the protocol
	TLSPin  string `json:"tls_pin,omitempty"`
}

// ProbeConfig is how a range is probed.
type ProbeConfig struct {
	Port     int           // 0 is 443
	HTTP     bool          // plain http, for labs
	Parallel int           // 0 is 64
	Timeout  time.Duration // for each address; 0 is 3 s
}

// Probe asks every address of a prefix for a Redfish service root and lists those that have one. It logs in nowhere, sends
// no credential, and asks each address once.
func Probe(ctx context.Context, prefix netip.Prefix, cfg ProbeConfig) ([]Found, error) {
	prefix = prefix.Masked()
	if bits := prefix.Addr().BitLen() - prefix.Bits(); bits > schema.MostProbed {
		return nil, schema.Invalid("range", prefix.String(), fmt.Sprintf("at most %d addresses: probe it in parts", 1<<schema.MostProbed))
	}
	if cfg.Port == 0 {
		cfg.Port = 443
	}
	if cfg.Parallel <= 0 {
		cfg.Parallel = 64
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 3 * time.Second
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		out  []Found
		slot = make(chan struct{}, cfg.Parallel)
	)
	for a := prefix.Addr(); prefix.Contains(a); a = a.Next() {
		select {
		case slot <- struct{}{}:
		case <-ctx.Done():
			wg.Wait()
			return nil, context.Cause(ctx)
		}
		wg.Go(func() {
			defer func() { <-slot }()
			if f, ok := probeOne(ctx, a, cfg); ok {
				mu.Lock()
				out = append(out, f)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	sort.Slice(out, func(i, j int) bool { return natural(out[i].Address) < natural(out[j].Address) })
	return out, nil
}

func probeOne(ctx context.Context, addr netip.Addr, cfg ProbeConfig) (Found, bool) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	hostport := netip.AddrPortFrom(addr, uint16(cfg.Port)).String()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", hostport)
	if err != nil {
		return Found{}, false
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	f := Found{Address: "https://" + hostport}
	if cfg.HTTP {
		f.Address = "http://" + hostport
	} else {
		f.Address = strings.TrimSuffix(f.Address, ":443")
		t := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}) // its key is noted, to be pinned at enrolment
		if t.HandshakeContext(ctx) != nil {
			return Found{}, false
		}
		sum := sha256.Sum256(t.ConnectionState().PeerCertificates[0].RawSubjectPublicKeyInfo)
		f.TLSPin, conn = hex.EncodeToString(sum[:]), t
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.Address+"/redfish/v1/", nil)
	if err != nil {
		return Found{}, false
	}
	req.Close = true
	if req.Write(conn) != nil {
		return Found{}, false
	}
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxProbed)), req)
	if err != nil {
		return Found{}, false
	}
	defer resp.Body.Close()
	var body map[string]any
	if resp.StatusCode != http.StatusOK || json.NewDecoder(resp.Body).Decode(&body) != nil {
		return Found{}, false
	}
	r := &resource{body: body}
	if f.Redfish = r.str("RedfishVersion"); f.Redfish == "" {
		return Found{}, false // some other web server
	}
	f.Vendor, f.Product, f.UUID = shortWord(r.word("Vendor")), shortWord(r.word("Product")), shortWord(strings.ToLower(r.word("UUID")))
	f.Redfish = shortWord(f.Redfish)
	return f, true
}

// maxProbed bounds what is read of an address, headers included: anybody may answer there.
const maxProbed = 1 << 20

// shortWord is a stranger's word as it may be kept and shown: at most 200 characters that print.
func shortWord(s string) string {
	var out []rune
	for _, r := range strings.ToValidUTF8(s, "") {
		if unicode.IsPrint(r) && len(out) < 200 {
			out = append(out, r)
		}
	}
	return string(out)
}

// Recognised is who a BMC that was found says it is, to one who logs in; or why it doesn't say.
type Recognised struct {
	Serial, Model string
	Err           error
}

// Recognise logs in to each of a list, once, and reads who it is. Each login is kept to the key that was seen without one. atOnce is
// how many are logged in to at a time; 0 is 16.
func Recognise(ctx context.Context, list []Found, user, password string, atOnce int) []Recognised {
	if atOnce <= 0 {
		atOnce = 16
	}
	out := make([]Recognised, len(list))
	var wg sync.WaitGroup
	slot := make(chan struct{}, atOnce)
	for i, f := range list {
		wg.Go(func() {
			slot <- struct{}{}
			defer func() { <-slot }()
			out[i] = recognise(ctx, f, user, password)
		})
	}
	wg.Wait()
	return out
}

func recognise(ctx context.Context, f Found, user, password string) (r Recognised) {
	c, err := Dial(ctx, Endpoint{Address: f.Address, Credential: Static(user, password), TLSPin: f.TLSPin}, WithLog(slog.New(slog.DiscardHandler)))
	if err != nil {
		return Recognised{Err: err}
	}
	id, err := c.Identify(ctx)
	if err = errors.Join(err, c.Close(context.WithoutCancel(ctx))); err != nil {
		return Recognised{Err: err}
	}
	return Recognised{Serial: shortWord(id.Serial), Model: shortWord(strings.TrimSpace(id.Manufacturer + " " + id.Model))}
}
