package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// BeginOnboarding moves an enrolled server to onboarding and takes the next attempt.
func (s *Store) BeginOnboarding(ctx context.Context, server string, by string) (schema.Server, error) {
	return s.begin(ctx, server, 0, "", by)
}

// BeginOnboardingWith is BeginOnboarding with another install profile than the server has; empty = its own. The two are
// one change: of several that begin at once, the one that is taken has the profile that it asked for.
func (s *Store) BeginOnboardingWith(ctx context.Context, server, profile, by string) (schema.Server, error) {
	if profile != "" && !NamePattern.MatchString(profile) {
		return schema.Server{}, schema.Invalid("profile", profile, "an install profile's name")
	}
	return s.begin(ctx, server, 0, profile, by)
}

// BeginReinstall takes a server that holds no job out of the pool and begins an onboarding of it, which wipes its disks. It
// refuses one that is protected, in repair, or neither available nor draining, in the transaction that begins; profile as in
// BeginOnboardingWith.
func (s *Store) BeginReinstall(ctx context.Context, server, profile, reason, by string) (schema.Server, error) {
	if profile != "" && !NamePattern.MatchString(profile) {
		return schema.Server{}, schema.Invalid("profile", profile, "an install profile's name")
	}
	if strings.TrimSpace(reason) == "" {
		return schema.Server{}, schema.Invalid("reason", reason, "why, in words: the next person reads it")
	}
	var v schema.Server
	err := s.Write(ctx, func(tx *Tx) error {
		var err error
		if v, err = tx.server(server); err != nil {
			return err
		}
		if v.Phase != schema.PhaseAvailable && v.Phase != schema.PhaseDraining {
			if v.Pause.HeldAt != 0 {
				return schema.Conflict(fmt.Sprintf("server %s is onboarding, and held before a step by %s", v.Name, v.Pause.By), "let it go on, or abort it: it is then enrolled, and can be onboarded")
			}
			return schema.Conflict(fmt.Sprintf("server %s is %s", v.Name, v.Phase), "a server that is available, or draining and without jobs, is installed again; an enrolled one is onboarded")
		}
		var open int64
		if err := tx.db.Raw("SELECT count(*) FROM repairs WHERE server = ? AND closed_at = 0", v.ID).Scan(&open).Error; err != nil {
			return err
		}
		if open > 0 {
			return schema.Unsafe("server "+v.Name+" drains for a repair", "it is installed again once the repair is closed")
		}
		if err := tx.destructible(v); err != nil {
			return err
		}
		why := "to be installed again: " + reason
		if v.Phase == schema.PhaseAvailable {
			if err := tx.setPhase(&v, schema.PhaseDraining, by, why); err != nil {
				return err
			}
		}
		if err := tx.setPhase(&v, schema.PhaseEnrolled, by, why); err != nil {
			return err
		}
		return tx.beginAttempt(&v, profile, by, why)
	})
	return v, err
}

// beginAttempt takes the next attempt of a server that may be wiped.
func (tx *Tx) beginAttempt(v *schema.Server, profile, by, why string) error {
	if err := tx.mustBeAllowed("", v.Site, v.Serial); err != nil {
		return err
	}
	v.Attempt++
	v.Epoch++
	v.Step = schema.StepVerifyBMC
	if profile != "" {
		v.Profile = profile
	}
	return tx.setPhase(v, schema.PhaseOnboarding, by, strings.TrimPrefix(fmt.Sprintf("%s; attempt %d", why, v.Attempt), "; "))
}

// BeginAttempt is BeginOnboarding with the number that the attempt shall have, so that asking again after a lost
// answer is asking once: the attempt that was begun is given again. Another number than the next is stale. 0 takes
// the next, whatever it is.
func (s *Store) BeginAttempt(ctx context.Context, server string, attempt int, by string) (schema.Server, error) {
	return s.begin(ctx, server, attempt, "", by)
}

