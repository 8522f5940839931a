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
	Idle       time.Duration `json:"idle"`       // for a server with a suspect device to become idle by itself
	Drain      time.Duration `json:"drain"`      // for jobs to end that were asked to
	Silent     time.Duration `json:"silent"`     // an agent unheard of for this long is taken for dead: the power may be cut
	Technician time.Duration `json:"technician"` // before a waiting repair is told of as overdue; and again each time as long
	BMC        time.Duration `json:"bmc"`        // one act at the BMC, all tries together
	Off        time.Duration `json:"off"`        // between power off and on, in a power cycle: so that nothing is left charged
	Reset      time.Duration `json:"reset"`      // a reset by the server's agent
	AgentBack  time.Duration `json:"agent_back"` // for the agent to be heard of once the power is on
	Inventory  time.Duration `json:"inventory"`  // reading the devices
	BurnIn     time.Duration `json:"burn_in"`    // the whole suite
}

// DefaultTiming is for machines of metal.
var DefaultTiming = Timing{Idle: 24 * time.Hour, Drain: 15 * time.Minute, Silent: 10 * time.Minute, Technician: 24 * time.Hour, BMC: 15 * time.Minute,
	Off: 30 * time.Second, Reset: 5 * time.Minute, AgentBack: 20 * time.Minute, Inventory: 5 * time.Minute, BurnIn: 6 * time.Hour}

// WithDefaults fills in what is zero.
func (t Timing) WithDefaults() Timing {
	for _, f := range []struct{ have, def *time.Duration }{
		{&t.Idle, &DefaultTiming.Idle}, {&t.Drain, &DefaultTiming.Drain}, {&t.Silent, &DefaultTiming.Silent}, {&t.Technician, &DefaultTiming.Technician}, {&t.BMC, &DefaultTiming.BMC}, {&t.Off, &DefaultTiming.Off}, {&t.Reset, &DefaultTiming.Reset},
		{&t.AgentBack, &DefaultTiming.AgentBack}, {&t.Inventory, &DefaultTiming.Inventory}, {&t.BurnIn, &DefaultTiming.BurnIn},
	} {
		if *f.have == 0 {
			*f.have = *f.def
		}
	}
	return t
}

// until are the deadlines of a repair's states.
func (t Timing) until() store.Until {
	return store.Until{Reset: t.AgentBack + t.BMC, Technician: t.Technician, Proof: t.AgentBack + t.Inventory + 2*t.BurnIn}
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
	Repair   string             `json:"repair"`
	Server   string             `json:"server"`
	Name     string             `json:"name"`
	Site     string             `json:"site"`
	State    schema.RepairState `json:"state"`
	Part     string             `json:"part"`
	Location string             `json:"location"`
	Returns  int                `json:"returns"`
	Timing   Timing             `json:"timing"`
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
	return Plan{Repair: r.ID, Server: v.ID, Name: v.Name, Site: v.Site, State: r.State, Part: r.Part, Location: r.Location, Returns: r.Returns, Timing: a.Timing.WithDefaults()}, nil
}

// RepairIdle takes a server whose suspect is cordoned out of the pool once it holds no job, or when over says that the time for
// that has passed. It returns the repair's state.
func (a *Activities) RepairIdle(ctx context.Context, repair string, over bool) (schema.RepairState, error) {
	state, err := a.Store.RepairIdle(ctx, repair, over, a.Timing.WithDefaults().Idle)
	return state, temporalerr.Wrap(err)
}

// Reset is what is to be tried next.
type Reset struct {
	Cure    schema.Cure `json:"cure"`
	Devices []string    `json:"devices,omitempty"` // to be reset by the agent; all of the server's for its baseboard
	Silent  bool        `json:"silent,omitempty"`  // the agent can't be asked: it is not heard of
}

// NextReset reads what is to be tried, at the moment of the act. Where nothing is left, the repair waits for a technician from
// here on because of why.
func (a *Activities) NextReset(ctx context.Context, repair, why string) (Reset, error) {
	t := a.Timing.WithDefaults()
	c, err := a.Store.NextReset(ctx, repair, why, t.until())
	out := Reset{Cure: c}
	if err != nil || c != schema.CureDevice && c != schema.CureBaseboard {
		return out, temporalerr.Wrap(err)
	}
	r, err := a.Store.Repair(ctx, repair)
	if err != nil {
		return out, temporalerr.Wrap(err)
	}
	v, err := a.Store.Server(ctx, r.Server)
	if err != nil {
		return out, temporalerr.Wrap(err)
	}
	out.Silent = a.Store.Now().Sub(v.AgentSeen) >= t.Silent
	suspects, err := a.Store.Suspects(ctx, r.ID)
	if err != nil {
		return out, temporalerr.Wrap(err)
	}
	if c == schema.CureDevice {
		out.Devices = suspects
	}
	return out, nil
}

// ResetTried keeps what came of a reset.
func (a *Activities) ResetTried(ctx context.Context, repair string, c schema.Cure, done bool, how string) error {
	return temporalerr.Wrap(a.Store.ResetTried(ctx, repair, c, done, how, a.Timing.WithDefaults().until()))
}

