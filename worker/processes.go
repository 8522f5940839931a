package worker

import (
	"context"
	"errors"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"gpupool/activities/temporalerr"
	"gpupool/api"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/workflows"
)

// processes are the API's verbs on durable processes: api.Processes.
type processes struct {
	store  *store.Store
	client client.Client
}

// StartOnboarding begins the attempt in the record, which refuses at once what may not be wiped; the event that tells of
// it starts the process.
func (p processes) StartOnboarding(ctx context.Context, v schema.Server, by string, o api.OnboardOptions) error {
	_, err := p.store.BeginOnboardingWith(ctx, v.ID, o.Profile, by)
	return err
}

// Reinstall begins the attempt in the record, as StartOnboarding does.
func (p processes) Reinstall(ctx context.Context, v schema.Server, by, reason string, o api.OnboardOptions) error {
	_, err := p.store.BeginReinstall(ctx, v.ID, o.Profile, reason, by)
	return err
}

func (p processes) RetryStep(ctx context.Context, v schema.Server, by string) error {
	return p.update(ctx, v, "onboarding", workflows.UpdateRetry, workflows.Retry{By: by})
}

func (p processes) SkipStep(ctx context.Context, v schema.Server, step schema.Step, reason, by string) error {
	return p.update(ctx, v, "onboarding", workflows.UpdateSkip, workflows.Skip{Step: step, Reason: reason, By: by})
}

func (p processes) AbortOnboarding(ctx context.Context, v schema.Server, by string) error {
	return p.update(ctx, v, "onboarding", workflows.UpdateAbort, workflows.Abort{By: by, Reason: "aborted by " + by})
}

func (p processes) AcceptDifferences(ctx context.Context, v schema.Server, ids []string, reason, by string) error {
	return p.update(ctx, v, "onboarding", workflows.UpdateAccept, workflows.Accept{Differences: ids, Reason: reason, By: by})
}

func (p processes) PauseOnboarding(ctx context.Context, v schema.Server, before schema.Step, reason, by string) error {
	return p.update(ctx, v, "onboarding", workflows.UpdatePause, workflows.Pause{Before: before, Reason: reason, By: by})
}

func (p processes) ContinueOnboarding(ctx context.Context, v schema.Server, by string) error {
	return p.update(ctx, v, "onboarding", workflows.UpdateContinue, workflows.Continue{By: by})
}

func (p processes) RepairDone(ctx context.Context, r schema.Repair, d api.RepairDone) error {
	v, err := p.store.Server(ctx, r.Server)
	if err != nil {
		return err
	}
	return p.update(ctx, v, "repair", workflows.UpdateDone, workflows.Done{OldSerial: d.OldSerial, NewSerial: d.NewSerial, Did: d.Did, Note: d.Note, By: d.By})
}

func (p processes) CouldNotFix(ctx context.Context, r schema.Repair, note, by string) error {
	v, err := p.store.Server(ctx, r.Server)
	if err != nil {
		return err
	}
	return p.update(ctx, v, "repair", workflows.UpdateCouldNotFix, workflows.CouldNotFix{Note: note, By: by})
}

// BurnIn begins it in the record; the event that tells of it starts the process.
func (p processes) BurnIn(ctx context.Context, v schema.Server, by string) (schema.Repair, error) {
	return p.store.BeginBurnIn(ctx, v.ID, by)
}

// update asks the server's running process; its validator's refusal comes back as the domain's error.
func (p processes) update(ctx context.Context, v schema.Server, kind, name string, arg any) error {
	h, err := p.client.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{WorkflowID: workflows.ServerID(v.ID), UpdateName: name, Args: []any{arg}, WaitForStage: client.WorkflowUpdateStageCompleted})
	if err == nil {
		err = h.Get(ctx, nil)
	}
	var gone *serviceerror.NotFound
	if errors.As(err, &gone) {
		return schema.Conflict("no "+kind+" of server "+v.Name+" runs", "the server is "+string(v.Phase))
	}
	var away *serviceerror.Unavailable
	if errors.As(err, &away) || errors.Is(err, context.DeadlineExceeded) {
		return &schema.Error{Code: schema.CodeUnavailable, Message: "the process of server " + v.Name + " did not answer", Hint: "try again in a moment", Err: err}
	}
	return temporalerr.Unwrap(err)
}
