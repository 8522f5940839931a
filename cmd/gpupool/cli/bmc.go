package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"gpupool/activities/bmc"
	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

func (a *app) bmc() *cobra.Command {
	g := group("bmc", "Look at servers through their BMCs, and drive them",
		a.bmcShow(), a.bmcDoctor(), a.bmcIdentify(), a.bmcPower(), a.bmcBoot(), a.bmcLight(), a.bmcLogs(), a.bmcSensors(), a.bmcConsole(), a.bmcCapture(),
		a.bmcFirmware(), a.bmcMetrics(), a.bmcOrder(), a.bmcBIOS(), a.bmcMedia(),
		a.bmcCredential(), a.bmcRotate(), a.bmcLogin(), a.bmcTrust(), a.bmcReset(), a.bmcDiscover(), a.bmcFound(), a.bmcAllow())
	for _, c := range g.Commands() {
		if args := bmcExamples[c.Name()]; args != nil {
			c.Example = "  gpupool bmc " + c.Name() + " " + strings.Join(args, "\n  gpupool bmc "+c.Name()+" ")
		}
	}
	return g
}

// bmcExamples are the arguments of each verb's examples.
var bmcExamples = map[string][]string{
	"show": {"r1s1"}, "doctor": {"r1s1"}, "identify": {"r1s1", "r1s1 -o json"},
	"power":   {"r1s1", "r1s1 cycle --reason 'hangs in POST'", "r1s1 off --hard"},
	"boot":    {"r1s1", "r1s1 network"},
	"light":   {"r1s1 on"},
	"logs":    {"r1s1 --most 200"},
	"sensors": {"r1s1"}, "console": {"r1s1 --seconds 30"},
	"firmware": {"r1s1"}, "metrics": {"r1s1"},
	"order":      {"r1s1", "r1s1 Boot0003 Boot0001"},
	"bios":       {"r1s1", "r1s1 SRIOVEnable=true NumaNodes=2"},
	"media":      {"r1s1", "r1s1 http://10.0.0.5/rescue.iso", "r1s1 eject"},
	"capture":    {"r1s1 --file r1s1.tar.gz"},
	"credential": {"r1s1 --user admin --password-file /run/secrets/r1s1"},
	"rotate":     {"r1s1"}, "login": {"r1s1"},
	"trust": {"r1s1 --key 5f1c3f0c8d2b4c8f9d0e7a6b5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a8b7c6d"},
	"reset": {"r1s1"},
}

// ask has a BMC do something and waits until it is done. A failure is the act's own, with its code.
func (a *app) ask(cmd *cobra.Command, server string, in contract.NewBMCAct) (schema.BMCAct, error) {
	c, err := a.connect()
	if err != nil {
		return schema.BMCAct{}, err
	}
	act, err := call.Do[schema.BMCAct](c.AskBMC(cmd.Context(), server, in))
	for err == nil && act.EndedAt == 0 {
		act, err = again(cmd, func() (schema.BMCAct, error) {
			return call.Do[schema.BMCAct](c.GetBMCAct(cmd.Context(), act.ID, &contract.GetBMCActParams{Since: &act.Version, Wait: opt(longPoll.String())}))
		})
	}
	if err == nil && act.Failure != "" {
		err = &schema.Error{Code: act.FailureCode, Message: act.Failure}
	}
	return act, err
}

// result is what an act gave, in its own shape.
func result[T any](act schema.BMCAct) (T, error) {
	var v T
	err := json.Unmarshal(act.Result, &v)
	return v, err
}

// bmcVerb is a verb that asks one thing and shows what came of it.
func (a *app) bmcVerb(use, short string, args cobra.PositionalArgs, in func(args []string) (contract.NewBMCAct, error), show func(w io.Writer, name string, act schema.BMCAct) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
		what, err := in(args)
		if err != nil {
			return err
		}
		act, err := a.ask(cmd, args[0], what)
		if err != nil {
			return err
		}
		if a.json() {
			return printJSON(cmd.OutOrStdout(), act)
		}
		return show(cmd.OutOrStdout(), args[0], act)
	}}
}

func just(verb schema.BMCVerb) func([]string) (contract.NewBMCAct, error) {
	return func([]string) (contract.NewBMCAct, error) { return contract.NewBMCAct{Verb: verb}, nil }
}

// saying shows one sentence about the server.
func saying(format string) func(io.Writer, string, schema.BMCAct) error {
	return func(w io.Writer, name string, _ schema.BMCAct) error {
		_, err := fmt.Fprintln(w, words.Printable(fmt.Sprintf(format, name), false))
		return err
	}
}

