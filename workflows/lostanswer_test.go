package workflows_test

import (
	"context"
	"errors"
	"testing"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
)

// andWithLostAnswers runs a story as it is, and once more with the first answer of every activity lost: what it did is
// done, and its worker died before it could say so. Each must be fit to be asked again.
func andWithLostAnswers(t *testing.T, story func(*testing.T, ...interceptor.WorkerInterceptor)) {
	t.Run("as it is", func(t *testing.T) { story(t) })
	t.Run("with lost answers", func(t *testing.T) { story(t, &losing{}) })
}

var errLost = errors.New("the worker died before it could answer")

type losing struct {
	interceptor.WorkerInterceptorBase
}

func (l *losing) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &losingActivity{interceptor.ActivityInboundInterceptorBase{Next: next}}
}

type losingActivity struct {
	interceptor.ActivityInboundInterceptorBase
}

func (l *losingActivity) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	v, err := l.Next.ExecuteActivity(ctx, in)
	switch info := activity.GetInfo(ctx); {
	case err == nil && info.IsLocalActivity: // the workflow task that it was part of is done again
		return l.Next.ExecuteActivity(ctx, in)
	case err == nil && info.Attempt == 1:
		return nil, errLost
	}
	return v, err
}
