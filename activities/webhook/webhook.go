// Package webhook tells people's own systems of events: each webhook by a courier of its own, so that a receiver that is
// slow or dead delays no other.
//
// Invariants: a message is kept before it is sent and is sent until its receiver has it, or is given up after a stated
// time, which shows: at least once, under one id, over the death of any process. Messages about one subject come in the
// order of its events; those about others are not held up. Each is signed (Standard Webhooks 1.0.0), or is mail where the
// hook's address is mailto:. No address is connected to that the rules don't allow, whatever its name resolves to. Not here: who may make a webhook (api), what is
// kept of it (schema/store).
package webhook

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"gpupool/activities/hosted"
	"gpupool/schema"
	"gpupool/schema/secret"
	"gpupool/schema/store"
)

// Timing is how a courier paces itself. Zero fields are the defaults.
type Timing struct {
	First    time.Duration // between a message's first two tries; doubles with each; 5 s
	Longest  time.Duration // between two tries of one message; 1 h
	Pause    time.Duration // of a hook whose last message was not taken; doubles with each in a row; 1 s
	MaxPause time.Duration // 1 min
	GiveUp   time.Duration // a message not taken for so long is given up, a hook that takes none is disabled; 24 h
	Gather   time.Duration // between two looks; 100 ms
}

func (t Timing) withDefaults() Timing {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&t.First, 5*time.Second)
	def(&t.Longest, time.Hour)
	def(&t.Pause, time.Second)
	def(&t.MaxPause, time.Minute)
	def(&t.GiveUp, 24*time.Hour)
	def(&t.Gather, 100*time.Millisecond)
	return t
}

// Activities is registered with the core task queue.
type Activities struct {
	Store  *store.Store
	Ring   *secret.Ring // that the hooks' secrets are sealed with
	Rules  Rules
	Timing Timing
	Log    *slog.Logger
}

const (
	// lookEvery is how often the list of hooks is looked at: a new one is told within this time.
	lookEvery = time.Second
	// pruneEvery is how often what was delivered long ago is forgotten.
	pruneEvery = time.Hour
)

// Tell serves all webhooks until its context ends or its worker stops. Two that serve at once send a message twice, under
// one id.
func (a *Activities) Tell(ctx context.Context) error { return hosted.Run(ctx, a.run) }

func (a *Activities) run(ctx context.Context, turn func()) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	client := a.Rules.client()
	defer client.CloseIdleConnections()
	type serving struct {
		end  context.CancelFunc
		done chan struct{}
	}
	served := map[string]serving{}
	look, prune := time.NewTicker(lookEvery), time.NewTicker(pruneEvery)
	defer look.Stop()
	defer prune.Stop()
	for {
		turn()
		hooks, err := a.Store.Webhooks(ctx, "")
		if err != nil {
			return fmt.Errorf("reading the webhooks: %w", err)
		}
		there := make(map[string]bool, len(hooks))
		for _, w := range hooks {
			there[w.ID] = true
			if s, ok := served[w.ID]; ok {
				select {
				case <-s.done: // it came to an end by an error, which was logged
				default:
					continue
				}
			}
			inner, end := context.WithCancel(ctx)
			s := serving{end, make(chan struct{})}
			served[w.ID] = s
			wg.Go(func() {
				defer close(s.done)
				defer end()
				c := newCourier(a, client, w)
				if err := c.serve(inner); err != nil && inner.Err() == nil {
					a.Log.Warn("a webhook's courier stopped, and begins again", "webhook", w.ID, "error", err)
				}
			})
		}
		for id, s := range served {
			if !there[id] {
				s.end()
				delete(served, id)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		case <-prune.C:
			if err := a.Store.PruneDeliveries(ctx); err != nil {
				return fmt.Errorf("forgetting old deliveries: %w", err)
			}
		}
	}
}

// messageID is a message's name, made of the hook's and the event's number: the same however often it is taken up.
func messageID(hook string, event int64) string {
	return fmt.Sprintf("msg_%s_%d", hook[len("whk_"):], event)
}

// message is an event as its receiver gets it.
func message(e schema.EventMessage) schema.Message {
	return schema.Message{Type: e.Kind, Timestamp: e.At, Data: e}
}