func (a *app) bmcShow() *cobra.Command {
	return &cobra.Command{Use: "show NAME", Short: "Show what the record has of a server's BMC; nothing is asked of the BMC itself", Args: exactly("NAME"), RunE: func(cmd *cobra.Command, args []string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		b, err := call.Do[contract.BMC](c.GetBMC(cmd.Context(), args[0]))
		if err != nil {
			return err
		}
		if a.json() {
			return printJSON(cmd.OutOrStdout(), b)
		}
		now := nowInstant()
		f := fields{cmd.OutOrStdout()}
		f.put("Address", b.Address+" ("+b.Protocol+")")
		f.put("User", b.Username)
		if b.PasswordChangedAt != 0 {
			f.put("Password", "changed "+words.Ago(b.PasswordChangedAt, now))
		}
		if b.RotationPending {
			f.put("Rotation", "was cut off; the next one ends it: gpupool bmc rotate "+args[0])
		}
		f.put("Trusted key", words.Or(b.TlsKey))
		if b.OfferedKey != "" {
			f.put("Offered key", b.OfferedKey+", refused. If the BMC was replaced or its certificate renewed:\ngpupool bmc trust "+args[0]+" --key "+b.OfferedKey)
		}
		s := b.Sighting
		f.put("Power", s.Power)
		f.put("Boot progress", s.Progress)
		f.put("Health", s.Health)
		if s.Trouble != schema.BMCFine {
			f.put("Trouble", string(s.Trouble)+": "+s.Text)
		}
		if s.At != 0 {
			f.put("Since", words.Ago(s.Since, now))
		}
		return nil
	}}
}

func (a *app) bmcDoctor() *cobra.Command {
	cmd := a.bmcVerb("doctor NAME", "Check everything that is needed of a BMC, and say what is wrong", exactly("NAME"), just(schema.BMCDoctor), func(w io.Writer, name string, act schema.BMCAct) error {
		d, err := result[bmc.Diagnosis](act)
		if err != nil {
			return err
		}
		t := newTable("CHECK", "STATE", "WHAT")
		for _, x := range d.Findings {
			text := x.Text
			if x.Hint != "" {
				text += " -> " + x.Hint
			}
			t.row(x.Check, string(x.State), text)
		}
		t.write(w, "")
		if !d.Usable {
			return &exitError{ExitStopped, "the BMC of " + name + " can't be worked with"}
		}
		return nil
	})
	cmd.Long = "Check everything that is needed of a BMC: reach, TLS key, login, lockout, host system, identity, clock, power, boot override, accelerators, events, logs. It changes nothing. The exit code is 20 where a check failed."
	return cmd
}

func (a *app) bmcIdentify() *cobra.Command {
	return a.bmcVerb("identify NAME", "Ask the BMC what the server is", exactly("NAME"), just(schema.BMCIdentify), func(w io.Writer, _ string, act schema.BMCAct) error {
		id, err := result[bmc.Told](act)
		if err != nil {
			return err
		}
		f := fields{w}
		f.put("Hardware", strings.TrimSpace(id.Manufacturer+" "+id.Model))
		f.put("Serial", id.Serial)
		f.put("UUID", id.UUID)
		f.put("BIOS", id.BIOS)
		f.put("BMC firmware", id.BMCFirmware)
		f.put("MACs", strings.Join(id.MACs, " "))
		f.put("Quirks", strings.Join(id.Quirks, " "))
		f.put("Accelerators", string(id.Shows))
		f.put("Unread", strings.Join(id.Unread, "\n"))
		if len(id.GPUs) > 0 {
			fmt.Fprintln(w)
			t := newTable("SLOT", "MODEL", "SERIAL", "STATE", "HEALTH", "FIRMWARE")
			for _, g := range id.GPUs {
				t.row(g.Slot, g.Model, g.Serial, g.State, g.Health, g.Firmware)
			}
			t.write(w, "")
		}
		return nil
	})
}

func (a *app) bmcPower() *cobra.Command {
	var hard bool
	var reason string
	cmd := a.bmcVerb("power NAME [on|off|cycle|ac-cycle]", "Read the power, or switch it; proven by a read", func(_ *cobra.Command, args []string) error {
		if len(args) < 1 || len(args) > 2 {
			return usageError{fmt.Errorf("takes NAME and, to switch it, on, off, cycle or ac-cycle")}
		}
		return nil
	}, func(args []string) (contract.NewBMCAct, error) {
		in := contract.NewBMCAct{Verb: schema.BMCPower, Hard: hard, Reason: reason}
		if len(args) > 1 {
			in.Want = args[1]
		}
		return in, nil
	}, func(w io.Writer, name string, act schema.BMCAct) error {
		p, err := result[bmc.Powered](act)
		if err == nil && p.Was == p.Now {
			_, err = fmt.Fprintf(w, "%s is %s.\n", words.Printable(name, false), p.Now)
		} else if err == nil {
			_, err = fmt.Fprintf(w, "%s was %s and is %s.\n", words.Printable(name, false), p.Was, p.Now)
		}
		return err
	})
	cmd.Long = `Read a server's power, or switch it. off and cycle ask the system to shut down and cut the power where it does not in time;
--hard cuts it at once. ac-cycle takes the standby power away too, and restarts the BMC by it: the last resort for hardware that
does not come back, where the machine has a way to do it. They are refused while the server may be given jobs or holds some: drain or cordon it first.`
	cmd.Flags().BoolVar(&hard, "hard", false, "cut the power without asking the system")
	cmd.Flags().StringVar(&reason, "reason", "", "why; kept with the act")
	return cmd
}

