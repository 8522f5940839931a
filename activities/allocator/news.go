package allocator

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"gpupool/activities/allocator/engine"
	"gpupool/schema"
	"gpupool/schema/store"
)

// news is what a part of the event log says must be read again.
type news struct {
	servers, jobs map[string]bool
	abroad        map[string]bool // tenants whose jobs have started or ended in another region
	policy        bool
	rebound       []engine.Allocation // what runs, on other accelerators than before
}

// heard is what is done at each kind of event, and whether something is to be decided then. Events of other kinds, most of
// which tell of this allocator's own decisions, are not even read.
var heard = map[schema.EventKind]func(*live, context.Context, *news, schema.Event) (changed bool, err error){
	schema.EventServerEnrolled:    (*live).hearServer,
	schema.EventServerPhase:       (*live).hearServer,
	schema.EventServerAgent:       (*live).hearServer,
	schema.EventServerCordoned:    (*live).hearServer,
	schema.EventServerUncordoned:  (*live).hearServer,
	schema.EventServerFailure:     (*live).hearServer, // a fault is held back, a repair is given up: see stuck
	schema.EventFaultCleared:      (*live).hearServer,
	schema.EventBreaker:           (*live).hearBreaker,
	schema.EventAcceleratorSeen:   (*live).hearServer,
	schema.EventAcceleratorHealth: (*live).hearServer,
	schema.EventAcceleratorGone:   (*live).hearServer,
	schema.EventClusterCan:        (*live).hearCluster,
	schema.EventPolicyChanged:     (*live).hearPolicy,
	schema.EventJobSubmitted:      (*live).hearJob,
	schema.EventJobHeld:           (*live).hearJob,
	schema.EventJobUnheld:         (*live).hearJob,
	schema.EventJobState:          (*live).hearState,
	schema.EventJobLimit:          (*live).hearLimit,
	schema.EventArrayLimit:        (*live).hearArray,
	schema.EventJobDevices:        (*live).hearDevices,
	schema.EventJobCheckpoint:     (*live).hearCheckpoint,
	schema.EventJobReleased:       (*live).hearReleased,
}

var heardKinds = slices.Sorted(maps.Keys(heard))

func (l *live) hearServer(_ context.Context, n *news, e schema.Event) (bool, error) {
	n.servers[e.Server] = true
	return true, nil
}

// hearBreaker reads what it held back again: its servers are as they were, and why they stay out is not.
func (l *live) hearBreaker(ctx context.Context, n *news, e schema.Event) (bool, error) {
	held, err := l.db.HeldBy(ctx, e.Subject)
	for _, id := range held {
		n.servers[id] = true
	}
	return true, err
}

// hearCluster reads again what jobs on a cluster's servers can have.
func (l *live) hearCluster(ctx context.Context, n *news, e schema.Event) (bool, error) {
	servers, err := l.db.ClusterServers(ctx, e.Subject)
	for _, v := range servers {
		n.servers[v.Server.ID] = true
	}
	return true, err
}

func (l *live) hearPolicy(_ context.Context, n *news, _ schema.Event) (bool, error) {
	n.policy = true
	return true, nil
}

func (l *live) hearJob(_ context.Context, n *news, e schema.Event) (bool, error) {
	n.jobs[e.Job] = true
	return true, nil
}

func (l *live) hearState(_ context.Context, n *news, e schema.Event) (bool, error) {
	var d struct {
		To schema.JobState `json:"to"`
	}
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return false, err
	}
	if d.To == schema.JobStarting && !l.pool.Holds(e.Job) {
		n.abroad[e.Tenant] = true
	}
	if d.To.Ended() {
		l.pool.Ended(e.Job, string(d.To))
	} else if d.To != schema.JobQueued && !l.pool.Waits(e.Job) {
		return false, nil // a start of its own, or what came of one
	}
	n.jobs[e.Job] = true
	return true, nil
}

