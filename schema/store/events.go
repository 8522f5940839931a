package store

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"gpupool/schema"
)

// EventFilter narrows what Events returns; empty fields don't.
type EventFilter struct {
	Kinds  []schema.EventKind
	Server string
	Job    string
	Tenant string
}

// Events returns up to limit events after seq, in order, with the position a reader may move to: the last event's
// number, or, where fewer than limit matched, the newest number there was.
func (s *Store) Events(ctx context.Context, after int64, limit int, f EventFilter) ([]schema.Event, int64, error) {
	head, err := s.Head(ctx) // read first: what comes later is not skipped
	if err != nil {
		return nil, after, err
	}
	q := s.read(ctx).Model(&schema.Event{}).Select(`seq, at, kind, subject, server, job, tenant, "by", coalesce(data, '')`).Where("seq > ? AND seq <= ?", after, head).Order("seq").Limit(limit)
	if len(f.Kinds) > 0 {
		q = q.Where("kind IN ?", f.Kinds)
	}
	// Each is said in the words of its index too: see inArray.
	if f.Server != "" {
		q = q.Where("server = ? AND server <> ''", f.Server)
	}
	if f.Job != "" {
		q = q.Where("job = ? AND job <> ''", f.Job)
	}
	if f.Tenant != "" {
		q = q.Where("tenant = ? AND tenant <> ''", f.Tenant)
	}
	var out []schema.Event
	if err := each(q, func(scan func(...any) error) error {
		var e schema.Event
		var data string
		if err := scan(&e.Seq, &e.At, &e.Kind, &e.Subject, &e.Server, &e.Job, &e.Tenant, &e.By, &data); err != nil {
			return err
		}
		if data != "" {
			e.Data = json.RawMessage(data)
		}
		out = append(out, e)
		return nil
	}); err != nil {
		return nil, after, err
	}
	if len(out) == limit {
		return out, out[len(out)-1].Seq, nil
	}
	return out, max(head, after), nil
}

// WaitEvents is Events, but where there is none it waits for one until ctx ends or wait has passed; then it returns none.
func (s *Store) WaitEvents(ctx context.Context, after int64, limit int, f EventFilter, wait time.Duration) ([]schema.Event, int64, error) {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	topic := TopicAll
	switch {
	case f.Job != "":
		topic = TopicJob(f.Job)
	case f.Server != "":
		topic = TopicServer(f.Server)
	}
	w := s.Watch(topic)
	defer w.Close()
	for {
		ev, next, err := s.Events(ctx, after, limit, f)
		if err != nil || len(ev) > 0 {
			return ev, next, err
		}
		after = next
		select {
		case <-w.C:
		case <-deadline.C:
			return nil, after, nil
		case <-ctx.Done():
			return nil, after, nil
		}
	}
}

// Head is the newest event's number.
func (s *Store) Head(ctx context.Context) (int64, error) {
	var n int64
	err := s.read(ctx).Raw("SELECT seq FROM event_seq WHERE one = 1").Scan(&n).Error
	return n, err
}

// Cursor is how far the named reader has come; 0 where it is new.
func (s *Store) Cursor(ctx context.Context, name string) (int64, error) {
	var n int64
	err := s.read(ctx).Raw("SELECT seq FROM cursors WHERE name = ?", name).Scan(&n).Error
	return n, err
}

// SetCursor moves a reader forward, never back. Call it only once what was read is durable.
func (s *Store) SetCursor(ctx context.Context, name string, seq int64) error {
	return s.Write(ctx, func(tx *Tx) error {
		_, err := tx.exec("INSERT INTO cursors (name, seq) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET seq = excluded.seq WHERE cursors.seq < excluded.seq", name, seq)
		return err
	})
}

// Topics a Watch can be for.
const TopicAll = "all"

// TopicJob wakes at each event about the job.
func TopicJob(id string) string { return "job/" + id }

// TopicServer wakes at each event about the server.
func TopicServer(id string) string { return "server/" + id }

// TopicTenant wakes at each event that is the tenant's to see.
func TopicTenant(name string) string { return "tenant/" + name }

// TopicTasks wakes when there is work for the server's agent.
func TopicTasks(server string) string { return "tasks/" + server }

