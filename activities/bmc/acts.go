package bmc

import (
	"context"

	"go.temporal.io/sdk/worker"

	"gpupool/activities/temporalerr"
	"gpupool/schema"
	"gpupool/schema/store"
)

// Record is what a person's act at a BMC asks of the record alone. It is registered with the core worker, so that it is
// kept even where no worker of the site runs.
type Record struct{ Store *store.Store }

// RegisterRecord adds it to a core worker.
func RegisterRecord(w worker.ActivityRegistry, r *Record) { w.RegisterActivity(r) }

// BMCActFailed ends an act that could not be done.
func (r *Record) BMCActFailed(ctx context.Context, act string, failure schema.StepFailure) error {
	code := schema.CodeUnavailable
	if !failure.Retryable {
		code = schema.CodeConflict
	}
	err := &schema.Error{Code: code, Message: failure.Text}
	if store.IsBMCProbe(act) {
		return temporalerr.Wrap(r.Store.EndBMCProbe(ctx, act, nil, err))
	}
	return temporalerr.Wrap(r.Store.EndBMCAct(ctx, act, nil, nil, err))
}
