package install

import (
	"context"
	"fmt"
	"strings"

	"gpupool/activities/temporalerr"
	"gpupool/schema"
)

// Going is how far a server's way out has come.
type Going struct {
	Over bool `json:"over"` // taken back, ended, or a repair of the server comes first
	Plan Plan `json:"plan"` // of its attempt; attempt 0: its jobs have not ended
}

// BeginRetiring moves a server whose jobs have ended to retiring, and gives the plan; before that the plan's attempt is 0.
func (a *Activities) BeginRetiring(ctx context.Context, server string) (Going, error) {
	if _, open, err := a.Store.OpenRepair(ctx, server); err != nil || open {
		return Going{Over: open}, temporalerr.Wrap(err)
	}
	r, err := a.Store.Retiring(ctx, server)
	if err != nil || r.ClosedAt != 0 || r.Attempt == 0 {
		return Going{Over: r.ClosedAt != 0}, temporalerr.Wrap(err)
	}
	v, err := a.Store.Server(ctx, server)
	if err != nil {
		return Going{}, temporalerr.Wrap(err)
	}
	steps, err := a.Store.StepRuns(ctx, v.ID, r.Attempt)
	for i := range steps {
		steps[i].Detail = ""
	}
	return Going{Plan: Plan{Server: v.ID, Name: v.Name, Site: v.Site, Model: v.Model, Vendor: VendorOf(v.Model), Attempt: r.Attempt, Began: a.Store.Now(), Steps: steps,
		Timing: a.Timing.WithDefaults(), Backend: v.Backend}}, temporalerr.Wrap(err)
}

// NodeLeft reports whether the server's cluster has let it go.
func (a *Activities) NodeLeft(ctx context.Context, in EndInput) (bool, error) {
	r, _, err := a.Store.Retirement(ctx, in.Server)
	return r.LeftAt != 0, temporalerr.Wrap(err)
}

// ArmSanitise lets the server's next network boot empty its disks.
func (a *Activities) ArmSanitise(ctx context.Context, in EndInput) (Armed, error) {
	t := a.Timing.WithDefaults()
	return Armed{At: a.Store.Now()}, temporalerr.Wrap(a.Store.ArmSanitise(ctx, in.Server, in.Attempt, t.power()+t.PhoneHome+t.Sanitise))
}

// Sanitised is how far a sanitise run has come.
type Sanitised struct {
	Begun   bool               `json:"begun"` // the run was heard of
	Over    bool               `json:"over"`
	Outcome schema.StepOutcome `json:"outcome"`
}

// SanitiseState reads it. A run that gave up is an error with reason FailInstaller.
func (a *Activities) SanitiseState(ctx context.Context, in EndInput) (Sanitised, error) {
	armed, ok, err := a.Store.Armed(ctx, in.Server)
	if err != nil || !ok || armed.Attempt != in.Attempt {
		return Sanitised{}, temporalerr.Wrap(err)
	}
	if armed.Failure != "" {
		gaveUp := schema.Conflict("the sanitise run gave up: "+armed.Failure, "put right what it names, then retry")
		return Sanitised{}, temporalerr.WithReason(gaveUp, string(schema.FailInstaller))
	}
	seen, err := a.Store.BootEvidence(ctx, in.Server, armed.At)
	if err != nil {
		return Sanitised{}, temporalerr.Wrap(err)
	}
	s := Sanitised{Over: armed.InstalledAt != 0}
	for _, e := range seen {
		s.Begun = s.Begun || strings.Contains(string(e.Data), `"install-report"`)
	}
	if s.Over {
		var all []schema.DriveCertificate
		if all, err = a.Store.DriveCertificates(ctx, in.Server, in.Attempt); err == nil {
			s.Outcome = judgeDrives(all)
		}
	}
	return s, temporalerr.Wrap(err)
}

// MissingDrives certifies what the BMC shows and the run has not found, and judges anew.
func (a *Activities) MissingDrives(ctx context.Context, in EndInput, shown []schema.DriveResult) (schema.StepOutcome, error) {
	all, err := a.Store.DriveCertificates(ctx, in.Server, in.Attempt)
	if err != nil {
		return schema.StepOutcome{}, temporalerr.Wrap(err)
	}
	told := map[string]bool{}
	for _, c := range all {
		told[strings.ToUpper(c.Serial)] = true
	}
	var missing []schema.DriveResult
	for _, d := range shown {
		if d.Serial != "" && !told[strings.ToUpper(d.Serial)] {
			d.Words = "the BMC shows it, and the sanitise run did not find it: it may hold data"
			missing = append(missing, d)
		}
	}
	if len(missing) > 0 {
		if err := a.Store.MissingDrives(ctx, in.Server, in.Attempt, missing); err != nil {
			return schema.StepOutcome{}, temporalerr.Wrap(err)
		}
		if all, err = a.Store.DriveCertificates(ctx, in.Server, in.Attempt); err != nil {
			return schema.StepOutcome{}, temporalerr.Wrap(err)
		}
	}
	return judgeDrives(all), nil
}

// judgeDrives goes by the newest certificate of each drive. A server without any disk proves nothing.
func judgeDrives(all []schema.DriveCertificate) schema.StepOutcome {
	count := map[schema.DriveOutcome]int{}
	seen := map[string]bool{}
	var bad []string
	for _, c := range all { // the newest first
		key := c.Serial + "/" + c.Name
		if c.Serial != "" {
			key = c.Serial
		}
		if seen[key] {
			continue
		}
		seen[key] = true
		count[c.Outcome]++
		if !c.Outcome.Good() {
			bad = append(bad, fmt.Sprintf("%s (serial %s): %s %s: %s", c.Name, c.Serial, c.Outcome, c.Trouble, c.Words))
		}
	}
	var words []string
	for _, o := range []schema.DriveOutcome{schema.DriveSanitised, schema.DriveOverwritten, schema.DriveFailed, schema.DriveMissing} {
		if count[o] > 0 {
			words = append(words, fmt.Sprintf("%d %s", count[o], o))
		}
	}
	switch {
	case len(seen) == 0:
		return schema.StepOutcome{Failure: &schema.StepFailure{Code: schema.FailSanitise, Retryable: true, Text: "the sanitise run found no disk at all. To do: is their controller's driver in the installer? Does the server boot from its network alone? Retry, or skip it with a reason where it has none"}}
	case bad != nil:
		return schema.StepOutcome{Failure: &schema.StepFailure{Code: schema.FailSanitise, Retryable: true, Text: fmt.Sprintf("of %d drives: %s. %s. To do: retry after a power cycle or in another slot, allow overwriting, or take the drive out, destroy it, and skip the step with that reason", len(seen), strings.Join(words, ", "), strings.Join(bad, "; "))}}
	}
	return schema.StepOutcome{Detail: fmt.Sprintf("%d drives: %s", len(seen), strings.Join(words, ", "))}
}

// FinishRetirement ends it.
func (a *Activities) FinishRetirement(ctx context.Context, in EndInput) error {
	return temporalerr.Wrap(a.Store.FinishRetirement(ctx, in.Server, in.Attempt))
}
