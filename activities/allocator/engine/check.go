package engine

import (
	"errors"
	"fmt"
)

// Errors of Check.
var (
	// ErrDoubleAllocation says that an accelerator is in two live allocations at once.
	ErrDoubleAllocation = errors.New("accelerator allocated twice")
	// ErrOverLimit says that an account holds more than its limit.
	ErrOverLimit = errors.New("held over the limit")
	// ErrBookkeeping says that a running sum differs from what it sums.
	ErrBookkeeping = errors.New("a sum does not recompute")
)

// Check recomputes from the live allocations alone what the state keeps as running sums, and joins everything that
// does not hold. Lowering a limit below what is held is not an error of the engine, but is reported as ErrOverLimit.
func (s *State) Check() error {
	var errs []error
	used := map[string]int64{}
	type key struct {
		accountKey
		model string
	}
	held := map[key]int64{}
	running := map[accountKey]int{}
	for _, live := range s.allocs {
		for _, al := range live {
			for _, dev := range al.accels {
				used[dev.id] += al.each()
			}
			for _, a := range s.chain(al.Tenant, al.Project) {
				running[a.accountKey]++
				for _, m := range modelKeys(al.model) {
					held[key{a.accountKey, m}] += al.milli
				}
			}
		}
	}
	for id, dev := range s.accels {
		if used[id] > whole {
			errs = append(errs, fmt.Errorf("%w: %s is held by %d allocations", ErrDoubleAllocation, id, len(dev.holders)))
		}
		if used[id] != dev.used {
			errs = append(errs, fmt.Errorf("%w: accelerator %s counts %d, holds %d thousandths",
				ErrBookkeeping, id, dev.used, used[id]))
		}
	}
	for ak, a := range s.accounts {
		if a.running != running[ak] {
			errs = append(errs, fmt.Errorf("%w: %s counts %d running, has %d", ErrBookkeeping, a.level(), a.running, running[ak]))
		}
		for m, h := range a.held {
			if sum := held[key{ak, m}]; sum != h.used {
				errs = append(errs, fmt.Errorf("%w: %s counts %g of %q, holds %g", ErrBookkeeping, a.level(), gpus(h.used), m, gpus(sum)))
			}
			if q := a.quotas[m]; q != nil && q.limit != NoLimit && h.used > q.limit {
				errs = append(errs, fmt.Errorf("%w: %s holds %g of %q, limit %g", ErrOverLimit, a.level(), gpus(h.used), m, gpus(q.limit)))
			}
		}
	}
	return errors.Join(append(errs, s.checkPools()...)...)
}

// checkPools recomputes the index that placement searches.
func (s *State) checkPools() []error {
	var errs []error
	for _, p := range s.pools {
		free, schedulable, members := 0, 0, 0
		for i, b := range p.bays {
			if b.slot != i || p.seen[i] != (glimpse{b.free, b.soon, b.whole}) {
				errs = append(errs, fmt.Errorf("%w: server %s is seen as %+v at %d, is at %d with %d free, the next at %d",
					ErrBookkeeping, b.srv.ID, p.seen[i], i, b.slot, b.free, b.soon))
			}
			n, ok := 0, 0
			for _, dev := range b.accels {
				if b.up && dev.ok {
					ok++
					if dev.used == 0 {
						n++
					}
				}
			}
			if n != b.free || ok != len(b.ready) {
				errs = append(errs, fmt.Errorf("%w: server %s counts %d free of %d, has %d of %d",
					ErrBookkeeping, b.srv.ID, b.free, len(b.ready), n, ok))
			}
			free, schedulable = free+n, schedulable+ok
			if b.class != nil {
				members++
			}
		}
		counted := 0
		for _, c := range p.classes {
			counted += c.n
		}
		if free != p.free || schedulable != p.schedulable || members != counted {
			errs = append(errs, fmt.Errorf("%w: pool %s counts %d free of %d in %d servers, has %d of %d in %d",
				ErrBookkeeping, p.model, p.free, p.schedulable, counted, free, schedulable, members))
		}
	}
	return errs
}
