package usage

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"gpupool/schema"
)

// State is what an installed accelerator's time was.
type State string

const (
	StateAllocated State = "allocated" // held by an attempt, whatever else is true
	StateIdle      State = "idle"      // free and good; held back for a gang counts here too
	StateUnhealthy State = "unhealthy" // suspect, failed, absent or unknown, or cordoned for a fault or an unconfirmed release
	StateReserved  State = "reserved"  // cordoned by an operator or for maintenance
	StateDraining  State = "draining"  // free, on a server that drains
	StateRepair    State = "repair"    // on a server in repair, being installed anew, or leaving
)

// States are all of them, in the order of reports.
var States = []State{StateAllocated, StateIdle, StateReserved, StateDraining, StateUnhealthy, StateRepair}

// StateOf is the state of an installed accelerator that no attempt holds.
func StateOf(phase schema.Phase, health schema.Health, cordons ...schema.CordonOwner) State {
	switch phase {
	case schema.PhaseAvailable, schema.PhaseDraining:
	case schema.PhaseEnrolled, schema.PhaseOnboarding, schema.PhaseRepairing, schema.PhaseRetiring, schema.PhaseRetired:
		return StateRepair
	}
	reserved := false
	for _, c := range cordons {
		switch c {
		case schema.CordonFault, schema.CordonRelease, schema.CordonCluster: // its cluster does not run jobs there
			return StateUnhealthy
		case schema.CordonOperator, schema.CordonMaintenance:
			reserved = true
		}
	}
	switch {
	case health != schema.HealthHealthy:
		return StateUnhealthy
	case phase == schema.PhaseDraining:
		return StateDraining
	case reserved:
		return StateReserved
	}
	return StateIdle
}

// Span is one accelerator for [Start, End) in one state that is not allocated; End 0 = it lasts. An installed accelerator's
// spans follow one another without a gap; what is allocated lies over them.
type Span struct {
	Accelerator string         `json:"accelerator"`
	Server      string         `json:"server"`
	State       State          `json:"state"`
	Start       schema.Instant `gorm:"column:start_at" json:"start"`
	End         schema.Instant `gorm:"column:end_at" json:"end"`
}

// Held is one accelerator held by an attempt for [Start, End); End 0 = it still is.
type Held struct {
	Accelerator string
	Start, End  schema.Instant
	By          string // the row: job/attempt/accelerator
}

// Finding is one place where the books don't balance.
type Finding struct {
	Kind         string         `json:"kind"` // see the Finding constants
	Accelerator  string         `json:"accelerator,omitempty"`
	At           schema.Instant `json:"at"` // the first moment of it
	Milliseconds int64          `json:"gpu_ms"`
	Text         string         `json:"text"`
}

// Kinds of findings.
const (
	FoundTwice       = "allocated-twice"     // two attempts hold one accelerator
	FoundUninstalled = "not-installed"       // held or in a state while it was not in the pool
	FoundStateless   = "in-no-state"         // installed, and the record says nothing of it
	FoundTwoStates   = "in-two-states"       //
	FoundStates      = "states-differ"       // the record of states is not what the events tell
	FoundUncharged   = "not-in-the-ledger"   // held and released, and no ledger row tells of it
	FoundUnheld      = "ledger-without-hold" // a ledger row of what nothing held
	FoundInterval    = "interval-differs"    // the ledger's interval is not the one that was held
	FoundRollup      = "rollup-differs"      // the hourly sums are not the ledger's
	FoundClock       = "clock"               // the clock was set
)

// Balance is the time of a set of accelerators by state. It is in balance where the parts sum to Installed.
type Balance struct {
	Installed int64 `json:"installed_gpu_ms"`
	Allocated int64 `json:"allocated_gpu_ms"`
	Idle      int64 `json:"idle_gpu_ms"`
	Reserved  int64 `json:"reserved_gpu_ms"`
	Draining  int64 `json:"draining_gpu_ms"`
	Unhealthy int64 `json:"unhealthy_gpu_ms"`
	Repair    int64 `json:"repair_gpu_ms"`
}

// Of is the part of one state.
func (b *Balance) Of(s State) *int64 {
	switch s {
	case StateAllocated:
		return &b.Allocated
	case StateIdle:
		return &b.Idle
	case StateReserved:
		return &b.Reserved
	case StateDraining:
		return &b.Draining
	case StateUnhealthy:
		return &b.Unhealthy
	case StateRepair:
		return &b.Repair
	}
	panic("no state " + string(s)) // a programming error
}

// Parts is the sum of all states.
func (b Balance) Parts() int64 {
	return b.Allocated + b.Idle + b.Reserved + b.Draining + b.Unhealthy + b.Repair
}

// Available is what could have been allocated: allocated, idle and reserved.
func (b Balance) Available() int64 { return b.Allocated + b.Idle + b.Reserved }

// Add adds o.
func (b *Balance) Add(o Balance) {
	b.Installed += o.Installed
	for _, s := range States {
		*b.Of(s) += *o.Of(s)
	}
}

