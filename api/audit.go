package api

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"gpupool/schema"
	"gpupool/schema/store"
)

// auditData is the data of EventAudit for a call of the API.
type auditData struct {
	Method  string `json:"method"`
	Route   string `json:"route"`
	Path    string `json:"path"`
	Status  int    `json:"status"`
	Address string `json:"address"`
	Request string `json:"request_id"`
}

// auditor writes the audit in groups, so that a hundred calls a second cost ten transactions and not a hundred. A kill
// can lose the last tenth of a second of it; who did what still stands in the event of the change itself (Event.By).
type auditor struct {
	store *store.Store
	log   *slog.Logger

	mu      sync.Mutex
	pending []audited
	some    chan struct{}
}

type audited struct {
	event schema.Event
	data  auditData
}

const (
	auditEvery = 100 * time.Millisecond
	auditGroup = 500
)

func newAuditor(s *store.Store, log *slog.Logger) *auditor {
	return &auditor{store: s, log: log, some: make(chan struct{}, 1)}
}

func (a *auditor) add(e schema.Event, d auditData) {
	a.mu.Lock()
	a.pending = append(a.pending, audited{e, d})
	a.mu.Unlock()
	select {
	case a.some <- struct{}{}:
	default:
	}
}

// run writes until ctx ends, and then what is left.
func (a *auditor) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			a.flush(last)
			cancel()
			return
		case <-a.some:
		}
		select {
		case <-ctx.Done():
		case <-time.After(auditEvery):
		}
		a.flush(context.WithoutCancel(ctx))
	}
}

func (a *auditor) flush(ctx context.Context) {
	for {
		a.mu.Lock()
		group := a.pending[:min(len(a.pending), auditGroup)]
		a.mu.Unlock()
		if len(group) == 0 {
			return
		}
		err := a.store.Write(ctx, func(tx *store.Tx) error {
			for _, g := range group {
				tx.Emit(g.event, g.data)
			}
			return nil
		})
		if err != nil { // kept for the next try, and said: an audit that can't be written must be noticed
			a.log.ErrorContext(ctx, "api: the audit can't be written", "waiting", len(group), "error", err)
			return
		}
		a.mu.Lock()
		a.pending = append([]audited(nil), a.pending[len(group):]...)
		a.mu.Unlock()
	}
}
