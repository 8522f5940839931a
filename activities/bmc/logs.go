package bmc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"
)

// LogEntry is one entry of one of the BMC's logs.
type LogEntry struct {
	Service   string    `json:"service"` // path of the log service
	ID        string    `json:"id"`
	Created   string    `json:"created"` // as the BMC wrote it; its clock is often wrong
	At        time.Time `json:"at"`      // Created as a time; zero when it can't be read
	Severity  string    `json:"severity"`
	MessageID string    `json:"message_id,omitempty"`
	Args      []string  `json:"args,omitempty"`
	Message   string    `json:"message"`
	Origin    string    `json:"origin,omitempty"` // resource that it is about
	Resolved  *bool     `json:"resolved,omitempty"`
	History   bool      `json:"history"` // was there at the first sight of this log: a baseline, not an event
}

// Cursor is how far a log was read. It is small, survives a restart as JSON, and needs no order of time.
type Cursor struct {
	Last   string   `json:"last"`   // print of the newest entry read
	Recent []string `json:"recent"` // prints of those before it, newest first
	// Where the BMC gives the whole log on one page under an entity tag, the next read asks only whether it changed.
	Entries string    `json:"entries,omitempty"` // path of the page
	ETag    string    `json:"etag,omitempty"`
	Whole   time.Time `json:"whole,omitzero"` // when it was last read as a whole
}

// wholeAgain is how long an entity tag is believed: firmware whose tag doesn't change with the log then costs an hour and not
// every entry to come.
const wholeAgain = time.Hour

// recentPrints is how many entries may be cleared selectively (Dell's lifecycle log drops old ones) before a log counts
// as cleared.
const recentPrints = 32

// print identifies an entry. The Id alone doesn't: numbers begin again after a clear or a wrap.
func (e LogEntry) print() string {
	sum := sha256.Sum256([]byte(e.ID + "\x00" + e.Created + "\x00" + e.MessageID + "\x00" + e.Message))
	return hex.EncodeToString(sum[:8])
}

// LogServices lists the paths of the logs: of the host, its baseboards, managers and chassis.
func (c *Client) LogServices(ctx context.Context) (_ []string, err error) {
	defer c.conn.named("list logs of", &err)
	h, err := c.find(ctx)
	if err != nil {
		return nil, err
	}
	root, err := c.conn.root(ctx)
	if err != nil {
		return nil, err
	}
	ctx = inBulk(ctx)
	owners := []string{h.uri}
	owners = append(owners, h.others...)
	for _, coll := range []string{"Managers", "Chassis"} {
		if h.shares && coll == "Managers" {
			continue // the manager's logs tell of all its servers, and don't say of which
		}
		list, err := c.conn.members(ctx, orDefault(root.link(coll), "/redfish/v1/"+coll))
		if err != nil {
			return nil, err
		}
		for _, m := range list {
			owners = append(owners, m.uri)
		}
	}
	var out []string
	seen := map[string]bool{}
	for _, uri := range owners {
		r, err := c.conn.get(ctx, uri)
		if err == nil {
			if h.shares && strings.HasPrefix(normalURI(uri), "/redfish/v1/Chassis/") && !h.holds(r) {
				continue
			}
			var list []*resource
			list, err = c.conn.members(ctx, r.link("LogServices"))
			for _, m := range list {
				if !seen[normalURI(m.uri)] {
					seen[normalURI(m.uri)] = true
					out = append(out, normalURI(m.uri))
				}
			}
		}
		if err := lenient(uri, err); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// noise are logs that hold no evidence about hardware: consoles, audits, dumps and journals of the BMC's own programs.
var noise = regexp.MustCompile(`(?i)/(journal|dump|postcodes|auditlog|audit|security|sl|diagnosticlog|debugtokenservice|fdr|callhome|salog|lclog|maintenancelog|decodedlog|crashdump|hostlogger)$`)

// EventLogs drops the logs that hold no evidence about hardware. It never returns nil.
func EventLogs(services []string) []string {
	return slices.DeleteFunc(append([]string{}, services...), noise.MatchString)
}

// Log reads the last entries of all event logs together, newest last. What one log gets wrong costs that log.
func (c *Client) Log(ctx context.Context, most int) ([]LogEntry, error) {
	services, err := c.LogServices(ctx)
	if err != nil {
		return nil, err
	}
	var all []LogEntry
	for _, s := range EventLogs(services) {
		list, _, err := c.LogEntries(ctx, s, nil)
		if err := lenient(s, err); err != nil {
			return nil, err
		}
		all = append(all, lastEntries(list, most)...)
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].At.Before(all[j].At) })
	return lastEntries(all, most), nil
}

func lastEntries(list []LogEntry, most int) []LogEntry { return list[max(0, len(list)-most):] }