func (a *app) bmcBoot() *cobra.Command {
	return a.bmcVerb("boot NAME [network|disk]", "Read the boot override, make the next boot one from the network, or clear it", func(_ *cobra.Command, args []string) error {
		if len(args) < 1 || len(args) > 2 {
			return usageError{fmt.Errorf("takes NAME and, to set it, network or disk")}
		}
		return nil
	}, func(args []string) (contract.NewBMCAct, error) {
		in := contract.NewBMCAct{Verb: schema.BMCBoot}
		if len(args) > 1 {
			in.From = args[1]
		}
		return in, nil
	}, func(w io.Writer, name string, act schema.BMCAct) error {
		l, err := result[bmc.Look](act)
		if err == nil {
			_, err = fmt.Fprintf(w, "%s: power %s, boot override %s.\n", words.Printable(name, false), l.Power, words.Printable(cmp.Or(l.Override, "none"), false))
		}
		return err
	})
}

func (a *app) bmcLight() *cobra.Command {
	cmd := a.bmcVerb("light NAME on|off", "Switch the locator light", exactly("NAME", "on or off"), func(args []string) (contract.NewBMCAct, error) {
		if args[1] != "on" && args[1] != "off" {
			return contract.NewBMCAct{}, usageError{fmt.Errorf("takes on or off, got %q", args[1])}
		}
		return contract.NewBMCAct{Verb: schema.BMCLight, Lit: args[1] == "on"}, nil
	}, func(w io.Writer, name string, act schema.BMCAct) error {
		state := "off"
		if act.Args.Lit {
			state = "on"
		}
		_, err := fmt.Fprintf(w, "The locator light of %s is %s.\n", words.Printable(name, false), state)
		return err
	})
	cmd.Aliases = []string{"locate", "led"}
	return cmd
}

func (a *app) bmcLogs() *cobra.Command {
	most := 50
	cmd := a.bmcVerb("logs NAME", "Show the last entries of the BMC's event logs", exactly("NAME"), func([]string) (contract.NewBMCAct, error) {
		return contract.NewBMCAct{Verb: schema.BMCLogs, Most: most}, nil
	}, func(w io.Writer, _ string, act schema.BMCAct) error {
		list, err := result[[]bmc.LogEntry](act)
		if err != nil {
			return err
		}
		t := newTable("CREATED", "SEVERITY", "LOG", "ID", "MESSAGE")
		for _, e := range list {
			t.row(e.Created, e.Severity, logName(e.Service), e.ID, e.Message)
		}
		t.write(w, "The logs are empty.")
		return nil
	})
	cmd.Flags().IntVar(&most, "most", 50, "how many entries, 1 to 1000")
	return cmd
}

// logName is a log service's path without what all have: Systems/1/Log1. Two owners may give their logs the same name.
func logName(path string) string {
	return strings.Replace(strings.TrimPrefix(path, "/redfish/v1/"), "/LogServices/", "/", 1)
}

func (a *app) bmcSensors() *cobra.Command {
	return a.bmcVerb("sensors NAME", "Read every sensor; minutes on some machines", exactly("NAME"), just(schema.BMCSensors), func(w io.Writer, _ string, act schema.BMCAct) error {
		list, err := result[[]bmc.Reading](act)
		if err != nil {
			return err
		}
		t := newTable("SENSOR", "KIND", "VALUE", "STATE", "HEALTH")
		for _, s := range list {
			value := "unknown"
			if s.Value != nil {
				value = fmt.Sprintf("%g %s", *s.Value, s.Unit)
			}
			t.row(s.Name, s.Kind, value, s.State, s.Health)
		}
		t.write(w, "It shows no sensors.")
		return nil
	})
}

// silent says of each way to a console that nothing was there.
var silent = map[string]string{"log": "The BMC kept nothing of the console.", "sol": "Nothing came while listening."}