func (s *Store) begin(ctx context.Context, server string, attempt int, profile, by string) (schema.Server, error) {
	var v schema.Server
	err := s.Write(ctx, func(tx *Tx) error {
		var err error
		if v, err = tx.server(server); err != nil {
			return err
		}
		if attempt > 0 && v.Phase == schema.PhaseOnboarding && v.Attempt == attempt {
			return nil
		}
		if attempt > 0 && v.Attempt != attempt-1 {
			return schema.Stale(fmt.Sprintf("server %s is at attempt %d: attempt %d can't begin", v.Name, v.Attempt, attempt))
		}
		if attempt == 0 && v.Phase == schema.PhaseOnboarding {
			return schema.Conflict("server "+v.Name+" is onboarding already", "watch it; where it has stopped, retry or skip the step, or abort")
		}
		if err := tx.destructible(v); err != nil {
			return err
		}
		return tx.beginAttempt(&v, profile, by, "")
	})
	return v, err
}

// destructible is the safety rule of every step that wipes or reboots: not protected, no job on it.
func (tx *Tx) destructible(v schema.Server) error {
	if v.Protected {
		return schema.Unsafe("server "+v.Name+" is protected", "lift the flag with unprotect, if it may really be wiped")
	}
	n, err := tx.liveAllocations(v.ID)
	if err != nil {
		return err
	}
	if n > 0 {
		return schema.Unsafe(fmt.Sprintf("server %s holds %d accelerators of live jobs", v.Name, n), "drain it first")
	}
	return nil
}

// MayDestroy checks, at the moment of the act, that this attempt may wipe or reboot the server: it is onboarding or retiring under
// this very attempt, not protected, holds no job, and its installed system has not phoned home yet: an attempt installs
// once. Call it in the place that acts, right before it acts.
func (s *Store) MayDestroy(ctx context.Context, server string, attempt int) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		return tx.mayDestroy(v, attempt)
	})
}

func (tx *Tx) mayDestroy(v schema.Server, attempt int) error {
	if err := underway(v, attempt); err != nil {
		return err
	}
	if v.Phase == schema.PhaseRetiring { // what is skipped there must not be another machine's end
		var verified int64
		if err := tx.db.Raw("SELECT count(*) FROM step_runs WHERE server = ? AND attempt = ? AND step = ? AND state = ?", v.ID, attempt, schema.StepVerifyBMC, schema.StepDone).Scan(&verified).Error; err != nil {
			return err
		}
		if verified == 0 {
			return schema.Unsafe(fmt.Sprintf("the BMC of server %s was not proven to be its own in this attempt", v.Name), "another machine might be emptied or switched off: skip this too, with a reason, and do it by hand")
		}
	}
	if v.Phase == schema.PhaseOnboarding { // what leaves is emptied whatever the list says by now
		if err := tx.mustBeAllowed("", v.Site, v.Serial); err != nil {
			return err
		}
	}
	var installed int64
	if err := tx.db.Raw("SELECT count(*) FROM agents WHERE server = ? AND attempt = ?", v.ID, attempt).Scan(&installed).Error; err != nil {
		return err
	}
	if installed > 0 {
		return schema.Stale(fmt.Sprintf("attempt %d has installed server %s already", attempt, v.Name))
	}
	return tx.destructible(v)
}

// MayReboot checks, at the moment of the act, that a repair may power the server off or on.
func (s *Store) MayReboot(ctx context.Context, server string) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if v.Phase != schema.PhaseRepairing && v.Phase != schema.PhaseRetiring {
			return schema.Unsafe(fmt.Sprintf("server %s is %s", v.Name, v.Phase), "only a server that is repairing or retiring is power-cycled")
		}
		return tx.destructible(v)
	})
}

// MayCutPower checks, at the moment of the act, that a repair may cut the power under jobs that live: their server drains
// for an open repair, and its agent has not been heard of for silent, so that they can't be ended or watched in any
// other way. With the power off they are proven to have ended; see PoweredOff.
func (s *Store) MayCutPower(ctx context.Context, server string, silent time.Duration) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		var open int64
		if err := tx.db.Raw("SELECT count(*) FROM repairs WHERE server = ? AND closed_at = 0", v.ID).Scan(&open).Error; err != nil {
			return err
		}
		switch heard := tx.now.Sub(v.AgentSeen); {
		case v.Protected:
			return schema.Unsafe("server "+v.Name+" is protected", "lift the flag with unprotect")
		case open == 0 || v.Phase != schema.PhaseDraining && v.Phase != schema.PhaseRepairing:
			return schema.Unsafe(fmt.Sprintf("server %s is %s and is not to be repaired", v.Name, v.Phase), "only a repair cuts the power under jobs")
		case heard < silent:
			return schema.Unsafe(fmt.Sprintf("the agent of server %s was heard of %s ago", v.Name, heard.Round(time.Second)), "its jobs can be ended without cutting the power")
		}
		return nil
	})
}