// Next is the process that a server is to have when one of its processes ends.
type Next struct {
	Repair  string `json:"repair,omitempty"`  // an open repair
	Attempt int    `json:"attempt,omitempty"` // an onboarding that was begun
	Retire  bool   `json:"retire,omitempty"`  // it was asked to go
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
	out, ok, err := a.Store.Retirement(ctx, server)
	n.Retire = ok && out.ClosedAt == 0
	return n, temporalerr.Wrap(err)
}

// RepairState is the repair's state in the record.
func (a *Activities) RepairState(ctx context.Context, repair string) (schema.RepairState, error) {
	r, err := a.Store.Repair(ctx, repair)
	return r.State, temporalerr.Wrap(err)
}

// DrainState is how far a drain has come.
type DrainState struct {
	State schema.RepairState `json:"state"` // past draining, where no job is left
	// Silent is how long the server's agent has not been heard of.
	Silent time.Duration `json:"silent"`
	// Dead says that the evidence is the agent's silence, or a driver that hangs: jobs there can't end by themselves.
	Dead bool `json:"dead"`
}

// RepairDrained moves the repair on where no job is left.
func (a *Activities) RepairDrained(ctx context.Context, repair string) (DrainState, error) {
	state, err := a.Store.RepairDrained(ctx, repair, a.Timing.WithDefaults().until())
	d := DrainState{State: state}
	if err != nil || state != schema.RepairDraining {
		return d, temporalerr.Wrap(err)
	}
	r, err := a.Store.Repair(ctx, repair)
	if err != nil {
		return d, temporalerr.Wrap(err)
	}
	v, err := a.Store.Server(ctx, r.Server)
	if err != nil {
		return d, temporalerr.Wrap(err)
	}
	d.Silent = a.Store.Now().Sub(v.AgentSeen)
	faults, err := a.Store.RepairFaults(ctx, repair)
	for _, f := range faults {
		d.Dead = d.Dead || f.Kind == "agent-silent" || f.Kind == "driver-hang"
	}
	return d, temporalerr.Wrap(err)
}

// EndTasks ends what ran on a server whose power was proven off.
func (a *Activities) EndTasks(ctx context.Context, server, why string) error {
	return temporalerr.Wrap(a.Store.PoweredOff(ctx, server, why))
}

// CallPerson tells, once for each code, that a repair waits for a person, and for what.
func (a *Activities) CallPerson(ctx context.Context, repair string, code schema.FailureCode, text string) error {
	return temporalerr.Wrap(a.Store.RepairStuck(ctx, repair, string(code), text, a.Timing.WithDefaults().Technician))
}

// DoneInput is a technician's word that the work is done.
type DoneInput struct {
	Repair    string            `json:"repair"`
	OldSerial string            `json:"old_serial,omitempty"`
	NewSerial string            `json:"new_serial,omitempty"`
	Did       schema.RepairWork `json:"did,omitempty"`
	Note      string            `json:"note,omitempty"`
	By        string            `json:"by"`
}

// RepairDone keeps it, or refuses it with a reason.
func (a *Activities) RepairDone(ctx context.Context, in DoneInput) error {
	w := store.RepairWord{OldSerial: in.OldSerial, NewSerial: in.NewSerial, Did: in.Did, Note: in.Note, By: in.By}
	return temporalerr.Wrap(a.Store.RepairDone(ctx, in.Repair, w, a.Timing.WithDefaults().until()))
}

// RepairCouldNotFix keeps a technician's word that the work can't be done.
func (a *Activities) RepairCouldNotFix(ctx context.Context, in DoneInput) error {
	return temporalerr.Wrap(a.Store.RepairCouldNotFix(ctx, in.Repair, in.Note, in.By))
}

// Proof is what a verification starts from.
type Proof struct {
	State     schema.RepairState `json:"state"`
	NewSerial string             `json:"new_serial,omitempty"`
	OldSerial string             `json:"old_serial,omitempty"`
	Since     schema.Instant     `json:"since"` // the technician's word: what proves is newer
	Try       int                `json:"try"`   // how many proofs there were before, + 1
	// Only are the devices to be tested in depth, those that were touched; all are tested in short. Empty = all in depth.
	Only []string `json:"only,omitempty"`
}

// BeginProof reads it.
func (a *Activities) BeginProof(ctx context.Context, repair string) (Proof, error) {
	r, err := a.Store.Repair(ctx, repair)
	p := Proof{State: r.State, NewSerial: r.NewSerial, OldSerial: r.OldSerial, Since: r.DoneAt, Try: r.Returns + 1}
	if r.Did == schema.WorkReplaced && r.NewSerial != "" {
		p.Only = []string{r.NewSerial}
	}
	return p, temporalerr.Wrap(err)
}

// RepairUnproven ends a proof that failed: another reset is tried, where reset is set and one is left, or the technician is.
func (a *Activities) RepairUnproven(ctx context.Context, repair, why string, reset bool) (schema.RepairState, error) {
	state, err := a.Store.RepairUnproven(ctx, repair, why, reset, a.Timing.WithDefaults().until())
	return state, temporalerr.Wrap(err)
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
