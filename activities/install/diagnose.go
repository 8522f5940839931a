package install

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"gpupool/activities/temporalerr"
	"gpupool/pxe/boot"
	"gpupool/schema"
)

// DiagnoseInput is an install that did not phone home in time, and what the BMC shows of the server now.
type DiagnoseInput struct {
	Server   string         `json:"server"`
	Attempt  int            `json:"attempt"`
	Since    schema.Instant `json:"since"` // when it was armed: older evidence is another boot's
	Waited   time.Duration  `json:"waited"`
	Power    string         `json:"power"`
	Progress string         `json:"progress,omitempty"`
	Health   string         `json:"health,omitempty"`
	Override string         `json:"override,omitempty"`
	BMCError string         `json:"bmc_error,omitempty"`
	Console  string         `json:"console,omitempty"` // its last lines, where the BMC keeps them
}

// DiagnoseBoot says in words how far the boot came, what was not proven, and what to do.
func (a *Activities) DiagnoseBoot(ctx context.Context, in DiagnoseInput) (schema.StepFailure, error) {
	events, err := a.Store.BootEvidence(ctx, in.Server, in.Since)
	if err != nil {
		return schema.StepFailure{}, temporalerr.Wrap(err)
	}
	return diagnose(in, events), nil
}

// seen is what the evidence of one attempt adds up to. Each field is the newest event of its kind, if any.
type seen struct {
	discover, offer, ack, script, document, refused, loop *schema.BootEvidence
	firstStage                                            *schema.BootEvidence // a file, before any script
	kernel                                                *schema.BootEvidence // a file that the script named
	report                                                *schema.BootEvidence // of the installer
	disk                                                  bool                 // it was told to boot from disk
	written                                               bool                 // the installer said that it is done
	last                                                  schema.Event
	n                                                     int
}

func gather(events []schema.Event) seen {
	var s seen
	for _, e := range events {
		var b schema.BootEvidence
		if json.Unmarshal(e.Data, &b) != nil {
			continue
		}
		s.n++
		s.last = e
		switch b.Kind {
		case boot.KindDiscover, boot.KindRequest:
			s.discover = &b
		case boot.KindOffer, boot.KindProxy:
			s.offer = &b
		case boot.KindAck:
			s.ack = &b
		case boot.KindTFTP, boot.KindHTTP, boot.KindTFTPDenied:
			if s.script == nil {
				s.firstStage = &b
			} else {
				s.kernel = &b
			}
		case boot.KindScript:
			s.script, s.kernel, s.report = &b, nil, nil
			s.disk = strings.Contains(b.What, "boot from disk")
		case boot.KindDocument:
			s.document = &b
		case boot.KindReport:
			s.report = &b
			if b.What == string(schema.InstallDone) {
				s.written = true
			}
		case boot.KindToken, boot.KindRefused:
			s.refused = &b
		case boot.KindLoop:
			s.loop = &b
		}
	}
	return s
}

