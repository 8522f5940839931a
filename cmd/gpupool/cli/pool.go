package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

func (a *app) overview() *cobra.Command {
	return &cobra.Command{
		Use: "overview", Short: "Show the pool at one look: accelerators by model, servers by phase, what is stuck", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			o, err := call.Do[contract.Overview](c.GetOverview(cmd.Context()))
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), o)
			}
			w := cmd.OutOrStdout()
			showOverview(w, o)
			// A server that called for a person is told of once.
			o.Repairs = slices.DeleteFunc(o.Repairs, func(r schema.Repair) bool {
				return r.State != schema.RepairWaiting || slices.ContainsFunc(o.Failures, func(s contract.Server) bool { return s.Id == r.Server })
			})
			if len(o.Failures)+len(o.Paused)+len(o.Repairs)+len(o.Breakers) > 0 {
				fmt.Fprintln(w, "\nWaits for a person")
			}
			for _, b := range o.Breakers {
				for _, l := range wrap(words.Printable(words.Breaker(b), false), maxWidth-4) {
					fmt.Fprintln(w, "  "+l)
				}
				fmt.Fprintln(w, "    "+resetBreaker(b))
			}
			for _, s := range o.Failures {
				for _, l := range wrap(words.Printable(s.Name+stoppedWords(s)+s.Failure.Text, false), maxWidth-4) {
					fmt.Fprintln(w, "  "+l)
				}
				next, _, _ := strings.Cut(remedy(s), "\n")
				fmt.Fprintln(w, "    "+next)
			}
			for _, s := range o.Paused {
				for _, l := range wrap(words.Printable(s.Name+" "+words.Paused(*s.Pause, nowInstant()), false), maxWidth-4) {
					fmt.Fprintln(w, "  "+l)
				}
				fmt.Fprintln(w, "    gpupool server continue "+s.Name)
			}
			names := serverNames(cmd, c)
			for _, r := range o.Repairs {
				for _, l := range wrap(words.Printable(fmt.Sprintf("%s at %s: %s, %s", names.of(r.Server), r.Location, r.Part, r.Cause), false), maxWidth-4) {
					fmt.Fprintln(w, "  "+l)
				}
				fmt.Fprintln(w, "    gpupool repair show "+r.ID)
			}
			return nil
		},
	}
}

func showOverview(w io.Writer, o contract.Overview) {
	t := newTable("MODEL", "INSTALLED", "ALLOCATED", "IDLE", "CORDONED", "UNHEALTHY", "DRAINING", "REPAIRING")
	for _, m := range o.Models {
		t.row(m.Model, strconv.Itoa(m.Installed), strconv.Itoa(m.Allocated), strconv.Itoa(m.Idle), strconv.Itoa(m.Cordoned), strconv.Itoa(m.Unhealthy), strconv.Itoa(m.Draining), strconv.Itoa(m.Repairing))
	}
	t.write(w, "No accelerators are installed yet.")
	fmt.Fprintln(w)
	t = newTable("SERVERS", "COUNT")
	for _, p := range []schema.Phase{schema.PhaseAvailable, schema.PhaseOnboarding, schema.PhaseDraining, schema.PhaseRepairing, schema.PhaseEnrolled, schema.PhaseRetiring, schema.PhaseRetired} {
		if n := o.Servers[string(p)]; n > 0 {
			t.row(string(p), strconv.Itoa(n))
		}
	}
	t.write(w, "No servers.")
	fmt.Fprintln(w)
	t = newTable("WAITING JOBS", "COUNT")
	for _, c := range schema.ReasonCodes {
		if n := o.Queue[string(c)]; n > 0 {
			t.row(string(c), strconv.Itoa(n))
		}
	}
	t.write(w, "No job waits.")
}

func (a *app) accelerator() *cobra.Command {
	var p contract.ListAcceleratorsParams
	var server, model, health string
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List accelerators with their health", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			p.Server, p.Model, p.Health = opt(server), opt(model), opt(schema.Health(health))
			all, err := pages(0, func(after string, n int) ([]schema.Accelerator, string, error) {
				p.After, p.Limit = opt(after), &n
				l, err := call.Do[contract.AcceleratorList](c.ListAccelerators(cmd.Context(), &p))
				return l.Items, l.Next, err
			})
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), contract.AcceleratorList{Items: all})
			}
			acceleratorTable(all, true, serverNames(cmd, c)).write(cmd.OutOrStdout(), "No accelerators.")
			return nil
		},
	}
	f := list.Flags()
	f.StringVar(&server, "server", "", "only of this server")
	f.StringVar(&model, "model", "", "only this model")
	f.StringVar(&health, "health", "", "only this health: "+join(schema.Healths.States()))
	return group("accelerator", "See every accelerator of the pool", list)
}

func acceleratorTable(list []schema.Accelerator, withServer bool, names names) *table {
	head := []string{"SLOT", "MODEL", "SERIAL", "PCI", "MEMORY", "HEALTH", "WHY"}
	if withServer {
		head = append([]string{"SERVER"}, head...)
	}
	t := newTable(head...)
	for _, x := range list {
		why := x.HealthWhy
		if x.Health == schema.HealthHealthy {
			why = "" // there is nothing to do about it
		}
		row := []string{x.Slot, x.Model, x.Serial, x.PCI, words.Bytes(x.MemoryBytes), string(x.Health), why}
		if withServer {
			row = append([]string{names.of(x.Server)}, row...)
		}
		t.row(row...)
	}
	return t
}

// names turns server ids into names, where the caller may read them.
type names map[string]string

func (n names) of(id string) string {
	if s := n[id]; s != "" {
		return s
	}
	return id
}

// serverNames reads all names at once; a caller who may not list servers goes on with ids.
func serverNames(cmd *cobra.Command, c *client.Client) names {
	n := names{}
	all, _ := listServers(cmd.Context(), c, "")
	for _, s := range all {
		n[s.Id] = s.Name
	}
	return n
}
