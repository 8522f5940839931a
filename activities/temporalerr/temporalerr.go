// Package temporalerr carries the domain's errors through Temporal: out of an activity or an update's handler, and
// back into what a caller can decide by.
//
// It decides one thing: whether trying again can help, by schema.Outcomes. Invariant: Unwrap(Wrap(err)) has err's
// code, field, message and hint. A cause stays behind: it may hold what a tenant must not see.
// Not here: what a failed step of a process means (see workflows).
package temporalerr

import (
	"context"
	"errors"

	"go.temporal.io/sdk/temporal"

	"gpupool/schema"
)

// detail is what crosses over. Reason is a narrower word than the code, where the failing part has one:
// bmc-unreachable, boot-mode-reverted.
type detail struct {
	Code    schema.ErrorCode `json:"code"`
	Field   string           `json:"field,omitempty"`
	Message string           `json:"message"`
	Hint    string           `json:"hint,omitempty"`
	Reason  string           `json:"reason,omitempty"`
}

// Wrap makes err an application error whose type is the domain's code, and which is tried again only where
// schema.Outcomes says that this can help. A cancellation and what is wrapped already stay as they are; an error that
// is not the domain's is CodeInternal. Wrap(nil) is nil.
func Wrap(err error) error { return wrap(err, "") }

// WithReason is Wrap with a narrower reason code; see Reason.
func WithReason(err error, reason string) error { return wrap(err, reason) }

func wrap(err error, reason string) error {
	var app *temporal.ApplicationError
	var cancelled *temporal.CanceledError
	if err == nil || errors.As(err, &app) || errors.As(err, &cancelled) || errors.Is(err, context.Canceled) {
		return err
	}
	d := detail{Code: schema.CodeInternal, Message: err.Error(), Reason: reason}
	var e *schema.Error
	if errors.As(err, &e) {
		d.Code, d.Field, d.Message, d.Hint = e.Code, e.Field, e.Message, e.Hint
	}
	return temporal.NewApplicationErrorWithOptions(err.Error(), string(d.Code), temporal.ApplicationErrorOptions{
		NonRetryable: !schema.Outcomes[d.Code].Retryable,
		Details:      []any{d},
	})
}

// Unwrap restores the domain's error from what a workflow, an activity or an update returned. What never was one
// comes back as it is.
func Unwrap(err error) error {
	d, ok := detailOf(err)
	if !ok {
		return err
	}
	return &schema.Error{Code: d.Code, Field: d.Field, Message: d.Message, Hint: d.Hint}
}

// Reason is the narrower reason code that WithReason gave, else "".
func Reason(err error) string {
	d, _ := detailOf(err)
	return d.Reason
}

func detailOf(err error) (detail, bool) {
	var app *temporal.ApplicationError
	var d detail
	if !errors.As(err, &app) || !app.HasDetails() || app.Details(&d) != nil || d.Code == "" {
		return detail{}, false
	}
	return d, true
}