// Conserve sums the time of every accelerator in w by three records that are kept apart: installed says when it was in the
// pool (State is ignored), spans in which state, held who had it. It adds up rows and does not paint over: what is recorded
// twice or not at all shows as a sum that is not what was installed, and as a finding that names the accelerator and the
// moment. key groups the sums; the same accelerator must have the same key.
func Conserve[K comparable](installed, spans []Span, held []Held, w Interval, key func(accelerator string) K) (map[K]Balance, []Finding) {
	type edge struct {
		at    schema.Instant
		what  int // 0 installed, 1 span, 2 held
		state State
		step  int
		by    string
	}
	edges := map[string][]edge{}
	add := func(acc string, start, end schema.Instant, e edge) {
		if end == 0 {
			end = w.End
		}
		in := Interval{start, end}.Cut(w)
		if in.Milliseconds() == 0 {
			return
		}
		e.at, e.step = in.Start, 1
		edges[acc] = append(edges[acc], e)
		e.at, e.step = in.End, -1
		edges[acc] = append(edges[acc], e)
	}
	for _, s := range installed {
		add(s.Accelerator, s.Start, s.End, edge{what: 0})
	}
	for _, s := range spans {
		add(s.Accelerator, s.Start, s.End, edge{what: 1, state: s.State})
	}
	for _, h := range held {
		add(h.Accelerator, h.Start, h.End, edge{what: 2, by: h.By})
	}
	sums := map[K]Balance{}
	var found []Finding
	for _, acc := range sortedKeys(edges) {
		list := edges[acc]
		slices.SortStableFunc(list, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.step, b.step)) })
		b := sums[key(acc)]
		var in, states, holds int
		by := map[string]int{}
		in1 := map[State]int{}
		last := -1 // the finding that goes on
		for i, e := range list {
			switch e.what {
			case 0:
				in += e.step
			case 1:
				states += e.step
				in1[e.state] += e.step
			case 2:
				holds += e.step
				if by[e.by] += e.step; by[e.by] == 0 {
					delete(by, e.by)
				}
			}
			if i+1 == len(list) || list[i+1].at == e.at {
				continue
			}
			ms := int64(list[i+1].at - e.at)
			b.Installed += ms * int64(in)
			b.Allocated += ms * int64(holds)
			if holds == 0 {
				for _, s := range States {
					*b.Of(s) += ms * int64(in1[s])
				}
			}
			f := Finding{Accelerator: acc, At: e.at, Milliseconds: ms}
			switch {
			case holds > 1:
				f.Kind, f.Text = FoundTwice, fmt.Sprintf("held by %v at once", sortedKeys(by))
			case holds > in:
				f.Kind, f.Text = FoundUninstalled, fmt.Sprintf("held by %v and not in the pool", sortedKeys(by))
			case states > in:
				f.Kind, f.Text = FoundUninstalled, "in a state and not in the pool"
				if states > 1 {
					f.Kind, f.Text = FoundTwoStates, "in several states at once"
				}
			case states < in:
				f.Kind, f.Text = FoundStateless, "in the pool and in no state"
			default:
				last = -1
				continue
			}
			if last >= 0 && found[last].Kind == f.Kind && found[last].Text == f.Text {
				found[last].Milliseconds += ms
				continue
			}
			found = append(found, f)
			last = len(found) - 1
		}
		sums[key(acc)] = b
	}
	return sums, found
}

// CapacityEvents are the kinds that Replay reads.
var CapacityEvents = []schema.EventKind{schema.EventAcceleratorSeen, schema.EventAcceleratorHealth, schema.EventAcceleratorInstalled, schema.EventAcceleratorGone,
	schema.EventServerPhase, schema.EventServerCordoned, schema.EventServerUncordoned}

