package testpool

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"gpupool/api"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

var _ api.Processes = (*Pool)(nil)

// BadSerial begins the serial of a server whose burn-in fails at the first try.
const BadSerial = "BAD"

// BadAtOnce begins the serial of a part whose proof is over before the word of it is answered.
const BadAtOnce = BadSerial + "-AT-ONCE"

// spawn runs f beside the request that asked for it. Close waits for it.
func (p *Pool) spawn(f func(ctx context.Context) error) {
	p.wg.Go(func() {
		if err := f(context.Background()); err != nil {
			panic(fmt.Sprintf("testpool: %v", err)) // a test's helper that can't go on is a broken test
		}
	})
}

// StartOnboarding goes through the steps, quickly.
func (p *Pool) StartOnboarding(ctx context.Context, s schema.Server, by string, o api.OnboardOptions) error {
	v, err := p.Store.BeginOnboardingWith(ctx, s.ID, o.Profile, by)
	return p.begun(v, err)
}

// Reinstall goes through them again.
func (p *Pool) Reinstall(ctx context.Context, s schema.Server, by, reason string, o api.OnboardOptions) error {
	v, err := p.Store.BeginReinstall(ctx, s.ID, o.Profile, reason, by)
	return p.begun(v, err)
}

func (p *Pool) begun(v schema.Server, err error) error {
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.resumed[v.ID] = make(chan string, 1)
	p.mu.Unlock()
	p.spawn(func(ctx context.Context) error { return p.onboard(ctx, v) })
	return nil
}

func (p *Pool) onboard(ctx context.Context, v schema.Server) error {
	for _, step := range schema.Steps {
		if on, err := p.hold(ctx, v, step); err != nil || !on {
			return err
		}
		if step == schema.StepRegister {
			return p.Store.FinishOnboarding(ctx, v.ID, v.Attempt)
		}
		for try := 1; ; try++ {
			if err := p.Store.SetStep(ctx, v.ID, v.Attempt, step, schema.StepRunning, "at work"); err != nil {
				return err
			}
			if step == schema.StepProvision && try == 1 {
				if err := p.phoneHome(ctx, v); err != nil {
					return err
				}
			}
			if step == schema.StepInspect && strings.HasPrefix(v.Serial, LessMemory) {
				if out, err := p.inspect(ctx, v); err != nil || out.Failure != nil {
					if err == nil {
						err = p.Store.FailStep(ctx, v.ID, v.Attempt, step, string(out.Failure.Code), out.Failure.Text, true)
					}
					if err != nil {
						return err
					}
					if verb, ok := p.resume(v.ID); !ok || verb != "retry" {
						return nil
					}
					continue
				}
			}
			if step != schema.StepBurnIn || try > 1 || !strings.HasPrefix(v.Serial, BadSerial) {
				if err := p.Store.SetStep(ctx, v.ID, v.Attempt, step, schema.StepDone, "proven"); err != nil {
					return err
				}
				break
			}
			if err := p.Store.FailStep(ctx, v.ID, v.Attempt, step, "burn-in-failed", "memory bandwidth of SXM3 is 1.9 TB/s, the floor is 2.6 TB/s", true); err != nil {
				return err
			}
			verb, ok := p.resume(v.ID)
			if !ok {
				return nil
			}
			switch verb {
			case "abort":
				return p.Store.AbortOnboarding(ctx, v.ID, v.Attempt, "operator", "aborted")
			case "retry":
				continue
			}
			if err := p.Store.SetStep(ctx, v.ID, v.Attempt, step, schema.StepSkipped, verb); err != nil {
				return err
			}
			break
		}
	}
	return nil
}

// LessMemory begins the serial of a server that has less memory than was ordered.
const LessMemory = "LESS"

func (p *Pool) inspect(ctx context.Context, v schema.Server) (schema.StepOutcome, error) {
	open, accepted, err := p.Store.WeighDifferences(ctx, v.ID, v.Attempt, schema.StepInspect, []schema.Difference{{Item: "memory-by-bmc", Ordered: "2048 GiB", Found: "1984 GiB", Words: "the BMC shows 1984 GiB of the 2048 GiB of memory ordered"}})
	return schema.Weighed("power on", open, accepted), err
}

// hold stands before a step for as long as it is to; false where the onboarding ends there.
func (p *Pool) hold(ctx context.Context, v schema.Server, before schema.Step) (bool, error) {
	now, err := p.Store.Server(ctx, v.ID)
	if err != nil || now.Pause.At == 0 || now.Pause.Before != "" && now.Pause.Before != before {
		return err == nil, err
	}
	if err := p.Store.HoldOnboarding(ctx, v.ID, v.Attempt); err != nil {
		return false, err
	}
	switch verb, ok := p.resume(v.ID); {
	case !ok:
		return false, nil
	case verb == "abort":
		return false, p.Store.AbortOnboarding(ctx, v.ID, v.Attempt, "operator", "aborted")
	}
	return true, nil
}

