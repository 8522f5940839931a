package cli

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema/hardware"
)

func (a *app) build() *cobra.Command {
	var file string
	set := &cobra.Command{
		Use: "set NAME -f FILE", Short: "Say what servers of a build are ordered with", Args: exactly("NAME"),
		Long: `Say what servers of a build are ordered with: DIMMs, drives, network ports, link widths and firmware. A server is compared with its
build, or with the one that is named as its accelerators' model, when it is onboarded and when it comes back from a repair. What differs
stops it and is named; it is put right, or accepted (gpupool server accept).

The file is YAML, a list of parts (- is standard input):

  - {part: dimm, count: 32, bytes: 68719476736}       # each of 64 GiB, exactly
  - {part: nvme, count: 8, bytes: 3840000000000, lanes: 4, firmware: ">=GDC7302Q"}
  - {part: nic, count: 8, gbps: 400, lanes: 16, firmware: ">=28.43"}
  - {part: nic, count: 2, gbps: 25}
  - {part: accelerator, count: 8, lanes: 16, firmware: 96.00.89.00.01}
  - {part: bios, count: 1, firmware: 1.6.7}
  - {part: bmc, count: 1, firmware: ">=24.09"}`,
		Example: `  gpupool build set nvidia-h100-80gb -f dgx-h100.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := readFile(file, cmd.InOrStdin())
			if err != nil {
				return err
			}
			var in contract.NewBuild
			if err := yaml.NewDecoder(bytes.NewReader(b), yaml.Strict(), yaml.UseJSONUnmarshaler()).Decode(&in.Parts); err != nil {
				return yamlError(file, err, "a list of parts: gpupool build set --help shows one")
			}
			return act(a, cmd, func(c *client.Client) (hardware.Build, error) {
				return call.Do[hardware.Build](c.SetBuild(cmd.Context(), args[0], in))
			}, func(b hardware.Build) string {
				return fmt.Sprintf("Build %s: %s.", b.Name, words.Count(len(b.Parts), "line"))
			})
		},
	}
	set.Flags().StringVarP(&file, "file", "f", "", "YAML file with the parts; - for standard input (required)")
	required(set, "file")

	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List builds", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.BuildList, error) {
				return call.Do[contract.BuildList](c.ListBuilds(cmd.Context()))
			}, func(l contract.BuildList) {
				t := newTable("NAME", "PARTS", "SET BY", "SET")
				for _, b := range l.Items {
					var parts []string
					for _, p := range b.Parts {
						parts = append(parts, fmt.Sprintf("%d %s", p.Count, p.Part))
					}
					t.row(b.Name, strings.Join(parts, ", "), b.SetBy, words.Ago(b.SetAt, nowInstant()))
				}
				t.write(cmd.OutOrStdout(), "No builds: servers are compared with what they were enrolled with alone. Make one: gpupool build set --help")
			})
		},
	}
	one := &cobra.Command{
		Use: "show NAME", Short: "What servers of a build are ordered with", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(a, cmd, func(c *client.Client) (hardware.Build, error) {
				return call.Do[hardware.Build](c.GetBuild(cmd.Context(), args[0]))
			}, func(b hardware.Build) {
				t := newTable("PART", "COUNT", "BYTES", "GBIT/S", "LANES", "FIRMWARE")
				for _, p := range b.Parts {
					size, speed := "", ""
					if p.Bytes > 0 {
						size = strconv.FormatInt(p.Bytes, 10)
					}
					if p.Gbps > 0 {
						speed = strconv.FormatFloat(p.Gbps, 'g', -1, 64)
					}
					t.row(string(p.Part), strconv.Itoa(p.Count), size, speed, count(p.Lanes), p.Firmware)
				}
				t.write(cmd.OutOrStdout(), "It has no parts.")
			})
		},
	}
	remove := &cobra.Command{
		Use: "delete NAME", Short: "Remove a build that no server was ordered as", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (struct{}, error) {
				return call.Do[struct{}](c.DeleteBuild(cmd.Context(), args[0]))
			}, func(struct{}) string { return "Build " + args[0] + " is gone." })
		},
	}
	return group("build", "Builds: what servers of one kind are ordered with, part by part", list, set, one, remove)
}