// PoweredOff ends every task of a server whose power is proven to be off: no process of them is left.
func (s *Store) PoweredOff(ctx context.Context, server, why string) error {
	return s.Write(ctx, func(tx *Tx) error {
		var open []schema.Task
		if err := tx.db.Where("server = ? AND ended = 0", server).Order("created, id").Find(&open).Error; err != nil {
			return err
		}
		for _, t := range open {
			if err := tx.report(server, agentproto.TaskReport{Task: t.ID, Seq: t.Seq + 1, State: schema.TaskFailed, Text: why, NoneLeft: true}); err != nil {
				return err
			}
		}
		// What ended before without proof that no process is left has that proof now.
		_, err := tx.exec("UPDATE tasks SET none_left = TRUE WHERE server = ? AND ended > 0 AND NOT none_left", server)
		return err
	})
}

// current refuses an onboarding attempt that has passed.
func current(v schema.Server, attempt int) error {
	if v.Phase != schema.PhaseOnboarding || v.Attempt != attempt {
		return schema.Stale(fmt.Sprintf("server %s is %s at attempt %d, not onboarding at attempt %d", v.Name, v.Phase, v.Attempt, attempt))
	}
	return nil
}

// SetStep records how far a step has come; each running after a failed or done is another try.
func (s *Store) SetStep(ctx context.Context, server string, attempt int, step schema.Step, state schema.StepState, detail string) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if err := underway(v, attempt); err != nil {
			return err
		}
		if err := tx.setStep(v, attempt, step, state, detail); err != nil {
			return err
		}
		v.Step = step
		if state == schema.StepRunning || state == schema.StepSkipped {
			v.FailureCode, v.FailureText, v.FailureRetryable = "", "", false
		}
		return tx.saveServer(&v)
	})
}

func (tx *Tx) setStep(v schema.Server, attempt int, step schema.Step, state schema.StepState, detail string) error {
	var r schema.StepRun
	err := tx.lock(&r, "server = ? AND attempt = ? AND step = ?", v.ID, attempt, step)
	if err != nil && !isNoRows(err) {
		return err
	}
	if err == nil && r.State == state && r.Detail == detail {
		return nil
	}
	fresh := err != nil
	r.Server, r.Attempt, r.Step = v.ID, attempt, step
	if state == schema.StepRunning && r.State != schema.StepRunning {
		r.Try, r.Started, r.Ended = r.Try+1, tx.now, 0
	}
	r.State, r.Detail = state, detail
	if state != schema.StepRunning {
		r.Ended = tx.now
	}
	tx.Emit(schema.Event{Kind: schema.EventServerStep, Subject: v.ID, Server: v.ID}, map[string]any{"attempt": attempt, "step": step, "state": state, "detail": detail, "try": r.Try})
	if fresh {
		return tx.db.Create(&r).Error
	}
	return tx.db.Save(&r).Error
}

// StepWaits says on the running step of a server's onboarding what it does or waits for now. Where no step runs, or it
// says so already, it changes nothing.
func (s *Store) StepWaits(ctx context.Context, server, text string) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		return tx.stepWaits(v, text)
	})
}

func (tx *Tx) stepWaits(v schema.Server, text string) error {
	if v.Phase != schema.PhaseOnboarding && v.Phase != schema.PhaseRetiring || v.Step == "" {
		return nil
	}
	var r schema.StepRun
	err := tx.lock(&r, "server = ? AND attempt = ? AND step = ?", v.ID, v.Attempt, v.Step)
	if isNoRows(err) || err == nil && r.State != schema.StepRunning {
		return nil
	}
	if err != nil {
		return err
	}
	return tx.setStep(v, v.Attempt, v.Step, schema.StepRunning, text)
}

