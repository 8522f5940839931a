package pxe

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"gpupool/pxe/boot"
	"gpupool/schema"
)

// evidence carries boot evidence from the services to the Recorder without making a boot wait for a database. When
// the Recorder is behind by a whole queue, further evidence is dropped and counted.
type evidence struct {
	to      boot.Recorder
	log     *slog.Logger
	now     func() time.Time
	queue   chan item
	dropped atomic.Int64
	// strangers bounds what those who are no server of the inventory can have written down: anyone can ask for files that
	// aren't there, and make up MACs.
	strangers *rate.Limiter
	limited   atomic.Int64

	mu    sync.Mutex
	kinds map[string]counts
}

// counts of one kind of evidence.
type counts struct{ n, bytes int64 }

type item struct {
	at time.Time
	e  schema.BootEvidence
}

const (
	evidenceQueue = 8192
	evidenceBatch = 1024
	evidenceEvery = 50 * time.Millisecond // between two batches: one of many costs little more than one of few

	strangersRate  = 5 // a second
	strangersBurst = 500
)

func newEvidence(to boot.Recorder, log *slog.Logger, now func() time.Time) *evidence {
	return &evidence{to: to, log: log, now: now, queue: make(chan item, evidenceQueue), strangers: rate.NewLimiter(strangersRate, strangersBurst), kinds: map[string]counts{}}
}

func (v *evidence) record(e schema.BootEvidence) {
	v.log.Debug("boot", "kind", e.Kind, "mac", e.MAC, "ip", e.IP, "server", e.Server, "attempt", e.Attempt, "what", e.What, "bytes", e.Bytes, "result", e.Result)
	v.mu.Lock()
	c := v.kinds[e.Kind]
	v.kinds[e.Kind] = counts{c.n + 1, c.bytes + e.Bytes}
	v.mu.Unlock()
	if e.Server == "" && !v.strangers.Allow() {
		v.limited.Add(1)
		return
	}
	select {
	case v.queue <- item{v.now(), e}:
	default:
		v.dropped.Add(1)
	}
}

// counted is how much evidence there was of each kind since the start.
func (v *evidence) counted() map[string]counts {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.kinds)
}

// run hands evidence over until stop is closed, and then what is left.
func (v *evidence) run(ctx context.Context, stop <-chan struct{}) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		queue := v.queue
		select {
		case <-next.C:
		case <-stop:
			queue = nil
		}
		select {
		case i := <-queue:
			v.hand(ctx, i)
			next.Reset(evidenceEvery)
		case <-stop:
			for {
				select {
				case i := <-v.queue:
					v.hand(ctx, i)
				default:
					return
				}
			}
		}
	}
}

func (v *evidence) hand(ctx context.Context, first item) {
	at, es := []time.Time{first.at}, []schema.BootEvidence{first.e}
	for len(es) < evidenceBatch {
		select {
		case i := <-v.queue:
			at, es = append(at, i.at), append(es, i.e)
			continue
		default:
		}
		break
	}
	if v.to == nil {
		return
	}
	if err := v.to.Record(ctx, at, es); err != nil {
		v.dropped.Add(int64(len(es)))
		v.log.Error("boot evidence was not kept", "count", len(es), "err", err)
	}
}