// diagnose reads the stages of a boot backwards: the furthest one that was proven says where it stopped.
func diagnose(in DiagnoseInput, events []schema.Event) schema.StepFailure {
	s := gather(events)
	f := schema.StepFailure{Code: schema.FailNoBoot, Retryable: true}
	var proven, not, do string
	switch {
	case s.refused != nil && s.document == nil:
		f.Code = schema.FailInstall
		proven = "the server booted from the network"
		not = fmt.Sprintf("that the install began: %s was refused (%s)", what(s.refused), s.refused.Result)
		do = "another machine on the provisioning network may have taken its script; find who has address " + s.refused.IP + ", then retry"
	case s.written:
		f.Code = schema.FailInstall
		proven = "the installer wrote the image and read it back"
		not = "that the installed system starts and its agent reaches the API: nobody phoned home"
		do = "read the server's console: does the firmware find the disk's boot loader (boot order, BIOS or UEFI)? Is the API's address, as the agent has it, right and reached, its clock and certificate good? Then retry"
	case s.report != nil:
		f.Code = schema.FailInstall
		proven = "the installer ran, and said last: " + s.report.Result
		not = "that it goes on"
		do = "read the server's console: a disk or network that hangs, a power cut; then retry"
	case s.document != nil:
		f.Code = schema.FailInstall
		proven = "the installer ran and fetched " + s.document.What
		not = "that the install ended: nobody phoned home"
		do = "read the server's console: disk not found, image download, wrong API address or clock; then retry"
	case s.loop != nil:
		f.Code = schema.FailBootLoop
		proven = "the server fetches its boot loader again and again"
		not = "that the boot loader runs"
		do = "does the firmware accept this boot loader (Secure Boot, architecture)? Retry afterwards"
	case s.script != nil && s.disk:
		proven = "the server asked for its script and was told to boot from disk (" + s.script.Result + ")"
		not = "that it was armed when it asked"
		do = "retry: the attempt is armed again"
	case s.script != nil && s.kernel != nil && missing(s.kernel):
		f.Code = schema.FailInstall
		proven = "the server took its install script and asked for " + s.kernel.What
		not = "that it has it (" + s.kernel.Result + ")"
		do = "put " + s.kernel.What + " into the boot service's folder (pxe.boot_dir), or correct the install profile; then retry"
	case s.script != nil && s.kernel != nil:
		f.Code = schema.FailInstall
		proven = fmt.Sprintf("the server took its install script and fetched %s (%d bytes, %s)", s.kernel.What, s.kernel.Bytes, s.kernel.Result)
		not = "that kernel and installer run: it asked for no document"
		do = "read the console: kernel panic, wrong arguments, no driver for its network card, memory; then retry"
	case s.script != nil:
		f.Code = schema.FailInstall
		proven = "the server took its install script"
		not = "that kernel and installer start: it fetched neither, and asked for no document"
		do = "read the console: is HTTP to the boot service open, does the boot loader understand its script? Then retry"
	case s.firstStage != nil && missing(s.firstStage):
		proven = fmt.Sprintf("the firmware (MAC %s) asked for its boot loader %s", s.firstStage.MAC, s.firstStage.What)
		not = "that it has it (" + s.firstStage.Result + ")"
		do = "put " + s.firstStage.What + " into the boot service's folder (pxe.boot_dir), or name another with pxe.stages; then retry"
	case s.firstStage != nil:
		f.Code = schema.FailInstall
		proven = fmt.Sprintf("the firmware fetched %s (%d bytes, %s)", s.firstStage.What, s.firstStage.Bytes, s.firstStage.Result)
		not = "that the boot loader runs: it never asked for its script"
		do = "does the firmware refuse the boot loader (Secure Boot, wrong architecture)? Is HTTP to the boot service open?"
	case s.ack != nil:
		proven = "the server has address " + s.ack.IP
		not = "that it fetched anything"
		do = "is TFTP (UDP 69, and the ports its answers come from) open between server and boot service?"
	case s.discover != nil:
		proven = "the server asked for an address (MAC " + s.discover.MAC + ")"
		not = "that an answer reached it" + because(s.discover)
		do = "is another DHCP server answering first? Does the relay or switch let the answers through?"
	case in.BMCError != "":
		f.Code = schema.FailBMC
		proven = "nothing: the BMC does not answer now (" + in.BMCError + ") and no boot was seen"
		not = "that the server has power"
		do = "look at the server and its BMC, then retry"
	case in.Power != "on":
		f.Code = schema.FailPower
		proven = "the power is " + in.Power + " though it was switched on"
		not = "that the server started"
		do = "look at power supplies, front panel and the BMC's event log, then retry"
	case in.Override != "":
		proven = "the power is on, and the boot override still stands (" + in.Override + "), so the firmware has not come to choosing what to boot"
		not = "that POST ended"
		do = "read the console: a hung POST, or a prompt that waits for a key; then retry"
	default:
		proven = "the power is on and the boot override was taken"
		not = "that it reached this boot service: no DHCP message of its MACs came"
		do = "does its boot interface have the MAC that was enrolled, with network boot enabled? Is the cable in the provisioning network, the relay set?"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "no phone-home within %s. Proven: %s. Not proven: %s. ", schema.Setting(in.Waited.Round(time.Second)), proven, not)
	if s.n > 0 {
		fmt.Fprintf(&b, "Last seen: %s at %s. ", last(s.last), s.last.At)
	}
	if in.BMCError == "" {
		fmt.Fprintf(&b, "Now: power %s%s%s. ", orUnknown(in.Power), worded(", boot progress ", in.Progress), worded(", health ", in.Health))
	}
	if in.Console != "" {
		fmt.Fprintf(&b, "The console said last: %s. ", in.Console)
	}
	f.Text = b.String() + "To do: " + do
	if !strings.HasSuffix(do, "?") {
		f.Text += "."
	}
	return f
}

// missing reports whether a file was asked for and not had since the boot service doesn't give it out.
func missing(e *schema.BootEvidence) bool {
	return e.Result == "no such file" || strings.HasPrefix(e.Result, "refused: outside") // as pxe/tftp and pxe/httpboot word it
}

func what(e *schema.BootEvidence) string {
	if e.What == "" {
		return "a script or document"
	}
	return e.What
}

func because(e *schema.BootEvidence) string {
	if e.Result == "" || e.Result == "ok" {
		return ""
	}
	return " (" + e.Result + ")"
}

func last(e schema.Event) string {
	var b schema.BootEvidence
	_ = json.Unmarshal(e.Data, &b) // it was read once already
	return strings.TrimSpace(b.Kind + " " + b.What)
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func worded(before, s string) string {
	if s == "" {
		return ""
	}
	return before + s
}