// FailStep stops an onboarding at a step and says why; the workflow then waits for a person.
func (s *Store) FailStep(ctx context.Context, server string, attempt int, step schema.Step, code, text string, retryable bool) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if err := underway(v, attempt); err != nil {
			return err
		}
		if err := tx.setStep(v, attempt, step, schema.StepFailed, text); err != nil {
			return err
		}
		v.Step, v.FailureCode, v.FailureText, v.FailureRetryable = step, code, text, retryable
		tx.Emit(schema.Event{Kind: schema.EventServerFailure, Subject: v.ID, Server: v.ID}, map[string]any{"step": step, "code": code, "text": text, "retryable": retryable})
		return tx.saveServer(&v)
	})
}

// FinishOnboarding lets a server into the pool. The gate is checked here: burn-in of this attempt is done (or was
// skipped by name), and every accelerator ordered is there and not known to be bad.
func (s *Store) FinishOnboarding(ctx context.Context, server string, attempt int) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if v.Phase == schema.PhaseAvailable && v.Attempt == attempt {
			return nil // asked again
		}
		if err := current(v, attempt); err != nil {
			return err
		}
		var gate schema.StepRun
		if err := tx.lock(&gate, "server = ? AND attempt = ? AND step = ?", v.ID, attempt, schema.StepBurnIn); err != nil && !isNoRows(err) {
			return err
		}
		if gate.State != schema.StepDone && gate.State != schema.StepSkipped {
			return schema.Unsafe("server "+v.Name+" has not passed burn-in in this attempt", "unproven hardware is not let in")
		}
		if err := tx.setStep(v, attempt, schema.StepRegister, schema.StepDone, "in the pool"); err != nil {
			return err
		}
		if gate.State == schema.StepDone {
			if err := tx.markProven(v, "burn-in passed"); err != nil {
				return err
			}
			// What was never proven is no capacity: after a skipped burn-in its health stays unknown, and no heartbeat
			// makes it healthy.
			if err := tx.install(v); err != nil {
				return err
			}
		}
		if _, err := tx.exec("DELETE FROM armed WHERE server = ?", v.ID); err != nil {
			return err
		}
		v.Step = ""
		return tx.setPhase(&v, schema.PhaseAvailable, "onboarding", fmt.Sprintf("attempt %d passed every step", attempt))
	})
}

// AbortOnboarding ends an attempt after its undo: tokens are revoked, nothing is armed, the server is enrolled again.
func (s *Store) AbortOnboarding(ctx context.Context, server string, attempt int, by, why string) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if v.Phase == schema.PhaseEnrolled && v.Attempt == attempt {
			return nil
		}
		if err := current(v, attempt); err != nil {
			return err
		}
		if err := tx.disarm(v.ID, attempt); err != nil {
			return err
		}
		if v.Step != "" {
			if err := tx.setStep(v, attempt, v.Step, schema.StepUndone, why); err != nil {
				return err
			}
		}
		v.Step = ""
		return tx.setPhase(&v, schema.PhaseEnrolled, by, why)
	})
}

// StepRuns are the steps of an attempt in the order of onboarding; of the newest where attempt is 0.
func (s *Store) StepRuns(ctx context.Context, server string, attempt int) ([]schema.StepRun, error) {
	q := s.read(ctx).Where("server = ?", server)
	if attempt == 0 {
		q = q.Where("attempt = (SELECT attempt FROM servers WHERE id = ?)", server)
	} else {
		q = q.Where("attempt = ?", attempt)
	}
	var rows []schema.StepRun
	if err := q.Find(&rows).Error; err != nil {
		return nil, err
	}
	var out []schema.StepRun
	order := schema.Steps
	if slices.ContainsFunc(rows, func(r schema.StepRun) bool { return r.Step == schema.StepDeregister }) {
		order = schema.RetireSteps
	}
	for _, st := range order {
		for _, r := range rows {
			if r.Step == st {
				out = append(out, r)
			}
		}
	}
	return out, nil
}

// Identified records what the BMC says the server is.
func (s *Store) Identified(ctx context.Context, server, uuid, manufacturer, product string) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if v.UUID == uuid && v.Manufacturer == manufacturer && v.Product == product {
			return nil
		}
		v.UUID, v.Manufacturer, v.Product = uuid, manufacturer, product
		tx.Emit(schema.Event{Kind: schema.EventServerIdentified, Subject: v.ID, Server: v.ID}, map[string]any{"uuid": uuid, "manufacturer": manufacturer, "product": product})
		return tx.saveServer(&v)
	})
}
