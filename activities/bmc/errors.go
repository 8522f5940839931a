package bmc

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/stmcginnis/gofish/schemas"

	"gpupool/schema"
)

// The kinds of failure that a caller decides by. Each error of this package is one of them, see errors.Is.
var (
	// ErrUnreachable: no answer, or none in time. Worth another try later.
	ErrUnreachable = errors.New("bmc unreachable")
	// ErrCredential: the BMC refused the login, or the breaker that keeps a refused one from being repeated is open.
	// Another try needs another secret.
	ErrCredential = errors.New("bmc refused the login")
	// ErrPasswordChange: the login works for nothing but changing its password (a factory default).
	ErrPasswordChange = errors.New("bmc wants its password changed first")
	// ErrUntrusted: the TLS key isn't the one that was pinned.
	ErrUntrusted = errors.New("bmc tls key changed")
	// ErrRefused: the BMC answered and said no.
	ErrRefused = errors.New("bmc refused the request")
	// ErrBusy: it said "not now" until patience ran out (POST window, 503).
	ErrBusy = errors.New("bmc is busy")
	// ErrNotFound: it has no such resource.
	ErrNotFound = errors.New("bmc has no such resource")
	// ErrBody: it answered with something that can't be read.
	ErrBody = errors.New("bmc sent a broken body")
	// ErrUnsupported: this machine can't do that; no request was sent.
	ErrUnsupported = errors.New("not supported by this bmc")
	// ErrNoHost: no system, or more than one, could be told to be the server itself.
	ErrNoHost = errors.New("bmc shows no host system")
	// ErrForeign: the system shows another server's serial; no change was sent to it.
	ErrForeign = errors.New("bmc shows another server there")
	// ErrNotProven: the request was accepted and the read-back doesn't show it.
	ErrNotProven = errors.New("bmc accepted the change and doesn't show it")
	// ErrModeReverted: the boot mode fell back to Legacy, twice. The reason code is boot-mode-reverted.
	ErrModeReverted = errors.New("boot-mode-reverted")
	// ErrTooOften: the server's power was taken away as often as may be within a day; no request was sent.
	ErrTooOften = errors.New("power cut too often")
	// ErrTaskFailed: a task of the BMC ended in failure.
	ErrTaskFailed = errors.New("bmc task failed")
)

// codes maps each kind to what the product's faces make of it: retryable or not, status, exit code.
var codes = map[error]schema.ErrorCode{
	ErrUnreachable:    schema.CodeUnavailable,
	ErrCredential:     schema.CodeConflict, // an operator must put another secret
	ErrPasswordChange: schema.CodeConflict,
	ErrUntrusted:      schema.CodeUnsafe,
	ErrRefused:        schema.CodeConflict,
	ErrBusy:           schema.CodeUnavailable,
	ErrNotFound:       schema.CodeNotFound,
	ErrBody:           schema.CodeUnavailable,
	ErrUnsupported:    schema.CodeConflict,
	ErrNoHost:         schema.CodeConflict,
	ErrForeign:        schema.CodeUnsafe,
	ErrNotProven:      schema.CodeUnavailable, // the verb is idempotent: trying it again can help
	ErrModeReverted:   schema.CodeConflict,
	ErrTaskFailed:     schema.CodeConflict,
	ErrTooOften:       schema.CodeConflict, // hands are needed
}

// Error is a failure at one BMC.
type Error struct {
	Kind      error  // one of the sentinels above
	Op        string // what was asked: "power on", "identify"
	Address   string // of the BMC, without credentials
	URI       string // the resource, "" when it is about none
	Status    int    // HTTP status, 0 without an answer
	MessageID string // last part of the Redfish MessageId: UnableToModifyDuringSystemPOST
	Args      []string
	Detail    string // the BMC's words, or ours
	Hint      string // what would be right, or what to do
	Err       error  // cause
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v", e.Address, e.Kind)
	if e.Op != "" {
		b.Reset()
		fmt.Fprintf(&b, "%s %s: %v", e.Op, e.Address, e.Kind)
	}
	if e.URI != "" {
		fmt.Fprintf(&b, " at %s", e.URI)
	}
	if e.Status != 0 {
		fmt.Fprintf(&b, " (%d %s)", e.Status, strings.TrimSpace(http.StatusText(e.Status)+" "+e.MessageID))
	}
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	if e.Err != nil && e.Detail == "" {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Hint != "" {
		fmt.Fprintf(&b, " (hint: %s)", e.Hint)
	}
	return b.String()
}

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// As lets schema.CodeOf and the faces see the product's own error.
func (e *Error) As(target any) bool {
	t, ok := target.(**schema.Error)
	if !ok {
		return false
	}
	code, ok := codes[e.Kind]
	if !ok {
		code = schema.CodeInternal
	}
	*t = &schema.Error{Code: code, Message: e.Error(), Err: e.Kind}
	return true
}

// maxDetail bounds what of a BMC's words goes into an error: some send a whole web page.
const maxDetail = 300

// refusal makes an error of an answer that isn't 2xx.
func (c *conn) refusal(op, uri string, err *schemas.Error) *Error {
	e := &Error{Kind: ErrRefused, Op: op, Address: c.address, URI: uri, Status: err.HTTPReturnedStatusCode}
	ids, words := messages(err)
	e.MessageID, e.Detail = strings.Join(ids, ","), words
	for _, x := range err.ExtendedInfos {
		e.Args = append(e.Args, x.MessageArgs...)
	}
	switch {
	case has(ids, "PasswordChangeRequired"):
		e.Kind, e.Hint = ErrPasswordChange, "set a new password for the account first"
	case e.Status == http.StatusUnauthorized:
		e.Kind = ErrCredential
	case e.Status == http.StatusNotFound:
		e.Kind = ErrNotFound
	case e.Status == http.StatusServiceUnavailable || e.Status == http.StatusTooManyRequests || e.Status == http.StatusBadGateway || e.Status == http.StatusGatewayTimeout:
		e.Kind = ErrBusy
	}
	return e
}

// messages gives the last parts of an error's MessageIds and its words, shortened.
func messages(err *schemas.Error) (ids []string, words string) {
	for _, x := range err.ExtendedInfos {
		if x.MessageID != "" {
			ids = append(ids, x.MessageID[strings.LastIndexByte(x.MessageID, '.')+1:])
		}
		if words == "" {
			words = x.Message
		}
	}
	if len(ids) == 0 && err.Code != "" {
		ids = append(ids, err.Code[strings.LastIndexByte(err.Code, '.')+1:])
	}
	if words == "" {
		words = err.Message
	}
	words = strings.Join(strings.Fields(words), " ")
	if len(words) > maxDetail {
		words = strings.ToValidUTF8(words[:maxDetail], "") + "…"
	}
	return ids, words
}

func has(ids []string, id string) bool {
	for _, x := range ids {
		if x == id {
			return true
		}
	}
	return false
}

// messageIs reports whether err is an answer that carries a Redfish message id.
func messageIs(err error, ids ...string) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	for _, id := range ids {
		if has(strings.Split(e.MessageID, ","), id) {
			return true
		}
	}
	return false
}

func statusIs(err error, statuses ...int) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	for _, s := range statuses {
		if e.Status == s {
			return true
		}
	}
	return false
}
