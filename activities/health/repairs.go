package health

import (
	"context"
	"fmt"
	"time"

	"go.temporal.io/sdk/worker"

	"gpupool/activities/temporalerr"
	"gpupool/schema"
	"gpupool/schema/store"
)

// Timing is how long a repair waits before it calls a person. Zero fields take DefaultTiming's.
type Timing struct {
	Drain      time.Duration `json:"drain"`      // for jobs to end that were asked to
	Silent     time.Duration `json:"silent"`     // an agent unheard of for this long is taken for dead: the power may be cut
	Technician time.Duration `json:"technician"` // before a waiting repair is told of as overdue; and again each time as long
	BMC        time.Duration `json:"bmc"`        // one act at the BMC, all tries together
	AgentBack  time.Duration `json:"agent_back"` // for the agent to be heard of once the power is on
	Inventory  time.Duration `json:"inventory"`  // reading the devices
	BurnIn     time.Duration `json:"burn_in"`    // the whole suite
}

// DefaultTiming is for machines of metal.
var DefaultTiming = Timing{Drain: 15 * time.Minute, Silent: 10 * time.Minute, Technician: 24 * time.Hour, BMC: 15 * time.Minute,
	AgentBack: 20 * time.Minute, Inventory: 5 * time.Minute, BurnIn: 6 * time.Hour}

// WithDefaults fills in what is zero.
func (t Timing) WithDefaults() Timing {
	for _, f := range []struct{ have, def *time.Duration }{
		{&t.Drain, &DefaultTiming.Drain}, {&t.Silent, &DefaultTiming.Silent}, {&t.Technician, &DefaultTiming.Technician}, {&t.BMC, &DefaultTiming.BMC},
		{&t.AgentBack, &DefaultTiming.AgentBack}, {&t.Inventory, &DefaultTiming.Inventory}, {&t.BurnIn, &DefaultTiming.BurnIn},
	} {
		if *f.have == 0 {
			*f.have = *f.def
		}
	}
	return t
}

// Activities is registered with the core task queue; they run as local activities.
type Activities struct {
	Store  *store.Store
	Timing Timing // zero fields are DefaultTiming's
}

// Register adds the activities to a core worker.
func Register(w worker.ActivityRegistry, a *Activities) { w.RegisterActivity(a) }

// Plan is what a repair works by.
type Plan struct {
	Repair    string             `json:"repair"`
	Server    string             `json:"server"`
	Name      string             `json:"name"`
	Site      string             `json:"site"`
	State     schema.RepairState `json:"state"`
	Part      string             `json:"part"`
	Location  string             `json:"location"`
	OldSerial string             `json:"old_serial,omitempty"`
	Returns   int                `json:"returns"`
	// Hung says that it was opened because the agent fell silent: a power cycle may cure that, and is tried once.
	Hung   bool   `json:"hung"`
	Timing Timing `json:"timing"`
}

// BeginRepair reads it. A process that begins in the middle goes on from the state.
func (a *Activities) BeginRepair(ctx context.Context, repair string) (Plan, error) {
	r, err := a.Store.Repair(ctx, repair)
	if err != nil {
		return Plan{}, temporalerr.Wrap(err)
	}
	v, err := a.Store.Server(ctx, r.Server)
	if err != nil {
		return Plan{}, temporalerr.Wrap(err)
	}
	p := Plan{Repair: r.ID, Server: v.ID, Name: v.Name, Site: v.Site, State: r.State, Part: r.Part, Location: r.Location, OldSerial: r.OldSerial, Returns: r.Returns, Timing: a.Timing.WithDefaults()}
	faults, err := a.Store.Faults(ctx, v.ID)
	for _, f := range faults {
		if f.Repair == r.ID {
			p.Hung = f.Kind == "agent-silent" || f.Kind == "driver-hang" // the oldest, which opened it, is the last here
		}
	}
	return p, temporalerr.Wrap(err)
}

// Next is the process that a server is to have when one of its processes ends.
type Next struct {
	Repair  string `json:"repair,omitempty"`  // an open repair
	Attempt int    `json:"attempt,omitempty"` // an onboarding that was begun
}

// NextProcess reads it. What was opened while another process ran signalled that one, so it looks before it ends.
func (a *Activities) NextProcess(ctx context.Context, server string) (Next, error) {
	r, _, err := a.Store.OpenRepair(ctx, server)
	if err != nil {
		return Next{}, temporalerr.Wrap(err)
	}
	v, err := a.Store.Server(ctx, server)
	if err != nil {
		return Next{}, temporalerr.Wrap(err)
	}
	n := Next{Repair: r.ID}
	if v.Phase == schema.PhaseOnboarding {
		n.Attempt = v.Attempt
	}
	return n, nil
}