// Watch wakes its owner when something it is for has happened. C holds at most one wake-up: read state after taking it.
type Watch struct {
	C     chan struct{}
	hub   *hub
	topic string
}

// Watch starts one; its owner closes it. What happens after this call is never missed.
func (s *Store) Watch(topic string) *Watch { return s.hub.watch(topic) }

// Close ends the watch.
func (w *Watch) Close() { w.hub.drop(w) }

// Nudge wakes a topic's watches of this process where no event does: an agent's output makes none.
func (s *Store) Nudge(topic string) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.hub.wake(topic)
}

// hub hands what was committed to those who watch for it, without asking the database. On PostgreSQL it also hears
// of other processes' events, by listen.
type hub struct {
	mu      sync.Mutex
	watches map[string]map[*Watch]struct{}
	own     map[int64]int64 // first -> last number of each commit of this process that listen has not passed; nil = nobody listens
}

func newHub() *hub { return &hub{watches: map[string]map[*Watch]struct{}{}} }

// committed publishes what a transaction of this process has committed: events of consecutive numbers.
func (h *hub) committed(events []schema.Event) {
	h.publish(events)
	if len(events) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.own != nil {
		h.own[events[0].Seq] = events[len(events)-1].Seq
	}
}

// pass moves over this process's own events that follow the one numbered at, and forgets those that are behind it.
func (h *hub) pass(at int64) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	for last, is := h.own[at+1]; is; last, is = h.own[at+1] {
		delete(h.own, at+1)
		at = last
	}
	for first, last := range h.own {
		if last <= at {
			delete(h.own, first)
		}
	}
	return at
}

func (h *hub) watch(topic string) *Watch {
	w := &Watch{C: make(chan struct{}, 1), hub: h, topic: topic}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watches[topic] == nil {
		h.watches[topic] = map[*Watch]struct{}{}
	}
	h.watches[topic][w] = struct{}{}
	return w
}

func (h *hub) drop(w *Watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watches[w.topic], w)
	if len(h.watches[w.topic]) == 0 {
		delete(h.watches, w.topic)
	}
}

func (h *hub) publish(events []schema.Event) {
	if len(events) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wake(TopicAll)
	for _, e := range events {
		if e.Job != "" {
			h.wake(TopicJob(e.Job))
		}
		if e.Tenant != "" {
			h.wake(TopicTenant(e.Tenant))
		}
		if e.Server != "" {
			h.wake(TopicServer(e.Server))
			if e.Kind == schema.EventTaskQueued {
				h.wake(TopicTasks(e.Server))
			}
		}
	}
}

func (h *hub) wake(topic string) {
	for w := range h.watches[topic] {
		select {
		case w.C <- struct{}{}:
		default: // it has a wake-up waiting already
		}
	}
}

// listen hears of events after the one numbered at that other processes commit: it asks for the newest number each 100 ms,
// which is far below what a person notices and costs one read by a primary key. It is a poll and not PostgreSQL's NOTIFY:
// that takes one lock for the whole database at each commit, and is lost with its connection, so that a poll would be
// needed beside it.
func (s *Store) listen(ctx context.Context, at int64) {
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			var err error
			for more := true; more && err == nil; { // after an error it is asked again at the next tick
				at, more, err = s.hear(ctx, at)
			}
		}
	}
}

// hear publishes up to 1000 of the events after the one numbered at that other processes have committed, and returns where
// it has come to and whether there may be more. This process's own were published as they were committed, and are passed over.
func (s *Store) hear(ctx context.Context, at int64) (next int64, more bool, err error) {
	const most = 1000
	head, err := s.Head(ctx)
	if err != nil {
		return at, false, err
	}
	at = s.hub.pass(at)
	if at >= head {
		return at, false, nil
	}
	var events []schema.Event
	if err := each(s.read(ctx).Raw("SELECT seq, kind, server, job, tenant FROM events WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?", at, head, most), func(scan func(...any) error) error {
		var e schema.Event
		if err := scan(&e.Seq, &e.Kind, &e.Server, &e.Job, &e.Tenant); err != nil {
			return err
		}
		events = append(events, e)
		return nil
	}); err != nil {
		return at, false, err
	}
	s.hub.publish(events)
	if len(events) == most {
		return events[most-1].Seq, true, nil
	}
	return head, true, nil
}
