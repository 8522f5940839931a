// Package node is what a server's process asks of the server's agent: an inventory, drivers, the container runtime, a
// burn-in; and what the agent's answer means for the process.
//
// Invariants: a task's id is workflow, attempt, step and try, so that asking again asks once; a burn-in passes only by
// its own word "passed" over as many devices as were ordered, never by an exit code; large results stay in the record
// and only the verdict goes to the workflow. Not here: the agent (worker/agent), jobs' tasks (activities/job).
package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"go.temporal.io/sdk/worker"

	"gpupool/activities/install/profiles"
	"gpupool/activities/install/setups"
	"gpupool/activities/temporalerr"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

// Activities is registered with the core task queue; they run as local activities.
type Activities struct {
	Store *store.Store
	Suite string // of burn-ins that name none; empty = the agent's own choice
	// Setups are those by which servers get drivers and runtime; nil = nothing is installed, and all is proven.
	Setups setups.Catalogue
}

// Register adds the activities to a core worker.
func Register(w worker.ActivityRegistry, a *Activities) { w.RegisterActivity(a) }

// Ask is one piece of work for a server's agent.
type Ask struct {
	ID       string          `json:"id"`
	Workflow string          `json:"workflow"`
	Server   string          `json:"server"`
	Attempt  int             `json:"attempt"`
	Kind     schema.TaskKind `json:"kind"`
	Suite    string          `json:"suite,omitempty"` // burn-in; empty = the agent's own
	Only     []string        `json:"only,omitempty"`  // burn-in: the devices to test, empty = all; reset: those to reset, empty = all
	// NewSerial, for an inventory after a repair: the part that was put in must be there.
	NewSerial string `json:"new_serial,omitempty"`
	// OldSerial, for an inventory after a repair that put a new part in: it must be gone.
	OldSerial string `json:"old_serial,omitempty"`
}

// State is how far the work has come.
type State struct {
	Ended   bool                `json:"ended"`
	Claimed bool                `json:"claimed"` // the agent has it
	Outcome *schema.StepOutcome `json:"outcome,omitempty"`
	// Inconclusive says that a burn-in proved neither: one more try is fair.
	Inconclusive bool `json:"inconclusive,omitempty"`
}

// AskAgent gives the agent the work, once, and says how far it has come. It is both the asking and the looking.
func (a *Activities) AskAgent(ctx context.Context, in Ask) (State, error) {
	v, err := a.Store.Server(ctx, in.Server)
	if err != nil {
		return State{}, temporalerr.Wrap(err)
	}
	// What somebody has accepted that it lacks is not asked of it any more.
	ordered := v.Accelerators
	if v.Accelerators, err = a.Store.Expected(ctx, v); err != nil {
		return State{}, temporalerr.Wrap(err)
	}
	t, err := a.Store.Task(ctx, in.ID)
	if schema.Is(err, schema.CodeNotFound) {
		in.Suite = cmp.Or(in.Suite, a.Suite)
		payload, perr := a.payload(ctx, in, v)
		if schema.Is(perr, schema.CodeInvalid) { // the setup is gone since it was chosen
			return State{Ended: true, Outcome: failed(schema.FailTask, true, "%s. To do: put it back among the setups, or choose another and retry", perr)}, nil
		}
		if perr != nil {
			return State{}, temporalerr.Wrap(perr)
		}
		return State{}, temporalerr.Wrap(a.Store.QueueTask(ctx, schema.Task{ID: in.ID, Server: v.ID, Workflow: in.Workflow, Kind: in.Kind, Attempt: in.Attempt, Epoch: v.Epoch, Payload: string(payload)}))
	}
	if err != nil {
		return State{}, temporalerr.Wrap(err)
	}
	if t.State == schema.TaskDone && t.Kind == schema.TaskInventory {
		v.Accelerators = ordered
		return a.inventoried(ctx, in, v, t)
	}
	return judge(in, v, t), nil
}