// countEntries is how many entries a log has, by its own word; where it gives none, how many its first page shows.
func (c *Client) countEntries(ctx context.Context, service string) (int, error) {
	s, err := c.conn.get(ctx, service)
	if err != nil {
		return 0, err
	}
	page, err := c.conn.get(ctx, orDefault(s.link("Entries"), strings.TrimRight(service, "/")+"/Entries"))
	if isKind(err, ErrNotFound) {
		return 0, nil // a log that isn't there is empty
	}
	if n, told := page.num("Members@odata.count"); told || err != nil {
		return int(n), err
	}
	list, _ := page.at("Members").([]any)
	return len(list), nil
}

// LogEntries reads what a log has new since cursor, oldest first, and the next cursor. A nil cursor is the first sight:
// everything is returned, marked as history. After a clear or a wrap everything in it is new. An entry is never returned
// twice, even by another caller that starts from the same cursor.
func (c *Client) LogEntries(ctx context.Context, service string, cursor *Cursor) (_ []LogEntry, _ *Cursor, err error) {
	defer c.conn.named("read log of", &err)
	ctx = inBulk(ctx)
	var uri string
	var page *resource
	if cursor != nil && cursor.ETag != "" && now().Sub(cursor.Whole) < wholeAgain {
		uri = cursor.Entries
		same := false
		if page, same, err = c.conn.getChanged(ctx, uri, cursor.ETag); same {
			return nil, cursor, nil
		}
	} else {
		var s *resource
		if s, err = c.conn.get(ctx, service); err != nil {
			return nil, cursor, err
		}
		uri = orDefault(s.link("Entries"), strings.TrimRight(service, "/")+"/Entries")
		page, err = c.conn.get(ctx, uri)
	}
	if err != nil && !isKind(err, ErrNotFound) { // a log that isn't there is empty
		return nil, cursor, err
	}
	list, err := c.conn.membersFrom(ctx, page)
	if err != nil {
		return nil, cursor, err
	}
	members, err := c.conn.wholes(ctx, list, lenient)
	if err != nil {
		return nil, cursor, err
	}
	all := make([]LogEntry, 0, len(members))
	for _, m := range members {
		all = append(all, entryOf(service, m))
	}
	sortEntries(all)
	fresh, next := since(all, cursor)
	if page != nil && page.etag != "" && nextPage(page) == "" {
		next.Entries, next.ETag, next.Whole = uri, page.etag, now().UTC().Truncate(time.Second)
	}
	return fresh, next, nil
}

func entryOf(service string, r *resource) LogEntry {
	e := LogEntry{
		Service: normalURI(service), ID: orDefault(r.str("Id"), lastSegment(r.uri)), Created: r.str("Created"), Severity: r.str("Severity"),
		MessageID: r.str("MessageId"), Args: stringsOf(r.at("MessageArgs")), Message: r.str("Message"),
		Origin: r.link("Links", "OriginOfCondition"),
	}
	if b, ok := r.at("Resolved").(bool); ok {
		e.Resolved = &b
	}
	e.At = parseTime(e.Created)
	return e
}

// parseTime reads the forms of time seen: RFC 3339, and Dell's zone without a colon.
func parseTime(s string) time.Time {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05-0700", "2006-01-02T15:04:05"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t
		}
	}
	return time.Time{}
}

// sortEntries puts entries oldest first. By number where all have one, since clocks jump; else by time where all have
// one; else as they came.
func sortEntries(list []LogEntry) {
	numbers, times := true, true
	for _, e := range list {
		numbers = numbers && e.ID != "" && strings.Trim(e.ID, "0123456789") == ""
		times = times && !e.At.IsZero()
	}
	switch {
	case numbers:
		sort.SliceStable(list, func(i, j int) bool { return natural(list[i].ID) < natural(list[j].ID) })
	case times:
		sort.SliceStable(list, func(i, j int) bool { return list[i].At.Before(list[j].At) })
	}
}

// since picks the entries after a cursor. Pure.
func since(all []LogEntry, cursor *Cursor) ([]LogEntry, *Cursor) {
	next := &Cursor{}
	for i := len(all) - 1; i >= 0 && len(next.Recent) <= recentPrints; i-- {
		if next.Last == "" {
			next.Last = all[i].print()
			continue
		}
		next.Recent = append(next.Recent, all[i].print())
	}
	if cursor == nil {
		for i := range all {
			all[i].History = true
		}
		return all, next
	}
	if len(all) == 0 {
		return nil, next // cleared, or a log that never had anything
	}
	at := map[string]int{}
	for i, e := range all {
		at[e.print()] = i
	}
	for _, p := range append([]string{cursor.Last}, cursor.Recent...) {
		if i, ok := at[p]; ok && p != "" {
			return all[i+1:], next
		}
	}
	return all, next
}