// Replay works out, from the events alone and in their order, when each accelerator was installed and in which state it
// was. Its clock is the events', which per accelerator never goes back: an event that is older than the one before counts
// at that one's moment, and the events of one moment, as those of a transaction are, count as one change.
func Replay(events []schema.Event) (installed, spans []Span, err error) {
	type device struct {
		server    string
		health    schema.Health
		installed bool
		at        schema.Instant // of its last change
		in, span  int            // index of the open row + 1; 0 = none
	}
	type machine struct {
		phase   schema.Phase
		cordons map[[2]string]bool // accelerator or "", owner
	}
	devices, servers := map[string]*device{}, map[string]*machine{}
	onServer := map[string]map[string]bool{}
	server := func(id string) *machine {
		if servers[id] == nil {
			servers[id] = &machine{phase: schema.PhaseEnrolled, cordons: map[[2]string]bool{}}
		}
		return servers[id]
	}
	get := func(id string) *device {
		if devices[id] == nil {
			devices[id] = &device{health: schema.HealthUnknown}
		}
		return devices[id]
	}
	move := func(id, to string) {
		d := get(id)
		delete(onServer[d.server], id)
		if onServer[to] == nil {
			onServer[to] = map[string]bool{}
		}
		onServer[to][id], d.server = true, to
	}
	settle := func(id string, at schema.Instant) {
		d := devices[id]
		if !d.installed && d.in == 0 {
			return
		}
		m := server(d.server)
		at = max(at, d.at)
		in := d.installed && m.phase != schema.PhaseRetired
		if in && d.in == 0 {
			installed = append(installed, Span{Accelerator: id, Server: d.server, Start: at})
			d.in, d.at = len(installed), at
		}
		if !in && d.in > 0 {
			installed[d.in-1].End = at
			d.in, d.at = 0, at
		}
		var owners []schema.CordonOwner
		for c := range m.cordons {
			if c[0] == "" || c[0] == id {
				owners = append(owners, schema.CordonOwner(c[1]))
			}
		}
		state := StateOf(m.phase, d.health, owners...)
		if d.span > 0 {
			s := &spans[d.span-1]
			if in && s.State == state && s.Server == d.server {
				return
			}
			s.End = at
			d.span, d.at = 0, at
		}
		if in {
			spans = append(spans, Span{Accelerator: id, Server: d.server, State: state, Start: at})
			d.span, d.at = len(spans), at
		}
	}
	touched := map[string]bool{}
	for i, e := range events {
		var d struct {
			To          string `json:"to"`
			Owner       string `json:"owner"`
			Accelerator string `json:"accelerator"`
		}
		if len(e.Data) > 0 {
			if err := json.Unmarshal(e.Data, &d); err != nil {
				return nil, nil, fmt.Errorf("event %d (%s): %w", e.Seq, e.Kind, err)
			}
		}
		switch e.Kind {
		case schema.EventAcceleratorSeen:
			move(e.Subject, e.Server)
			touched[e.Subject] = true
		case schema.EventAcceleratorHealth:
			get(e.Subject).health = schema.Health(d.To)
			touched[e.Subject] = true
		case schema.EventAcceleratorInstalled:
			move(e.Subject, e.Server)
			get(e.Subject).installed = true
			touched[e.Subject] = true
		case schema.EventAcceleratorGone:
			get(e.Subject).installed = false
			touched[e.Subject] = true
		case schema.EventServerPhase:
			server(e.Server).phase = schema.Phase(d.To)
			for id := range onServer[e.Server] {
				touched[id] = true
			}
		case schema.EventServerCordoned:
			server(e.Server).cordons[[2]string{d.Accelerator, d.Owner}] = true
			for id := range onServer[e.Server] {
				touched[id] = true
			}
		case schema.EventServerUncordoned:
			delete(server(e.Server).cordons, [2]string{d.Accelerator, d.Owner})
			for id := range onServer[e.Server] {
				touched[id] = true
			}
		default: // the reader asks for CapacityEvents
		}
		if i+1 < len(events) && events[i+1].At == e.At {
			continue // of the same moment: no time passes between
		}
		for _, id := range sortedKeys(touched) {
			settle(id, e.At)
		}
		clear(touched)
	}
	return drop(installed), drop(spans), nil
}

// drop leaves out rows of no length: a state that lasted for nothing is none.
func drop(spans []Span) []Span {
	return slices.DeleteFunc(spans, func(s Span) bool { return s.End != 0 && s.End <= s.Start })
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// CompareSpans finds where the record of states is not what the events tell, within w.
func CompareSpans(record, told []Span, w Interval) []Finding {
	type at struct {
		acc   string
		start schema.Instant
	}
	cut := func(list []Span) map[at]Span {
		out := map[at]Span{}
		list = slices.Clone(list)
		slices.SortFunc(list, func(a, b Span) int {
			return cmp.Or(cmp.Compare(a.Accelerator, b.Accelerator), cmp.Compare(a.Start, b.Start))
		})
		var before *Span
		for _, s := range list {
			end := s.End
			if end == 0 {
				end = w.End
			}
			in := (Interval{s.Start, end}).Cut(w)
			if in.Milliseconds() == 0 {
				continue
			}
			now := Span{Accelerator: s.Accelerator, Server: s.Server, State: s.State, Start: in.Start, End: in.End}
			// A state that was left and entered again in one moment was not left.
			if b := before; b != nil && b.Accelerator == now.Accelerator && b.Server == now.Server && b.State == now.State && b.End == now.Start {
				now.Start = b.Start
			}
			out[at{now.Accelerator, now.Start}] = now
			before = &now
		}
		return out
	}
	kept, events := cut(record), cut(told)
	var found []Finding
	for k, s := range events {
		if r, ok := kept[k]; r != s {
			text := fmt.Sprintf("by the events %s until %s", s.State, s.End)
			if ok {
				text += fmt.Sprintf(", in the record %s until %s", r.State, r.End)
			}
			found = append(found, Finding{Kind: FoundStates, Accelerator: k.acc, At: k.start, Milliseconds: int64(s.End - s.Start), Text: text})
		}
	}
	for k, s := range kept {
		if _, ok := events[k]; !ok {
			found = append(found, Finding{Kind: FoundStates, Accelerator: k.acc, At: k.start, Milliseconds: int64(s.End - s.Start), Text: fmt.Sprintf("in the record %s until %s, of which the events tell nothing", s.State, s.End)})
		}
	}
	slices.SortFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Accelerator, b.Accelerator), cmp.Compare(a.At, b.At))
	})
	return found
}
