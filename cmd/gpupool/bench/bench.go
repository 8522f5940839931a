// Package bench measures: figures as ratios in one run where a peer runs here, and writes them as JSON.
//
// Groups: system (the whole system's jobs beside bare Temporal workflows, memory, start), engine (the allocator's engine
// alone), pxe (the boot service beside Kea, dnsmasq, tftpd-hpa and nginx; as root), bmc (the watch of 2,000 BMCs), meter (the books on PostgreSQL). Not here:
// the commit path and health, benchmarks of activities/allocator and activities/health, whose figures come by --with, since what they
// measure is set up as in tests. A figure that misses its goal is shown, and fails nothing.
package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"gpupool/activities/allocator"
	"gpupool/activities/allocator/simulate"
	"gpupool/schema"
)

// Figure is one line of the table and of the JSON.
type Figure struct {
	Group     string   `json:"group"`
	Name      string   `json:"name"`
	Value     float64  `json:"value"`
	Unit      string   `json:"unit"`
	Peer      string   `json:"peer,omitempty"`
	PeerValue *float64 `json:"peer_value,omitempty"`
	Ratio     *float64 `json:"ratio,omitempty"`
	Goal      *float64 `json:"goal,omitempty"` // of the ratio where there is one, else of the value
	Holds     *bool    `json:"holds,omitempty"`
}

var groups = []struct {
	name string
	run  func(ctx context.Context, say func(string)) ([]Figure, error)
}{
	{"system", system},
	{"engine", engine},
	{"pxe", netboot},
	{"bmc", bmcs},
	{"meter", meter},
}

// Command is `gpupool bench`.
func Command() *cobra.Command {
	var only, file string
	var with []string
	c := &cobra.Command{Use: "bench", Short: "Measure: the whole system beside its peers, the engine alone", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var out []Figure
			var names []string
			for _, g := range groups {
				names = append(names, g.name)
				if only != "" && only != g.name {
					continue
				}
				f, err := g.run(cmd.Context(), func(s string) { fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", g.name, s) })
				if err != nil {
					return fmt.Errorf("measuring %s: %w", g.name, err)
				}
				out = append(out, f...)
			}
			for _, name := range with {
				more, err := figures(name)
				if err != nil {
					return err
				}
				for _, f := range more {
					names = append(names, f.Group)
					if only == "" || only == f.Group {
						out = append(out, f)
					}
				}
			}
			if only != "" && !slices.Contains(names, only) {
				return schema.Invalid("only", only, "one of "+strings.Join(names, ", "))
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "GROUP\tWHAT\tVALUE\tPEER\tRATIO\tGOAL\tHOLDS")
			for _, f := range out {
				fmt.Fprintf(w, "%s\t%s\t%.4g %s\t%s\t%s\t%s\t%s\n", f.Group, f.Name, f.Value, f.Unit, peer(f), number(f.Ratio), number(f.Goal), yes(f.Holds))
			}
			if err := w.Flush(); err != nil || file == "" {
				return err
			}
			b, err := json.MarshalIndent(out, "", "  ")
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				return err
			}
			return os.WriteFile(file, append(b, '\n'), 0o644)
		}}
	c.Flags().StringVar(&only, "only", "", "one group")
	c.Flags().StringArrayVar(&with, "with", nil, "a file of figures that were measured elsewhere, in the form of --json: they are shown with the others; may be given again")
	c.Flags().StringVar(&file, "json", "", "also write the figures here")
	return c
}

// figures reads what another run wrote.
func figures(path string) (list []Figure, err error) {
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("figures to show with the others: %s: %w", path, err)
	}
	return list, nil
}

func peer(f Figure) string {
	if f.PeerValue == nil {
		return f.Peer
	}
	return fmt.Sprintf("%s: %.4g", f.Peer, *f.PeerValue)
}

func number(v *float64) string {
	if v == nil {
		return ""
	}
	return fmt.Sprintf("%.3g", *v)
}

func yes(v *bool) string {
	switch {
	case v == nil:
		return ""
	case *v:
		return "yes"
	default:
		return "no"
	}
}

func engine(_ context.Context, say func(string)) ([]Figure, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(allocator.GCPercent)) // as the process of an allocator has it
	var out []Figure
	for _, f := range simulate.Bench(false, say) {
		g := Figure{Group: "engine", Name: f.Name, Value: f.Value, Unit: f.Unit}
		if f.Goal != 0 {
			g.Goal, g.Holds = &f.Goal, &f.Holds
		}
		out = append(out, g)
	}
	return out, nil
}
