package bmc

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Event is one event record that a BMC sent. It is a hint to look, not evidence: records lack fields, repeat and get lost,
// so what counts is what a read shows.
type Event struct {
	MessageID string `json:"message_id"`
	Message   string `json:"message"`
	Severity  string `json:"severity"`
	Origin    string `json:"origin"`
}

// maxEvent bounds one event of a stream: one that never ends would be kept for ever.
const maxEvent = 1 << 20

// Events listens to the BMC's server-sent events (DSP0266 13.5.3) and calls tell for each record until the stream or the
// context ends; the end of the stream is an error, to be followed by another call. ErrUnsupported is a BMC that has none:
// polling sees the same, later.
func (c *Client) Events(ctx context.Context, tell func(Event)) (err error) {
	defer c.conn.named("listen to", &err)
	service, err := c.eventService(ctx)
	if err != nil {
		return err
	}
	uri := service.str("ServerSentEventUri")
	if on := flag(service, "ServiceEnabled"); uri == "" || on != nil && !*on {
		return &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: service.uri, Detail: "no server-sent events"}
	}
	token, err := c.conn.session(ctx)
	if err != nil {
		return err
	}
	if token == "" {
		return &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: uri, Detail: "a stream under Basic would hold up every other request"}
	}
	u, err := c.conn.base.Parse(uri)
	if err != nil || u.Host != c.conn.base.Host {
		return &Error{Kind: ErrBody, Address: c.conn.address, URI: uri, Detail: "the link leads away from this bmc"}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	req.Header = http.Header{"X-Auth-Token": {string(token)}, "Accept": {"text/event-stream"}, "User-Agent": {"gpupool"}}
	resp, err := c.conn.http.Do(req)
	if err != nil {
		return &Error{Kind: ErrUnreachable, Address: c.conn.address, URI: uri, Err: unwrapURL(err)}
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return &Error{Kind: ErrBusy, Address: c.conn.address, URI: uri, Status: resp.StatusCode, Detail: "the session ended", Err: c.conn.dropSession(ctx, token)}
	case resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"):
		return &Error{Kind: ErrRefused, Address: c.conn.address, URI: uri, Status: resp.StatusCode, Detail: "not an event stream"}
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4096), maxEvent)
	var data strings.Builder
	for lines.Scan() {
		line := lines.Text()
		if rest, ok := strings.CutPrefix(line, "data:"); ok {
			if data.Len()+len(rest) > maxEvent {
				return &Error{Kind: ErrBody, Address: c.conn.address, URI: uri, Detail: fmt.Sprintf("an event of more than %d bytes", maxEvent)}
			}
			data.WriteString(strings.TrimPrefix(rest, " ") + "\n")
			continue
		}
		if line != "" || data.Len() == 0 {
			continue // id, event, comment; or an empty event
		}
		for _, e := range eventsOf([]byte(data.String())) {
			tell(e)
		}
		data.Reset()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &Error{Kind: ErrUnreachable, Address: c.conn.address, URI: uri, Err: lines.Err(), Detail: "the event stream ended"}
}

// eventsOf reads an Event resource. One that can't be read is still a hint: an event without words.
func eventsOf(body []byte) []Event {
	var d map[string]any
	if json.Unmarshal(body, &d) != nil {
		return []Event{{}}
	}
	list, _ := d["Events"].([]any)
	var out []Event
	for _, x := range list {
		out = append(out, Event{MessageID: text(at(x, "MessageId")), Message: text(at(x, "Message")),
			Severity: orDefault(text(at(x, "MessageSeverity")), text(at(x, "Severity"))), Origin: linkOf(at(x, "OriginOfCondition"))})
	}
	if out == nil {
		return []Event{{}}
	}
	return out
}
