package temporalerr_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/temporal"

	"gpupool/activities/temporalerr"
	"gpupool/schema"
)

func TestEveryCodeCrossesTemporalWithItsRetryability(t *testing.T) {
	t.Parallel()
	for code, outcome := range schema.Outcomes {
		in := &schema.Error{Code: code, Field: "serial", Message: "is wrong", Hint: "read the label"}
		out := temporalerr.Wrap(fmt.Errorf("enrolling: %w", in))
		var app *temporal.ApplicationError
		if !errors.As(out, &app) {
			t.Fatalf("%s: Wrap gave %T, want an application error", code, out)
		}
		if app.Type() != string(code) || app.NonRetryable() == outcome.Retryable {
			t.Fatalf("%s: type %q non-retryable %v, want %q and %v", code, app.Type(), app.NonRetryable(), code, !outcome.Retryable)
		}
		var got *schema.Error
		if !errors.As(temporalerr.Unwrap(out), &got) {
			t.Fatalf("%s: Unwrap gave %v", code, temporalerr.Unwrap(out))
		}
		if diff := cmp.Diff(in, got, cmp.AllowUnexported()); diff != "" {
			t.Fatalf("%s came back changed (-want +got):\n%s", code, diff)
		}
	}
}

func TestWhatIsNotTheDomainsStaysWhatItIs(t *testing.T) {
	t.Parallel()
	if temporalerr.Wrap(nil) != nil || temporalerr.Unwrap(nil) != nil {
		t.Fatal("no error became one")
	}
	if err := temporalerr.Wrap(context.Canceled); err != context.Canceled {
		t.Fatalf("a cancellation became %v", err)
	}
	plain := errors.New("disk is full")
	if got := temporalerr.Unwrap(plain); got != plain {
		t.Fatalf("Unwrap(%v) = %v", plain, got)
	}
	if code := schema.CodeOf(temporalerr.Unwrap(temporalerr.Wrap(plain))); code != schema.CodeInternal {
		t.Fatalf("a plain error has code %s, want internal", code)
	}
	err := temporalerr.WithReason(schema.Conflict("the mode fell back", ""), "boot-mode-reverted")
	if r := temporalerr.Reason(fmt.Errorf("activity: %w", err)); r != "boot-mode-reverted" {
		t.Fatalf("the reason is %q", r)
	}
}
