package store

import (
	"context"
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
	q := s.read(ctx).Where("seq > ? AND seq <= ?", after, head).Order("seq").Limit(limit)
	if len(f.Kinds) > 0 {
		q = q.Where("kind IN ?", f.Kinds)
	}
	if f.Server != "" {
		q = q.Where("server = ?", f.Server)
	}
	if f.Job != "" {
		q = q.Where("job = ?", f.Job)
	}
	if f.Tenant != "" {
		q = q.Where("tenant = ?", f.Tenant)
	}
	var out []schema.Event
	if err := q.Find(&out).Error; err != nil {
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
	for {
		rung := s.bell.wait()
		ev, next, err := s.Events(ctx, after, limit, f)
		if err != nil || len(ev) > 0 {
			return ev, next, err
		}
		after = next
		select {
		case <-rung:
		case <-deadline.C:
			return nil, after, nil
		case <-ctx.Done():
			return nil, after, nil
		}
	}
}

// Changed returns a channel that is closed at the next event. Take it before reading, so that nothing is missed.
func (s *Store) Changed() <-chan struct{} { return s.bell.wait() }

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

// listen asks PostgreSQL for news of other processes. 100 ms is far below what a person notices and costs one
// primary-key read.
func (s *Store) listen(ctx context.Context) {
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if n, err := s.Head(ctx); err == nil {
				s.bell.ring(n)
			}
		}
	}
}

// bell wakes all who wait when a newer number is rung.
type bell struct {
	mu   sync.Mutex
	last int64
	ch   chan struct{}
}

func newBell() *bell { return &bell{ch: make(chan struct{})} }

func (b *bell) ring(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n <= b.last {
		return
	}
	b.last = n
	close(b.ch)
	b.ch = make(chan struct{})
}

func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ch
}
