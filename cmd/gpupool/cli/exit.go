package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"gpupool/schema"
)

// Exit codes beside those of schema.Outcomes. They are part of the interface: scripts branch on them.
const (
	ExitOK           = 0
	ExitJobFailed    = 10 // the job ended as failed
	ExitJobCancelled = 11 // the job was cancelled
	ExitJobTimeout   = 12 // the job ran past its time limit
	ExitJobExpired   = 13 // the job was not started within its max queue time
	ExitStopped      = 20 // an onboarding stopped with a failure and waits for a person
	ExitWaitOver     = 21 // --timeout passed before what was waited for came
	ExitUnbalanced   = 22 // usage audit: the books are not what the events tell
	ExitWouldWait    = 23 // job submit --dry-run: the job would wait
	ExitInterrupted  = 130
)

// exitDocs is the list that the reference page shows; a test proves that no code is missing.
var exitDocs = []struct {
	Code int
	Text string
}{
	{ExitOK, "done; for waiting verbs: and what was waited for went well"},
	{1, "a fault of gpupool itself, here or in the pool"},
	{2, "the input is wrong: a flag, an argument, a file, or a value the pool refused; the message names the field"},
	{3, "not signed in, or the token's role may not do this"},
	{4, "there is no such thing, or it is not yours to see"},
	{5, "its state does not allow this (conflict, safety rule, or an idempotency key used again with another body)"},
	{6, "the pool or a part of it does not answer or is busy: trying again later can help"},
	{ExitJobFailed, "the job failed"},
	{ExitJobCancelled, "the job was cancelled"},
	{ExitJobTimeout, "the job ran past its time limit"},
	{ExitJobExpired, "the job was not started within its max queue time"},
	{ExitStopped, "an onboarding stopped with a failure; the message says which step and what can be done"},
	{ExitWaitOver, "the time given with --timeout passed first"},
	{ExitUnbalanced, "usage audit found a difference between the books and the events"},
	{ExitWouldWait, "job submit --dry-run: the job would wait"},
	{ExitInterrupted, "interrupted from the keyboard; what was started goes on in the pool"},
}

// exitError ends the command with a code of its own. Text may be empty: what there is to say was shown already.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

// usageError marks errors of cobra's own parsing, which have exit code 2.
type usageError struct{ error }

// Exit is the exit code of what a command returned.
func Exit(err error) int {
	var ee *exitError
	var ue usageError
	var se *schema.Error
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &ee):
		return ee.code
	case errors.Is(err, context.Canceled):
		return ExitInterrupted
	case errors.As(err, &ue):
		return schema.Outcomes[schema.CodeInvalid].Exit
	case errors.As(err, &se):
		if o, ok := schema.Outcomes[se.Code]; ok {
			return o.Exit
		}
	}
	return schema.Outcomes[schema.CodeInternal].Exit
}

// printError shows an error as: what is wrong, then the field, then what to do.
func printError(w io.Writer, err error) {
	var se *schema.Error
	switch text := err.Error(); {
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(w, "interrupted; what was started goes on in the pool")
	case text == "":
	case errors.As(err, &se):
		line := se.Message
		if se.Field != "" {
			line = se.Field + ": " + line
		}
		fmt.Fprintln(w, "error: "+line)
		hint := se.Hint
		if se.Code == schema.CodeUnauthenticated { // the API's own hint is for those who write requests
			hint = "gpupool login, or set GPUPOOL_TOKEN"
		}
		if hint != "" {
			fmt.Fprintln(w, "hint:  "+strings.ReplaceAll(hint, "\n", "\n       "))
		}
	default:
		fmt.Fprintln(w, "error: "+text)
	}
}

// jobExit is the exit code of a job's end.
func jobExit(s schema.JobState) int {
	switch s {
	case schema.JobCompleted:
		return ExitOK
	case schema.JobCancelled:
		return ExitJobCancelled
	case schema.JobTimeout:
		return ExitJobTimeout
	case schema.JobExpired:
		return ExitJobExpired
	default:
		return ExitJobFailed
	}
}
