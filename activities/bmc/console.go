package bmc

import (
	"context"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	ipmi "github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/command/transport"
	"github.com/bougou/go-ipmi/pkg/types"
)

// Console is a look at a server's serial console.
type Console struct {
	Text string `json:"text"` // the newest; at most 64 KiB
	// Via is "log" for what the BMC kept of it before (OpenBMC), "sol" for what came while we listened.
	Via string `json:"via"`
}

// consoleBytes bounds the text.
const consoleBytes = 64 << 10

// Console listens to the serial console over LAN (IPMI 2.0 section 15) for d. It only listens. Another's open console ends
// by it on BMCs that have but one.
func (c *IPMIClient) Console(ctx context.Context, d time.Duration) (Console, error) {
	out := &tail{}
	err := c.session(ctx, "listen to the console of", func(ctx context.Context, s *ipmi.Client) error {
		// What a console shows is encrypted and signed as the session is: some BMCs answer nothing else in such a session.
		if _, err := s.ActivatePayload(ctx, &transport.ActivatePayloadRequest{PayloadType: types.PayloadTypeSOL, PayloadInstance: 1, EnableEncryption: true, EnableAuthentication: true}); err != nil {
			return err
		}
		defer func() {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.pool.cfg.Timing.Dial)
			defer cancel()
			if _, err := s.DeactivatePayload(closing, &transport.DeactivatePayloadRequest{PayloadType: types.PayloadTypeSOL, PayloadInstance: 1}); err != nil {
				c.pool.log.DebugContext(ctx, "serial console not closed", "bmc", c.address, "err", err)
			}
		}()
		listen, cancel := context.WithCancel(ctx)
		defer cancel()
		end := time.AfterFunc(d, func() { // a BMC's first words can take one exchange of packets, and longer than a short listening
			if out.text() != "" || sleep(listen, c.exchange()) == nil {
				cancel()
			}
		})
		defer end.Stop()
		keys, hand := io.Pipe() // nobody types; the stream ends with its time
		defer hand.Close()
		if err := s.SOLStream(listen, keys, out, nil); listen.Err() == nil || ctx.Err() != nil {
			return err
		}
		return nil
	})
	return Console{Text: out.text(), Via: "sol"}, err
}

// hostLog is where OpenBMC keeps what the host's console said.
var hostLog = regexp.MustCompile(`(?i)/hostlogger$`)

// Console reads what the BMC kept of the serial console, or where it keeps none and speaks IPMI, listens for d.
func (c *Client) Console(ctx context.Context, d time.Duration) (_ Console, err error) {
	defer c.conn.named("read console of", &err)
	if kept, ok, err := c.keptConsole(ctx); ok || err != nil {
		return kept, err
	}
	h, err := c.find(ctx)
	if err != nil {
		return Console{}, err
	}
	if h.shares {
		return Console{}, &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: h.uri, Detail: "its BMC serves several servers, and IPMI doesn't say whose console it shows"}
	}
	for _, uri := range h.managers {
		m, err := c.conn.get(ctx, uri)
		if err == nil {
			m, err = c.conn.get(ctx, m.link("NetworkProtocol"))
		}
		if err := lenient(uri, err); err != nil {
			return Console{}, err
		}
		if on, _ := m.at("IPMI", "ProtocolEnabled").(bool); !on {
			continue
		}
		c.conn.mu.Lock()
		credential := c.conn.credential
		c.conn.mu.Unlock()
		address := c.conn.base.Hostname()
		if p, ok := m.num("IPMI", "Port"); ok && p > 0 {
			address = net.JoinHostPort(address, strconv.Itoa(int(p)))
		}
		over, err := c.conn.pool.IPMI(Endpoint{Address: address, Protocol: IPMI, Credential: credential})
		if err != nil {
			return Console{}, err
		}
		over.account = c.conn.address // one account, one budget
		return over.Console(ctx, d)
	}
	return Console{}, &Error{Kind: ErrUnsupported, Address: c.conn.address, Detail: "it keeps no log of the console and has IPMI switched off",
		Hint: "switch IPMI over LAN on at the BMC, or read its console by SSH"}
}

// keptConsole reads what the BMC kept of the serial console, where it does. It disturbs nobody who has the console open.
func (c *Client) keptConsole(ctx context.Context) (_ Console, ok bool, err error) {
	services, err := c.LogServices(ctx)
	if err != nil {
		return Console{}, false, err
	}
	for _, s := range services {
		if !hostLog.MatchString(s) {
			continue
		}
		list, _, err := c.LogEntries(ctx, s, nil)
		if err != nil {
			return Console{}, false, err
		}
		out := &tail{}
		for _, e := range list {
			_, _ = out.Write([]byte(e.Message + "\n")) // never fails
		}
		return Console{Text: out.text(), Via: "log"}, true, nil
	}
	return Console{}, false, nil
}

// Bounds of the lines that a diagnosis shows.
const (
	shownLines = 6
	shownBytes = 160 // of a line
)

var (
	terminal  = regexp.MustCompile(`\x1b\[[0-9;?=]*[A-Za-z]`) // what moves a cursor or colours (ECMA-48)
	bootToken = regexp.MustCompile(`/b/[A-Za-z0-9_-]{16,}`)   // in the address of an attempt's documents, which kernels print
)

// lastLines is the end of a console for people: without what is not text, and without boot tokens.
func lastLines(text string) string {
	text = bootToken.ReplaceAllString(terminal.ReplaceAllString(text, ""), "/b/***")
	var lines []string
	for line := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == '\n' || r == '\r' }) {
		line = strings.Map(func(r rune) rune {
			if !unicode.IsPrint(r) {
				return -1
			}
			return r
		}, line)
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line[:min(len(line), shownBytes)])
		}
	}
	return strings.ToValidUTF8(strings.Join(lines[max(0, len(lines)-shownLines):], " | "), "")
}

// tail keeps the last consoleBytes of what is written. Safe for concurrent use.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.b = append(t.b, p...); len(t.b) > consoleBytes {
		t.b = append(t.b[:0:0], t.b[len(t.b)-consoleBytes:]...)
	}
	return len(p), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.b), "\uFFFD")
}
