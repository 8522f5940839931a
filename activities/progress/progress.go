// Package progress shows on a server's running onboarding step why an act of its process is being tried again: a person
// who watches sees what it waits for while it waits, not only once the time is up.
//
// Invariant: it changes the step's words and nothing else, and never the outcome of the act. Not here: what a step says at
// its begin and end (workflows), what an agent tells of its work (schema/store).
package progress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"

	"gpupool/activities/temporalerr"
	"gpupool/schema"
	"gpupool/schema/store"
)

// Interceptor is for the workers that run activities of servers' processes.
type Interceptor struct {
	interceptor.WorkerInterceptorBase
	Store *store.Store
	Log   *slog.Logger // nil = slog.Default()
}

// InterceptActivity looks at every activity's end.
func (i *Interceptor) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &inbound{ActivityInboundInterceptorBase: interceptor.ActivityInboundInterceptorBase{Next: next}, i: i}
}

type inbound struct {
	interceptor.ActivityInboundInterceptorBase
	i *Interceptor
}

// ExecuteActivity does the act; where it failed and will be tried again, the step says so.
func (a *inbound) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	out, err := a.Next.ExecuteActivity(ctx, in)
	info := activity.GetInfo(ctx)
	server, ok := strings.CutPrefix(info.WorkflowExecution.ID, "server/")
	if err == nil || !ok || info.IsLocalActivity || ctx.Err() != nil || !retried(err) {
		return out, err
	}
	if werr := a.i.Store.StepWaits(ctx, server, words(err, info, a.i.Store.Now())); werr != nil {
		log := a.i.Log
		if log == nil {
			log = slog.Default()
		}
		log.WarnContext(ctx, "the step could not say what it waits for", "server", server, "error", werr)
	}
	return out, err
}

// retried reports whether Temporal tries an act again that ended so.
func retried(err error) bool {
	var app *temporal.ApplicationError
	var cancelled *temporal.CanceledError
	switch {
	case errors.As(err, &cancelled):
		return false
	case errors.As(err, &app):
		return !app.NonRetryable()
	}
	return true
}

func words(err error, info activity.Info, now schema.Instant) string {
	text := err.Error()
	var e *schema.Error
	if errors.As(temporalerr.Unwrap(err), &e) {
		text = e.Error()
	}
	text = "waits: " + text + "; tried " + times(info.Attempt)
	if info.ScheduleToCloseTimeout > 0 {
		if left := schema.At(info.ScheduledTime).Add(info.ScheduleToCloseTimeout).Sub(now).Round(time.Second); left > 0 {
			text += fmt.Sprintf(", for %s more", left)
		}
	}
	return text
}

func times(n int32) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
