package schema

import (
	"errors"
	"fmt"
	"strings"
)

// ErrorCode names a decision a caller can take; Outcomes maps each to its HTTP status, CLI exit code and whether
// repeating the same call can help.
type ErrorCode string

const (
	CodeInvalid         ErrorCode = "invalid"            // the request is wrong: field, value and what would be right
	CodeUnauthenticated ErrorCode = "unauthenticated"    // no valid credential
	CodeForbidden       ErrorCode = "forbidden"          // the credential's role may not do this
	CodeNotFound        ErrorCode = "not-found"          // does not exist, or is not the caller's to see
	CodeConflict        ErrorCode = "conflict"           // the thing is in a state that does not allow this
	CodeReused          ErrorCode = "idempotency-reused" // an idempotency key came again with another body
	CodeLimited         ErrorCode = "rate-limited"       // too many requests: try again later
	CodeUnavailable     ErrorCode = "unavailable"        // a part that is needed does not answer: try again later
	CodeStale           ErrorCode = "stale"              // written under an epoch or attempt that has passed
	CodeUnsafe          ErrorCode = "unsafe"             // a safety rule refused the act
	CodeInternal        ErrorCode = "internal"           // a fault of ours
)

// Outcome is how one error code appears at each of the product's faces.
type Outcome struct {
	HTTP      int  // status of the problem+json answer
	Exit      int  // exit code of the CLI
	Retryable bool // whether a Temporal activity that fails with it is tried again
}

// Outcomes is the one table from domain error to its faces. A test proves it complete.
var Outcomes = map[ErrorCode]Outcome{
	CodeInvalid:         {400, 2, false},
	CodeUnauthenticated: {401, 3, false},
	CodeForbidden:       {403, 3, false},
	CodeNotFound:        {404, 4, false},
	CodeConflict:        {409, 5, false},
	CodeReused:          {422, 5, false},
	CodeLimited:         {429, 6, true},
	CodeUnavailable:     {503, 6, true},
	CodeStale:           {409, 5, false},
	CodeUnsafe:          {409, 5, false},
	CodeInternal:        {500, 1, true},
}

// Error is an error that a person or a program can act on.
type Error struct {
	Code    ErrorCode
	Field   string // the input's field, as its sender wrote it; empty where it is not about one
	Message string // what is wrong, with the value; lower case, no full stop
	Hint    string // what would be right, or what to do
	Err     error  // the cause, if any; never shown to tenants
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Message)
	if e.Hint != "" {
		b.WriteString(" (" + e.Hint + ")")
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// Invalid is a CodeInvalid error: the field, the value it had, and what would be right.
func Invalid(field string, value any, right string) *Error {
	if value == "" {
		return &Error{Code: CodeInvalid, Field: field, Message: "is missing", Hint: right}
	}
	return &Error{Code: CodeInvalid, Field: field, Message: fmt.Sprintf("%v is not valid", quote(value)), Hint: right}
}

// OneOf says in words that a value is one of these; where there is none to choose, it says that.
func OneOf[T ~string](these []T) string {
	if len(these) == 0 {
		return "there is none yet"
	}
	s := make([]string, len(these))
	for i, t := range these {
		s[i] = string(t)
	}
	return "one of " + strings.Join(s, ", ")
}

// NotFound says that no thing of that kind has that name, for this caller.
func NotFound(kind, name string) *Error {
	return &Error{Code: CodeNotFound, Message: fmt.Sprintf("no %s %q", kind, name)}
}

// Conflict says that the thing's state does not allow the act, and what would.
func Conflict(message, hint string) *Error {
	return &Error{Code: CodeConflict, Message: message, Hint: hint}
}

// Unsafe says which safety rule refused the act.
func Unsafe(message, hint string) *Error {
	return &Error{Code: CodeUnsafe, Message: message, Hint: hint}
}

// Stale says that the writer's epoch or attempt has passed.
func Stale(message string) *Error { return &Error{Code: CodeStale, Message: message} }

// CodeOf is the code of the first *Error in err's chain; CodeInternal where there is none.
func CodeOf(err error) ErrorCode {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// Is reports whether err carries code.
func Is(err error, code ErrorCode) bool { return err != nil && CodeOf(err) == code }

func quote(v any) string {
	if s, ok := v.(string); ok {
		if len(s) > 80 {
			s = s[:80] + "…"
		}
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprint(v)
}