// inventoried weighs an inventory against the order and what somebody has accepted.
func (a *Activities) inventoried(ctx context.Context, in Ask, v schema.Server, t schema.Task) (State, error) {
	out, seen := inventory(in, v, t)
	s := State{Ended: true, Claimed: true, Outcome: out}
	if out.Failure != nil {
		return s, nil
	}
	lines, err := a.Store.Ordered(ctx, v)
	if err != nil {
		return State{}, temporalerr.Wrap(err)
	}
	seen = append(seen, parts(lines, v, t)...)
	open, accepted, err := a.Store.WeighDifferences(ctx, v.ID, in.Attempt, schema.StepBurnIn, seen)
	weighed := schema.Weighed(out.Detail, open, accepted)
	s.Outcome = &weighed
	return s, temporalerr.Wrap(err)
}

// setup is the one that the server's present system was installed with.
func (a *Activities) setup(ctx context.Context, v schema.Server) (*setups.Profile, error) {
	if a.Setups == nil {
		return &setups.Profile{Name: setups.Default}, nil
	}
	runs, _, err := a.Store.RunningSystem(ctx, v.ID)
	if err != nil {
		return nil, err
	}
	values, err := runs.ProfileValues()
	if err != nil {
		return nil, err
	}
	return a.Setups.Find(values[profiles.SetupValue], vendorOf(v.Model))
}

func (a *Activities) payload(ctx context.Context, in Ask, v schema.Server) ([]byte, error) {
	switch in.Kind {
	case schema.TaskBurnIn:
		return json.Marshal(agentproto.BurnIn{Suite: in.Suite, Model: v.Model, Devices: v.Accelerators, Only: in.Only})
	case schema.TaskReset:
		return json.Marshal(agentproto.Reset{Devices: in.Only})
	case schema.TaskDrivers, schema.TaskRuntime:
		p, err := a.setup(ctx, v)
		if err != nil {
			return nil, err
		}
		return json.Marshal(agentproto.Setup{Profile: p.ID(), Vendor: vendorOf(v.Model), Steps: p.Steps(in.Kind)})
	case schema.TaskInventory:
		return []byte("{}"), nil
	default:
		return nil, schema.Invalid("kind", string(in.Kind), "inventory, drivers, runtime, burn-in or reset")
	}
}

// DropTask ends work that nobody waits for any more.
func (a *Activities) DropTask(ctx context.Context, id string) error {
	return temporalerr.Wrap(a.Store.CancelTask(ctx, id, 10*time.Second))
}

// Heard is when a server's agent was heard of.
type Heard struct {
	At     schema.Instant `json:"at"`
	BootID string         `json:"boot_id"`
}

// AgentHeard reads it.
func (a *Activities) AgentHeard(ctx context.Context, server string) (Heard, error) {
	v, err := a.Store.Server(ctx, server)
	return Heard{At: v.AgentSeen, BootID: v.BootID}, temporalerr.Wrap(err)
}

// judge says what a task's end means.
func judge(in Ask, v schema.Server, t schema.Task) State {
	s := State{Ended: t.State.Ended(), Claimed: t.Claimed != 0}
	if !s.Ended {
		return s
	}
	switch {
	case t.Kind == schema.TaskBurnIn:
		s.Outcome, s.Inconclusive = burnIn(v, t, in.Only)
	case t.State != schema.TaskDone:
		s.Outcome = failed(schema.FailTask, true, "%s ended as %s: %s", t.Kind, t.State, said(t))
	default:
		s.Outcome = &schema.StepOutcome{Detail: t.Text}
	}
	return s
}

func failed(code schema.FailureCode, retryable bool, format string, args ...any) *schema.StepOutcome {
	return &schema.StepOutcome{Failure: &schema.StepFailure{Code: code, Text: fmt.Sprintf(format, args...), Retryable: retryable}}
}

func said(t schema.Task) string {
	if t.Text == "" {
		return "the agent gave no words"
	}
	return t.Text
}
