package serve

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"gpupool/pxe"
	"gpupool/schema"
	"gpupool/worker"
	"gpupool/worker/config"
)

// doctorCommand is `gpupool pxe doctor`.
func doctorCommand() *cobra.Command {
	f := &flags{}
	var running bool
	var output string
	c := &cobra.Command{Use: "doctor", Short: "Check what network boot needs on this machine, and say what to do", Args: cobra.NoArgs,
		Long: "Check what network boot needs on this machine, and say what to do: the configuration, the service's address, ports, rights, routes, boot files, another DHCP server on the wire, and with --running how many addresses are left. " +
			"It reads the configuration as `gpupool pxe` would and changes nothing; on the wire it sends one DHCPDISCOVER with a made-up MAC. Exit code 6 if something would keep servers from booting.",
		Example: "  gpupool pxe doctor --config /etc/gpupool/config.yaml\n  gpupool pxe doctor --running",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.load(nil)
			if err != nil {
				return err
			}
			if c.PXE.Mode == config.PXEOff {
				return schema.Invalid("pxe.mode", c.PXE.Mode, "full, proxy or relay: network boot is off in this configuration")
			}
			checks := pxe.Doctor(cmd.Context(), worker.BootConfig(c.PXE, c.API.ExternalURL), running)
			if output == "json" {
				if err := json.NewEncoder(cmd.OutOrStdout()).Encode(checks); err != nil {
					return err
				}
			} else if err := showChecks(cmd.OutOrStdout(), checks); err != nil {
				return err
			}
			bad := 0
			for _, c := range checks {
				if c.Verdict == pxe.Bad {
					bad++
				}
			}
			if bad > 0 {
				return &schema.Error{Code: schema.CodeUnavailable, Message: fmt.Sprintf("%d of %d checks failed: servers can't boot from here as it is", bad, len(checks))}
			}
			return nil
		}}
	f.sources(c)
	c.Flags().BoolVar(&running, "running", false, "the service runs here already: its ports are rightly in use")
	c.Flags().StringVarP(&output, "output", "o", "table", "table, or json for programs")
	return c
}

func showChecks(w io.Writer, checks []pxe.Check) error {
	for _, c := range checks {
		if _, err := fmt.Fprintf(w, "%-8s %-20s %s\n", c.Verdict, c.Name, c.Text); err != nil {
			return err
		}
		if c.Hint != "" {
			if _, err := fmt.Fprintf(w, "%29s hint: %s\n", "", c.Hint); err != nil {
				return err
			}
		}
	}
	return nil
}