// DrainState is how far a drain has come.
type DrainState struct {
	Drained bool `json:"drained"`
	// Silent is how long the server's agent has not been heard of.
	Silent time.Duration `json:"silent"`
}

// RepairDrained moves the repair on to waiting for the technician where no job is left.
func (a *Activities) RepairDrained(ctx context.Context, repair string) (DrainState, error) {
	ok, err := a.Store.RepairDrained(ctx, repair)
	if err != nil || ok {
		return DrainState{Drained: ok}, temporalerr.Wrap(err)
	}
	r, err := a.Store.Repair(ctx, repair)
	if err != nil {
		return DrainState{}, temporalerr.Wrap(err)
	}
	v, err := a.Store.Server(ctx, r.Server)
	return DrainState{Silent: a.Store.Now().Sub(v.AgentSeen)}, temporalerr.Wrap(err)
}

// EndTasks ends what ran on a server whose power was proven off.
func (a *Activities) EndTasks(ctx context.Context, server, why string) error {
	return temporalerr.Wrap(a.Store.PoweredOff(ctx, server, why))
}

// CallPerson tells, once for each code, that a repair waits for a person, and for what.
func (a *Activities) CallPerson(ctx context.Context, repair string, code schema.FailureCode, text string) error {
	return temporalerr.Wrap(a.Store.RepairStuck(ctx, repair, string(code), text))
}

// DoneInput is a technician's word that the work is done.
type DoneInput struct {
	Repair    string `json:"repair"`
	OldSerial string `json:"old_serial,omitempty"`
	NewSerial string `json:"new_serial,omitempty"`
	Note      string `json:"note,omitempty"`
	By        string `json:"by"`
}

// RepairDone keeps it, or refuses it with a reason.
func (a *Activities) RepairDone(ctx context.Context, in DoneInput) error {
	return temporalerr.Wrap(a.Store.RepairDone(ctx, in.Repair, in.OldSerial, in.NewSerial, in.Note, in.By))
}

// RepairCouldNotFix keeps a technician's word that the work can't be done.
func (a *Activities) RepairCouldNotFix(ctx context.Context, in DoneInput) error {
	return temporalerr.Wrap(a.Store.RepairCouldNotFix(ctx, in.Repair, in.Note, in.By))
}

// RepairSelfCured goes on to the proof without a technician.
func (a *Activities) RepairSelfCured(ctx context.Context, repair, how string) error {
	return temporalerr.Wrap(a.Store.RepairSelfCured(ctx, repair, how))
}

// Proof is what a verification starts from.
type Proof struct {
	State     schema.RepairState `json:"state"`
	NewSerial string             `json:"new_serial,omitempty"`
	OldSerial string             `json:"old_serial,omitempty"`
	Since     schema.Instant     `json:"since"` // the technician's word: what proves is newer
	Try       int                `json:"try"`   // how many proofs there were before, + 1
}

// BeginProof reads it.
func (a *Activities) BeginProof(ctx context.Context, repair string) (Proof, error) {
	r, err := a.Store.Repair(ctx, repair)
	return Proof{State: r.State, NewSerial: r.NewSerial, OldSerial: r.OldSerial, Since: r.DoneAt, Try: r.Returns + 1}, temporalerr.Wrap(err)
}

// RepairUnproven sends the repair back to the technician.
func (a *Activities) RepairUnproven(ctx context.Context, repair, why string) error {
	return temporalerr.Wrap(a.Store.RepairUnproven(ctx, repair, why))
}

// RepairReturn lets the server back into the pool, if the store finds the proof good at this moment. What it refuses is an
// outcome: the server goes back to the technician.
func (a *Activities) RepairReturn(ctx context.Context, repair, burnIn string) (schema.StepOutcome, error) {
	err := a.Store.RepairReturn(ctx, repair, burnIn)
	if schema.Is(err, schema.CodeUnsafe) {
		return schema.StepOutcome{Failure: &schema.StepFailure{Code: schema.FailHardware, Text: err.Error(), Retryable: true}}, nil
	}
	return schema.StepOutcome{Detail: fmt.Sprintf("repair %s is proven", repair)}, temporalerr.Wrap(err)
}
