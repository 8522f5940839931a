package worker

import (
	"context"
	"errors"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
)

// stopped tells an activity that ended because its worker stops from one that failed: a clean stop logs no error. It is
// tried again elsewhere, or here after the start, as before.
type stopped struct {
	interceptor.WorkerInterceptorBase
}

// InterceptActivity looks at every activity's end.
func (*stopped) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &stoppedActivity{interceptor.ActivityInboundInterceptorBase{Next: next}}
}

type stoppedActivity struct {
	interceptor.ActivityInboundInterceptorBase
}

// ExecuteActivity does the act.
func (a *stoppedActivity) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	out, err := a.Next.ExecuteActivity(ctx, in)
	if !errors.Is(err, context.Canceled) {
		return out, err
	}
	select {
	case <-activity.GetWorkerStopChannel(ctx):
		return out, temporal.NewApplicationErrorWithOptions("its worker stopped", "WorkerStopped",
			temporal.ApplicationErrorOptions{Category: temporal.ApplicationErrorCategoryBenign, Cause: err})
	default:
		return out, err
	}
}
