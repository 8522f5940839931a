package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"gpupool/activities/bmc"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

// Verbs about what a machine keeps: firmware, counters, boot order, BIOS attributes, the virtual drive.

// nameAnd wants a server's name and takes more.
func nameAnd(more string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < 1 {
			return usageError{fmt.Errorf("takes NAME and, to change something, %s", more)}
		}
		return nil
	}
}

func (a *app) bmcFirmware() *cobra.Command {
	return a.bmcVerb("firmware NAME", "List the versions of everything on the machine that has one; minutes on some machines", exactly("NAME"), just(schema.BMCFirmware), func(w io.Writer, _ string, act schema.BMCAct) error {
		list, err := result[[]bmc.Firmware](act)
		if err != nil {
			return err
		}
		t := newTable("ID", "NAME", "VERSION", "STATE", "HEALTH")
		for _, x := range list {
			t.row(x.ID, x.Name, words.Or(x.Version), x.State, x.Health)
		}
		t.write(w, "It shows no firmware.")
		return nil
	})
}

// number shows what a BMC counts; what it doesn't show is unknown.
func number(v *float64) string {
	if v == nil {
		return "unknown"
	}
	return fmt.Sprintf("%g", *v)
}

// either shows a yes or no of a BMC's.
func either(v *bool) string {
	switch {
	case v == nil:
		return "unknown"
	case *v:
		return "yes"
	}
	return "no"
}

func (a *app) bmcMetrics() *cobra.Command {
	cmd := a.bmcVerb("metrics NAME", "Show the accelerators' counters as the BMC has them", exactly("NAME"), just(schema.BMCMetrics), func(w io.Writer, _ string, act schema.BMCAct) error {
		list, err := result[[]bmc.GPUMetrics](act)
		if err != nil {
			return err
		}
		t := newTable("SLOT", "TEMP C", "POWER W", "ECC CORRECTED", "ECC UNCORRECTED", "ROWS REMAPPED", "REMAP PENDING", "REMAP FAILED", "PCIE REPLAYS")
		for _, m := range list {
			rows := number(m.RemapCorrectable) + "+" + number(m.RemapUncorrectable)
			if m.RemapCorrectable == nil && m.RemapUncorrectable == nil {
				rows = "unknown"
			}
			t.row(m.Slot, number(m.TemperatureC), number(m.PowerW), number(m.CorrectableECC), number(m.UncorrectableECC), rows, either(m.RemapPending), either(m.RemapFailed), number(m.PCIeReplays))
		}
		t.write(w, "It shows no accelerators.")
		return nil
	})
	cmd.Long = "Show the accelerators' counters as the BMC has them. What it does not show is unknown, never zero. Rows remapped are those after correctable errors + those after uncorrectable ones."
	return cmd
}

func (a *app) bmcOrder() *cobra.Command {
	cmd := a.bmcVerb("order NAME [BOOT-OPTION...]", "Show the persistent boot order, or move options to its front; read back", nameAnd("the boot options to come first"), func(args []string) (contract.NewBMCAct, error) {
		return contract.NewBMCAct{Verb: schema.BMCOrder, First: args[1:]}, nil
	}, func(w io.Writer, _ string, act schema.BMCAct) error {
		list, err := result[[]bmc.BootEntry](act)
		if err != nil {
			return err
		}
		t := newTable("OPTION", "NAME", "NETWORK", "ENABLED")
		for _, e := range list {
			t.row(e.Ref, e.Name, either(new(e.Network())), either(e.Enabled))
		}
		t.write(w, "It lists no boot options.")
		return nil
	})
	cmd.Long = `Show the persistent boot order, as the next boot will use it, or move options to its front: the others keep their sequence.
It is for firmware that forgets what boot says about the next boot alone.`
	return cmd
}

func (a *app) bmcBIOS() *cobra.Command {
	cmd := a.bmcVerb("bios NAME [ATTRIBUTE=VALUE...]", "Show the BIOS attributes, or say which are wanted; they take effect at the next boot", nameAnd("ATTRIBUTE=VALUE"), func(args []string) (contract.NewBMCAct, error) {
		in := contract.NewBMCAct{Verb: schema.BMCBIOS}
		for _, arg := range args[1:] {
			k, v, ok := strings.Cut(arg, "=")
			if !ok || k == "" {
				return in, usageError{fmt.Errorf("takes ATTRIBUTE=VALUE, got %q", arg)}
			}
			if in.Attributes == nil {
				in.Attributes = map[string]string{}
			}
			if _, twice := in.Attributes[k]; twice {
				return in, usageError{fmt.Errorf("attribute %q is given twice", k)}
			}
			in.Attributes[k] = v
		}
		return in, nil
	}, func(w io.Writer, name string, act schema.BMCAct) error {
		if len(act.Args.Attributes) > 0 {
			set, err := result[bmc.BIOSSet](act)
			if err != nil {
				return err
			}
			text := "The BIOS of %s is as wanted already.\n"
			if set.Reboot {
				text = "The BIOS of %s is set, read back, and takes it up at its next boot.\n"
			}
			_, err = fmt.Fprintf(w, text, words.Printable(name, false))
			return err
		}
		list, err := result[[]bmc.BIOSAttribute](act)
		if err != nil {
			return err
		}
		t := newTable("ATTRIBUTE", "VALUE", "AT THE NEXT BOOT")
		for _, x := range list {
			next := ""
			if x.Next != nil {
				next = fmt.Sprint(x.Next)
			}
			value := "unknown"
			if x.Value != nil {
				value = fmt.Sprint(x.Value)
			}
			t.row(x.Name, value, next)
		}
		t.write(w, "It shows no attributes.")
		return nil
	})
	cmd.Long = `Show the BIOS attributes, or say which are wanted: those that differ are set in one request and read back. An attribute that the
firmware does not know is refused before anything is sent. Passwords are neither shown nor set.`
	return cmd
}

func (a *app) bmcMedia() *cobra.Command {
	cmd := a.bmcVerb("media NAME [URI|eject]", "Read the virtual CD drive, put an image in and boot from it once, or empty it", nameAnd("a URI or eject"), func(args []string) (contract.NewBMCAct, error) {
		in := contract.NewBMCAct{Verb: schema.BMCMedia}
		switch {
		case len(args) > 2:
			return in, usageError{fmt.Errorf("takes NAME and one URI, or eject")}
		case len(args) == 2 && args[1] == "eject":
			in.Eject = true
		case len(args) == 2:
			in.Image = args[1]
		}
		return in, nil
	}, func(w io.Writer, name string, act schema.BMCAct) error {
		m, err := result[bmc.Medium](act)
		if err != nil {
			return err
		}
		name = words.Printable(name, false)
		switch {
		case act.Args.Image != "":
			_, err = fmt.Fprintf(w, "The virtual drive of %s holds %s, and its next boot is one from it.\n", name, words.Printable(m.Image, false))
		case m.Inserted:
			_, err = fmt.Fprintf(w, "The virtual drive of %s holds %s.\n", name, words.Printable(words.Or(m.Image), false))
		default:
			_, err = fmt.Fprintf(w, "The virtual drive of %s is empty.\n", name)
		}
		return err
	})
	cmd.Long = `Read the virtual CD drive, put an image in and make the next boot one from it, or empty the drive: the way in where there is no
DHCP. The BMC fetches the image itself, so the URI must be one that it reaches.`
	return cmd
}