func (a *app) bmcConsole() *cobra.Command {
	seconds := 5
	cmd := a.bmcVerb("console NAME", "Show the serial console: what the BMC kept of it, or what comes while listening", exactly("NAME"), func([]string) (contract.NewBMCAct, error) {
		return contract.NewBMCAct{Verb: schema.BMCConsole, Seconds: seconds}, nil
	}, func(w io.Writer, _ string, act schema.BMCAct) error {
		c, err := result[bmc.Console](act)
		if err == nil && strings.TrimSpace(c.Text) == "" {
			_, err = fmt.Fprintln(w, silent[c.Via])
		} else if err == nil {
			_, err = fmt.Fprintln(w, words.Printable(strings.TrimRight(c.Text, "\r\n"), true))
		}
		return err
	})
	cmd.Flags().IntVar(&seconds, "seconds", 5, "how long to listen, 1 to 300")
	return cmd
}

func (a *app) bmcCapture() *cobra.Command {
	var file string
	cmd := a.bmcVerb("capture NAME", "Save everything that a BMC shows, redacted, for a bug report", exactly("NAME"), just(schema.BMCCapture), nil)
	cmd.Long = `Save everything that a BMC shows as a .tar.gz of a Redfish tree. Serials, UUIDs, addresses and names are replaced by stand-ins;
passwords and keys are left out. It only reads. The lab serves the file as a BMC: tree: FILE in a lab's configuration.`
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		act, err := a.ask(cmd, args[0], contract.NewBMCAct{Verb: schema.BMCCapture})
		if err != nil {
			return err
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		got, err := call.Do[contract.BMCFile](c.GetBMCFile(cmd.Context(), act.ID))
		if err != nil {
			return err
		}
		if file == "" {
			file = got.Name
		}
		if err := os.WriteFile(file, got.Content, 0o600); err != nil {
			return err
		}
		told, err := result[bmc.Captured](act)
		if err != nil {
			return err
		}
		return a.said(cmd, act, "%s: %d resources, %d could not be read. Look through it before you give it away.", file, told.Resources, len(told.Failed))
	}
	cmd.Flags().StringVar(&file, "file", "", "where to (else NAME-redfish.tar.gz)")
	return cmd
}

func (a *app) bmcCredential() *cobra.Command {
	var user, file string
	cmd := &cobra.Command{Use: "credential NAME", Short: "Tell the password that a BMC has now; it is taken up without a restart", Args: exactly("NAME"),
		Long: `Tell the password that a BMC has now: after it was changed at the machine. The pool does not change the BMC by this; see rotate.

The password comes from --password-file, from GPUPOOL_BMC_PASSWORD, or is asked for.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			password, err := bmcPassword(cmd, file)
			if err != nil {
				return err
			}
			b, err := call.Do[contract.BMC](c.SetBMCCredential(cmd.Context(), args[0], contract.BMCCredential{Username: user, Password: password}))
			if err != nil {
				return err
			}
			return a.said(cmd, b, "The password is kept. Try it: gpupool bmc login %s", args[0])
		}}
	cmd.Flags().StringVar(&user, "user", "", "the account's name (else as it is)")
	cmd.Flags().StringVar(&file, "password-file", "", "file whose first line is the password")
	return cmd
}

func (a *app) bmcRotate() *cobra.Command {
	return a.bmcVerb("rotate NAME", "Give the BMC account a new password that nobody has seen", exactly("NAME"), just(schema.BMCRotate), saying("The BMC of %s has a new password, proven by a login."))
}

func (a *app) bmcLogin() *cobra.Command {
	return a.bmcVerb("login NAME", "Log in once more to a BMC that refused us: after the account was mended there", exactly("NAME"), just(schema.BMCLogin), saying("The BMC of %s lets us in."))
}

func (a *app) bmcReset() *cobra.Command {
	return a.bmcVerb("reset NAME", "Restart the BMC itself; the server's power stays as it is", exactly("NAME"), just(schema.BMCReset), saying("The BMC of %s was restarted and answers."))
}

func (a *app) bmcTrust() *cobra.Command {
	var key string
	cmd := &cobra.Command{Use: "trust NAME --key SHA256", Short: "Acknowledge that a BMC has another TLS key", Args: exactly("NAME"),
		Long: "Acknowledge that a BMC has another TLS key, after it was replaced or its certificate renewed. Compare the key with what the BMC shows at its own console: until then somebody may stand in between.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			b, err := call.Do[contract.BMC](c.TrustBMCKey(cmd.Context(), args[0], contract.BMCKey{Key: key}))
			if err != nil {
				return err
			}
			return a.said(cmd, b, "The BMC of %s is trusted by this key.", args[0])
		}}
	cmd.Flags().StringVar(&key, "key", "", "SHA-256 of its public key, as `gpupool bmc show` tells it (required)")
	required(cmd, "key")
	return cmd
}
