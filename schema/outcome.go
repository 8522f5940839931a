package schema

import (
	"fmt"
	"strings"
)

// StepOutcome is what came of one step of a server's process, when the step could be carried through: a success with
// words, or a failure. What could not be carried through (a part does not answer) is an error instead.
type StepOutcome struct {
	Detail  string       `json:"detail,omitempty"`
	Failure *StepFailure `json:"failure,omitempty"`
}

// StepFailure is why a step stopped and waits for a person.
type StepFailure struct {
	Code      FailureCode `json:"code"`
	Text      string      `json:"text"` // what was proven, what was not, what to do
	Retryable bool        `json:"retryable"`
}

// Weighed is the outcome of a step that compared a server with its order: a failure that names each difference which nobody
// has accepted, else detail with those that somebody has.
func Weighed(detail string, open, accepted []Difference) StepOutcome {
	var words []string
	for _, d := range open {
		words = append(words, d.Words)
	}
	if len(words) > 0 {
		return StepOutcome{Failure: &StepFailure{Code: FailHardware, Retryable: true,
			Text: strings.Join(words, "; ") + ". To do: reseat or replace what is missing, then retry; or accept the server as it is, with a reason"}}
	}
	for _, d := range accepted {
		detail += fmt.Sprintf("; accepted by %s: %s %s in the place of %s (%s)", d.AcceptedBy, d.Item, d.Found, d.Ordered, d.Reason)
	}
	return StepOutcome{Detail: detail}
}

// FailureCode names why a step of onboarding or a repair stopped. A person's screen explains each.
type FailureCode string

const (
	FailIdentity      FailureCode = "identity-mismatch"  // the BMC is not the ordered server's
	FailHardware      FailureCode = "hardware-mismatch"  // fewer devices than ordered, or others
	FailBMC           FailureCode = "bmc-unreachable"    // no answer in time
	FailCredential    FailureCode = "bmc-credential"     // the login was refused: put another secret
	FailUntrusted     FailureCode = "bmc-untrusted"      // the TLS key changed
	FailBMCRefused    FailureCode = "bmc-refused"        // it answered no, or shows something else than was set
	FailBootMode      FailureCode = "boot-mode-reverted" // UEFI fell back to Legacy
	FailPower         FailureCode = "no-power"           // the power does not come on
	FailUnsafe        FailureCode = "unsafe"             // a safety rule refused the act
	FailNoBoot        FailureCode = "no-network-boot"    // no sign of a network boot
	FailBootLoop      FailureCode = "chain-loop"         // the boot loader is fetched again and again
	FailInstall       FailureCode = "install-timeout"    // it booted and has not phoned home
	FailInstaller     FailureCode = "install-failed"     // the installer gave up, and said why
	FailAgent         FailureCode = "agent-silent"       // the installed system's agent is not heard of
	FailTask          FailureCode = "task-failed"        // drivers or runtime could not be set up
	FailBurnIn        FailureCode = "burn-in-failed"     // a device failed a test
	FailInconclusive  FailureCode = "burn-in-inconclusive"
	FailDrainOverdue  FailureCode = "drain-overdue"       // a repair waits for jobs past its deadline
	FailRepairOverdue FailureCode = "repair-overdue"      // a repair waits for the technician past its time
	FailCouldNotFix   FailureCode = "could-not-fix"       // the technician gave it back
	FailSanitise      FailureCode = "sanitise-incomplete" // a drive may still hold data
	FailDeregister    FailureCode = "still-a-node"        // its cluster has not let it go
	FailInternal      FailureCode = "internal"            // a fault of ours
)