// AcceptDifferences takes the server as it is, and the step looks again.
func (p *Pool) AcceptDifferences(ctx context.Context, s schema.Server, ids []string, reason, by string) error {
	if err := p.Store.AcceptDifferences(ctx, s.ID, s.Attempt, ids, reason, by); err != nil {
		return err
	}
	return p.answer(ctx, s, "retry")
}

// PauseOnboarding is held at the next step.
func (p *Pool) PauseOnboarding(ctx context.Context, s schema.Server, before schema.Step, reason, by string) error {
	return p.Store.PauseOnboarding(ctx, s.ID, s.Attempt, schema.Pause{Before: before, Reason: reason, By: by})
}

// ContinueOnboarding lets it go on.
func (p *Pool) ContinueOnboarding(ctx context.Context, s schema.Server, by string) error {
	v, err := p.Store.Server(ctx, s.ID)
	if err != nil {
		return err
	}
	if v.Pause.At == 0 {
		return schema.Conflict("the onboarding is not paused", "see the server's steps")
	}
	if err := p.Store.ContinueOnboarding(ctx, s.ID, s.Attempt, by); err != nil || v.Pause.HeldAt == 0 {
		return err
	}
	return p.tell(s, "continue")
}

// resume waits for the operator's verb; false where the pool has ended.
func (p *Pool) resume(server string) (string, bool) {
	p.mu.Lock()
	ch := p.resumed[server]
	p.mu.Unlock()
	select {
	case verb := <-ch:
		return verb, true
	case <-p.done:
		return "", false
	}
}

func (p *Pool) answer(ctx context.Context, s schema.Server, verb string) error {
	v, err := p.Store.Server(ctx, s.ID)
	if err != nil {
		return err
	}
	if v.Phase != schema.PhaseOnboarding || v.FailureCode == "" && (v.Pause.HeldAt == 0 || verb != "abort") {
		return schema.Conflict("server "+v.Name+" has no stopped step", "there is nothing to "+strings.Fields(verb)[0])
	}
	return p.tell(v, verb)
}

func (p *Pool) tell(v schema.Server, verb string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case p.resumed[v.ID] <- verb:
		return nil
	default:
		return schema.Conflict("server "+v.Name+" was told already", "")
	}
}

func (p *Pool) RetryStep(ctx context.Context, s schema.Server, _ string) error {
	return p.answer(ctx, s, "retry")
}

func (p *Pool) SkipStep(ctx context.Context, s schema.Server, step schema.Step, reason, by string) error {
	if step != schema.Step(s.Step) {
		return schema.Conflict(fmt.Sprintf("server %s stopped at %s, not at %s", s.Name, s.Step, step), "only the stopped step can be skipped")
	}
	return p.answer(ctx, s, "skipped by "+by+": "+reason)
}

func (p *Pool) AbortOnboarding(ctx context.Context, s schema.Server, _ string) error {
	return p.answer(ctx, s, "abort")
}

// phoneHome is the installed system's first word, with its devices.
func (p *Pool) phoneHome(ctx context.Context, v schema.Server) error {
	if err := p.Store.Arm(ctx, v.ID, v.Attempt, time.Minute, 0); err != nil {
		return err
	}
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(pub)
	hash := hex.EncodeToString(sum[:])
	if err := p.Store.MintBootToken(ctx, v.ID, v.Attempt, schema.PurposePhoneHome, hash, time.Minute); err != nil {
		return err
	}
	r := agentproto.Register{Server: v.ID, Attempt: v.Attempt, PublicKey: base64.StdEncoding.EncodeToString(pub), BootID: "boot-1", Serial: v.Serial}
	if err := p.Store.RegisterAgent(ctx, hash, r); err != nil {
		return err
	}
	_, err = p.Store.Heartbeat(ctx, v.ID, agentproto.Heartbeat{Apart: true, BootID: "boot-1", Devices: devices(v, "", "")})
	return err
}

// devices of a server; the serial old is replaced by fresh.
func devices(v schema.Server, old, fresh string) []agentproto.Device {
	out := make([]agentproto.Device, v.Accelerators)
	for i := range out {
		serial := fmt.Sprintf("%s-GPU%d", v.Serial, i+1)
		if serial == old && fresh != "" {
			serial = fresh
		}
		out[i] = agentproto.Device{Vendor: schema.VendorNVIDIA, Model: v.Model, Serial: serial, PCI: fmt.Sprintf("0000:%02x:00.0", 0x1b+i), Slot: fmt.Sprintf("SXM%d", i+1), Index: i, MemoryBytes: 80 << 30}
	}
	return out
}

