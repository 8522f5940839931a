package api

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"time"

	"gpupool/schema/agentproto"
)

// replays remembers the requests of agents for as long as their signatures are good, so that one that was recorded can't be sent
// again. Only requests whose signature fits are remembered: strangers can't fill it.
//
// It is this process's: what was sent to another process behind the same name, or to this one before it began, can be sent here
// once more, until MaxSkew after it was signed. To refuse by the moment at which the process began would shut out each agent
// whose clock is behind. Not here: what a repeated request could do. Evidence, reports and tasks are told apart by their
// own numbers.
//
// mu guards all.
type replays struct {
	mu     sync.Mutex
	agents map[string]*heard
	swept  time.Time
}

// heard is what one agent has sent.
type heard struct {
	seen map[uint64]int64 // by the beginning of the signature, the moment in ms
	// floor is the latest moment of what had to be forgotten early: nothing that was signed then or before is taken.
	floor int64
}

// heardMost is how many requests of one agent are remembered at once. One that beats each five seconds and polls makes a hundred
// within MaxSkew.
const heardMost = 4096

// first reports whether a request with a good signature comes for the first time, and remembers it.
func (r *replays) first(server string, at time.Time, sig []byte, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := now.Add(-agentproto.MaxSkew).UnixMilli()
	if r.agents == nil {
		r.agents = map[string]*heard{}
	}
	if now.Sub(r.swept) > agentproto.MaxSkew {
		for id, h := range r.agents {
			if h.forget(old); len(h.seen) == 0 && h.floor < old {
				delete(r.agents, id)
			}
		}
		r.swept = now
	}
	h := r.agents[server]
	if h == nil {
		h = &heard{seen: map[uint64]int64{}}
		r.agents[server] = h
	}
	ms, key := at.UnixMilli(), binary.BigEndian.Uint64(sig)
	if _, again := h.seen[key]; again || ms <= h.floor {
		return false
	}
	if len(h.seen) >= heardMost {
		h.forget(old)
	}
	if len(h.seen) >= heardMost {
		moments := slices.Sorted(maps.Values(h.seen))
		h.floor = moments[len(moments)/2]
		h.forget(h.floor + 1)
		if ms <= h.floor {
			return false
		}
	}
	h.seen[key] = ms
	return true
}

// forget forgets what was signed before a moment.
func (h *heard) forget(before int64) {
	maps.DeleteFunc(h.seen, func(_ uint64, ms int64) bool { return ms < before })
}