func (l *live) hearLimit(ctx context.Context, n *news, e schema.Event) (bool, error) {
	j, err := l.db.Job(ctx, e.Job)
	if err != nil {
		return false, err
	}
	l.pool.SetTimeLimit(j.ID, j.Attempt, j.Limit()) // of what runs; a waiting job is read again
	n.jobs[e.Job] = true
	return true, nil
}

func (l *live) hearArray(ctx context.Context, n *news, e schema.Event) (bool, error) {
	var d store.ArrayLimit
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return false, err
	}
	of, err := l.db.QueuedOfArray(ctx, e.Tenant, d.Project, e.Subject)
	if err != nil {
		return false, err
	}
	for _, id := range of {
		n.jobs[id] = true
	}
	return true, nil
}

func (l *live) hearDevices(ctx context.Context, n *news, e schema.Event) (bool, error) {
	moved, err := l.db.LiveAttempt(ctx, e.Job)
	if err == nil && moved != nil {
		n.rebound = append(n.rebound, allocation(*moved))
	}
	return true, err
}

func (l *live) hearCheckpoint(_ context.Context, _ *news, e schema.Event) (bool, error) {
	attempt, err := attemptOf(e)
	if err == nil {
		l.pool.SetCheckpoint(e.Job, attempt, e.At.Time())
	}
	return false, err // nothing is decided by it alone
}

func (l *live) hearReleased(_ context.Context, n *news, e schema.Event) (bool, error) {
	attempt, err := attemptOf(e)
	if err != nil {
		return false, err
	}
	if !l.pool.Holds(e.Job) {
		n.abroad[e.Tenant] = true
	}
	l.pool.Release(e.Job, attempt, e.At.Time())
	n.jobs[e.Job] = true
	return true, nil
}

func attemptOf(e schema.Event) (int, error) {
	var d struct {
		Attempt int `json:"attempt"`
	}
	err := json.Unmarshal(e.Data, &d)
	return d.Attempt, err
}

// eventsRead is how many events are read at a time.
const eventsRead = 2000

// catchUp applies what has happened since: it reads again whatever an event names, in bulk.
func (l *live) catchUp(ctx context.Context) (changed bool, err error) {
	for {
		events, next, err := l.db.Events(ctx, l.at, eventsRead, store.EventFilter{Kinds: heardKinds})
		if err != nil {
			return changed, err
		}
		n := news{servers: map[string]bool{}, jobs: map[string]bool{}, abroad: map[string]bool{}}
		for _, e := range events {
			is, err := heard[e.Kind](l, ctx, &n, e)
			if err != nil {
				return changed, fmt.Errorf("event %d: %w", e.Seq, err)
			}
			changed = changed || is
		}
		l.pool.Rebind(n.rebound)
		if n.policy {
			if err := l.policy(ctx); err != nil {
				return changed, err
			}
		}
		if err := l.setServers(ctx, keys(n.servers)); err != nil {
			return changed, err
		}
		if err := l.setJobs(ctx, keys(n.jobs)); err != nil {
			return changed, err
		}
		l.at = next
		// A new month is read at once: what other regions have committed of it the engine can't know.
		if now := l.db.Now(); n.policy || len(l.budgets) > 0 && (now >= l.spentAt.Add(budgetLook) || now >= l.monthEnds && l.spentAt < l.monthEnds) {
			if err := l.setBudgets(ctx); err != nil {
				return changed, err
			}
			changed = true
		}
		if n.policy {
			for t := range l.limited() {
				if _, known := l.limits[t]; !known {
					n.abroad[t] = true
				}
			}
		}
		again, err := l.expectAgain(ctx)
		if err != nil {
			return changed, err
		}
		changed = changed || again
		read, err := l.elsewhere(ctx, keys(n.abroad))
		if err != nil {
			return changed, err
		}
		changed = changed || read
		if len(events) < eventsRead {
			return changed, nil
		}
	}
}