// Break fails an accelerator by its slot and opens the repair that follows.
func (p *Pool) Break(ctx context.Context, server, slot string) (schema.Repair, error) {
	v, err := p.Store.Server(ctx, server)
	if err != nil {
		return schema.Repair{}, err
	}
	accs, err := p.Store.Accelerators(ctx, store.AcceleratorFilter{Server: v.ID})
	if err != nil {
		return schema.Repair{}, err
	}
	for _, a := range accs {
		if a.Slot != slot {
			continue
		}
		f := schema.Fault{Accelerator: a.ID, Source: "agent", Kind: "xid", Code: "79", Severity: schema.SeverityCritical, Text: "XID 79 on " + slot + ": the GPU has fallen off the bus", At: p.Store.Now(), Dedupe: a.ID + "/79"}
		if err := p.Store.ReportFault(ctx, v.ID, f); err != nil {
			return schema.Repair{}, err
		}
		faults, err := p.Store.Faults(ctx, v.ID)
		if err != nil {
			return schema.Repair{}, err
		}
		if _, err := p.Store.Judge(ctx, faults[0].ID, store.Verdict{Rule: "test", Action: schema.ActionRepair, Why: f.Text}); err != nil {
			return schema.Repair{}, err
		}
		r, _, err := p.Store.OpenRepair(ctx, v.ID)
		return r, err
	}
	return schema.Repair{}, schema.NotFound("accelerator in slot", slot)
}

// RepairDone proves the hardware: it fails where the new serial begins with BadSerial.
func (p *Pool) RepairDone(ctx context.Context, r schema.Repair, d api.RepairDone) error {
	if err := p.Store.RepairDone(ctx, r.ID, store.RepairWord{OldSerial: d.OldSerial, NewSerial: d.NewSerial, Did: d.Did, Note: d.Note, By: d.By}, store.Until{}); err != nil {
		return err
	}
	if strings.HasPrefix(d.NewSerial, BadAtOnce) {
		return p.prove(ctx, r, d.NewSerial)
	}
	p.spawn(func(ctx context.Context) error { return p.prove(ctx, r, d.NewSerial) })
	return nil
}

// CouldNotFix keeps the technician's word.
func (p *Pool) CouldNotFix(ctx context.Context, r schema.Repair, note, by string) error {
	return p.Store.RepairCouldNotFix(ctx, r.ID, note, by)
}

// BurnIn proves what is there.
func (p *Pool) BurnIn(ctx context.Context, v schema.Server, by string) (schema.Repair, error) {
	r, err := p.Store.BeginBurnIn(ctx, v.ID, by)
	if err == nil {
		p.spawn(func(ctx context.Context) error { return p.prove(ctx, r, "") })
	}
	return r, err
}

func (p *Pool) prove(ctx context.Context, r schema.Repair, fresh string) error {
	if strings.HasPrefix(fresh, BadSerial) {
		_, err := p.Store.RepairUnproven(ctx, r.ID, "burn-in failed on "+fresh, false, store.Until{})
		return err
	}
	v, err := p.Store.Server(ctx, r.Server)
	if err != nil {
		return err
	}
	list := devices(v, r.OldSerial, fresh)
	if _, err := p.Store.Heartbeat(ctx, v.ID, agentproto.Heartbeat{Apart: true, BootID: "boot-2", Devices: list}); err != nil {
		return err
	}
	proof := agentproto.BurnInResult{Outcome: "passed", Tests: []string{"memory"}}
	for _, d := range list {
		proof.Devices = append(proof.Devices, d.Serial)
	}
	result, err := json.Marshal(proof)
	if err != nil {
		return err
	}
	id := fmt.Sprintf("server/%s/repair/%s/%d", v.ID, r.ID, r.Returns)
	if err := p.Store.QueueTask(ctx, schema.Task{ID: id, Server: v.ID, Kind: schema.TaskBurnIn, Payload: "{}"}); err != nil {
		return err
	}
	if _, err := p.Store.ClaimTasks(ctx, v.ID); err != nil {
		return err
	}
	if _, err := p.Store.Report(ctx, v.ID, agentproto.Report{Tasks: []agentproto.TaskReport{{Task: id, Seq: 1, State: schema.TaskDone, Result: result, NoneLeft: true, At: p.Store.Now()}}}); err != nil {
		return err
	}
	return p.Store.RepairReturn(ctx, r.ID, id)
}
