// Package labcli is the verbs on a running lab: break something, mend it, look.
package labcli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"gpupool/deploy/lab"
	"gpupool/worker/config"
)

// faults are the server's own, then each device's: "SXM3 xid79".
func faults(s lab.ServerState) string {
	out := slices.Clone(s.Faults)
	for _, d := range s.Devices {
		for _, k := range d.Faults {
			out = append(out, d.Slot+" "+string(k))
		}
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ", ")
}

// said tells what was done, unless it was refused.
func said(cmd *cobra.Command, err error, format string, a ...any) error {
	if err == nil {
		fmt.Fprintf(cmd.OutOrStdout(), format+"\n", a...)
	}
	return err
}

// Command is `gpupool lab`.
func Command() *cobra.Command {
	var dir, data string
	open := func() (*lab.Client, error) {
		if dir == "" {
			set := []string{"pxe.mode=off"}
			if data != "" {
				set = append(set, "data_dir="+data)
			}
			c, err := config.Load(config.Source{Environ: os.Environ(), Set: set})
			if err != nil {
				return nil, err
			}
			dir = filepath.Join(c.DataDir, "lab")
		}
		return lab.Open(dir)
	}
	root := &cobra.Command{Use: "lab", Short: "Break and mend the simulated data centre of `gpupool up --lab`"}
	root.PersistentFlags().StringVar(&dir, "dir", "", "the lab's folder, as `gpupool up` prints it (else lab in the data folder)")
	root.PersistentFlags().StringVar(&data, "data-dir", "", "the data folder that `gpupool up` was given (else GPUPOOL_DATA_DIR, else the default)")
	root.AddCommand(
		&cobra.Command{Use: "state", Short: "Show the lab's servers", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := open()
			if err != nil {
				return err
			}
			servers, err := c.State(cmd.Context())
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "SERVER\tPOWER\tSTAGE\tINSTALLS\tBOOTS\tBMC\tFAULTS")
			for _, s := range servers {
				power := "off"
				if s.On {
					power = "on"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", s.Name, power, s.Stage, s.Installs, s.Boots, s.BMC, faults(s))
			}
			return w.Flush()
		}},
		&cobra.Command{Use: "enrollment", Short: "Print the lab's servers as a file for `gpupool server enroll -f -`", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := open()
			if err != nil {
				return err
			}
			servers, err := c.State(cmd.Context())
			if err != nil {
				return err
			}
			return lab.WriteEnrollment(cmd.OutOrStdout(), servers, "eu-north", "lab")
		}},
		&cobra.Command{Use: "build", Short: "Print what the lab's servers with eight accelerators have, as a file for `gpupool build set MODEL -f -`", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := yaml.MarshalWithOptions(lab.Build(8), yaml.UseJSONMarshaler())
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(b)
			return err
		}},
		&cobra.Command{Use: "fault SERVER DEVICE KIND", Short: "Make a fault: " + strings.Join(lab.Kinds(), ", "), Args: cobra.ExactArgs(3), Example: "  gpupool lab fault r1s1 SXM3 xid79",
			RunE: func(cmd *cobra.Command, a []string) error {
				c, err := open()
				if err != nil {
					return err
				}
				return said(cmd, c.Fault(cmd.Context(), a[0], a[1], a[2]), "%s %s has %s.", a[0], a[1], a[2])
			}},
		&cobra.Command{Use: "clear SERVER DEVICE KIND", Short: "Take a fault away", Args: cobra.ExactArgs(3), RunE: func(cmd *cobra.Command, a []string) error {
			c, err := open()
			if err != nil {
				return err
			}
			return said(cmd, c.Clear(cmd.Context(), a[0], a[1], a[2]), "%s %s has %s no more.", a[0], a[1], a[2])
		}},
		&cobra.Command{Use: "replace SERVER SLOT SERIAL", Short: "Swap the part in a slot for a new one with that serial, as a technician does", Args: cobra.ExactArgs(3), RunE: func(cmd *cobra.Command, a []string) error {
			c, err := open()
			if err != nil {
				return err
			}
			return said(cmd, c.Replace(cmd.Context(), a[0], a[1], a[2]), "%s %s holds %s now.", a[0], a[1], a[2])
		}},
	)
	root.AddCommand(bmcFault(open))
	return root
}

// bmcFault is `gpupool lab bmc`: how a server's BMC misbehaves.
func bmcFault(open func() (*lab.Client, error)) *cobra.Command {
	var f lab.BMCFault
	var merge string
	var mend bool
	c := &cobra.Command{Use: "bmc SERVER", Short: "Make a server's BMC misbehave, or mend it", Args: cobra.ExactArgs(1),
		Example: `  gpupool lab bmc r1s1 --path '/redfish/v1/Systems/**' --latency 20s
  gpupool lab bmc r1s1 --status 503 --count 3
  gpupool lab bmc r1s1 --sessions 1 --lockout 3 --clock -24h
  gpupool lab bmc r1s1 --mend`,
		RunE: func(cmd *cobra.Command, a []string) error {
			c, err := open()
			if err != nil {
				return err
			}
			if mend {
				return said(cmd, c.ClearBMC(cmd.Context(), a[0]), "the BMC of %s is as it was.", a[0])
			}
			f.Merge = []byte(merge)
			if merge == "" {
				f.Merge = nil
			}
			return said(cmd, c.BMCFault(cmd.Context(), a[0], f), "the BMC of %s misbehaves.", a[0])
		}}
	fl := c.Flags()
	fl.StringVar(&f.Method, "method", "", "only requests of this method")
	fl.StringVar(&f.Path, "path", "", "only requests of these paths: * within a segment, ** over any")
	fl.IntVar(&f.Status, "status", 0, "answer this HTTP status")
	fl.StringVar(&f.Message, "message", "", "MessageId of the error, with --status")
	fl.DurationVar(&f.Latency, "latency", 0, "wait so long before the answer")
	fl.StringVar(&f.Replace, "replace", "", "answer this body, verbatim")
	fl.StringVar(&merge, "merge", "", "merge this JSON object into the resource")
	fl.IntVar(&f.Count, "count", 0, "for so many requests; 0 = until mended")
	fl.BoolVar(&f.Hang, "hang", false, "never answer")
	fl.BoolVar(&f.Drop, "drop", false, "close the connection without an answer")
	fl.IntVar(&f.Sessions, "sessions", 0, "allow at most so many sessions at once")
	fl.IntVar(&f.Lockout, "lockout", 0, "lock the account after so many wrong passwords")
	fl.DurationVar(&f.Clock, "clock", 0, "set the BMC's clock off by so much")
	fl.BoolVar(&mend, "mend", false, "end all that")
	return c
}
