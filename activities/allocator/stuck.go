package allocator

import (
	"gpupool/activities/allocator/engine"
	"gpupool/schema"
	"gpupool/schema/store"
)

// stuck fills in what people have to decide before a server and its accelerators can come back: they are kept out by an
// operator's cordon, by a repair that nobody could carry out, or by a fault that a breaker keeps from being repaired.
func stuck(s *engine.Server, n store.Node, open []repair) {
	mark := func(accelerator, what string) {
		if accelerator == "" {
			s.Stuck = what
		}
		for i := range s.Accelerators {
			if a := &s.Accelerators[i]; accelerator == "" || a.ID == accelerator {
				a.Stuck = what
			}
		}
	}
	if len(open) == 0 { // a repair takes what is held back with it
		for _, h := range n.Held {
			mark(h.Accelerator, "breaker "+h.Breaker+" is reset")
		}
	}
	for _, r := range open {
		if r.Owner == schema.OwnerOperators {
			mark("", "it is decided what becomes of repair "+r.ID+", which could not be carried out")
		}
	}
	for _, c := range n.Cordons {
		if c.Owner == schema.CordonOperator {
			mark(c.Accelerator, "the operator's cordon of "+s.ID+" is lifted")
		}
	}
}
