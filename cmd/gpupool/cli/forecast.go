package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"gpupool/activities/allocator/engine"
	"gpupool/activities/allocator/simulate"
	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
	"gpupool/schema/usage"
)

// outgrowing is what a simulated forecast prints for programs.
type outgrowing struct {
	Items       []usage.Trend  `json:"items"`
	WaitSeconds float64        `json:"wait_seconds"`
	Specs       []outgrownSpec `json:"specs"`
}

type outgrownSpec struct {
	simulate.Outgrown
	On string `json:"on,omitempty"` // the day on which the model's trend reaches that growth; absent = not within usage.Horizon
}

func (a *app) forecast() *cobra.Command {
	var days int
	var simulated bool
	var from, to moment
	var wait time.Duration
	var policy string
	cmd := &cobra.Command{
		Use: "forecast", Short: "When demand exceeds capacity: of each model by the trend, of each spec by simulation", Args: exactly(),
		Long: `Tell when demand exceeds capacity. Of each model by the trend: a straight line through the GPU-hours of each day.

With --simulate of each spec too: the pool's own history of --from to --to is replayed through the allocator's engine on
the servers that are available now, with ever more demand, until nine of ten jobs of the spec no longer start within
--wait. Specs of one model share it, and a gang feels a full pool earlier than a single accelerator: that is what the line
can't tell. The replay knows accelerators, topology and the order of the queue; quotas and budgets only by --policy (a file
as for gpupool simulate).`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !simulated {
				for _, f := range []string{"from", "to", "wait", "policy"} {
					if cmd.Flags().Changed(f) {
						return schema.Invalid(f, cmd.Flag(f).Value.String(), "--simulate beside it")
					}
				}
			}
			if wait <= 0 {
				return schema.Invalid("wait", wait.String(), "a time above 0, like 30m")
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			l, err := call.Do[contract.ForecastList](c.GetForecast(cmd.Context(), &contract.GetForecastParams{Days: opt(days)}))
			if err != nil {
				return err
			}
			if !simulated {
				if a.json() {
					return printJSON(cmd.OutOrStdout(), l)
				}
				printTrends(cmd.OutOrStdout(), l.Items)
				return nil
			}
			specs, err := outgrown(cmd.Context(), c, contract.GetTraceParams{From: from.given(), To: to.given()}, policy, wait, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			out := outgrowing{Items: l.Items, WaitSeconds: wait.Seconds()}
			for _, s := range specs {
				out.Specs = append(out.Specs, outgrownSpec{s.Outgrown, reaches(l.Items, s.model, s.Growth, time.Now())})
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), out)
			}
			printTrends(cmd.OutOrStdout(), out.Items)
			printOutgrown(cmd.OutOrStdout(), out.Specs, wait)
			return nil
		},
	}
	f := cmd.Flags()
	f.IntVar(&days, "days", 0, "days of history of the trend; else 60")
	f.BoolVar(&simulated, "simulate", false, "replay the pool's history with ever more demand")
	f.Var(&from, "from", "with --simulate: jobs submitted from this time on; else 30 days")
	f.Var(&to, "to", "with --simulate: up to this time; else now")
	f.DurationVar(&wait, "wait", time.Hour, "with --simulate: what nine of ten jobs of a spec may wait at most")
	f.StringVar(&policy, "policy", "", "with --simulate: policy file, as for gpupool simulate")
	return cmd
}

func printTrends(w io.Writer, items []usage.Trend) {
	for _, t := range items {
		fmt.Fprintln(w, words.Printable(t.Model+": "+t.Text, false))
	}
}

func printOutgrown(w io.Writer, specs []outgrownSpec, limit time.Duration) {
	last := simulate.Growths[len(simulate.Growths)-1]
	t := newTable("SPEC", "JOBS", "P90 WAIT", "TOO LONG AT", "P90 THEN", "BY THE TREND")
	for _, s := range specs {
		at := fmt.Sprintf("not at %gx", last)
		if s.Growth > 0 {
			at = fmt.Sprintf("%gx demand", s.Growth)
		}
		if s.Never == s.Jobs {
			at = "never starts here"
		}
		t.row(s.Spec, strconv.Itoa(s.Jobs), secondsText(s.Now), at, secondsText(s.Then), cmp.Or(s.On, "no day"))
	}
	fmt.Fprintf(w, "\nReplayed with more demand, until nine of ten jobs wait longer than %s:\n", schema.Setting(limit))
	t.write(w, "")
}

func secondsText(s float64) string {
	return words.Duration(time.Duration(s * float64(time.Second)).Round(time.Second))
}

type modelled struct {
	simulate.Outgrown
	model string
}

// outgrown replays the pool's history on its available servers.
func outgrown(ctx context.Context, c *client.Client, p contract.GetTraceParams, policyFile string, wait time.Duration, progress io.Writer) ([]modelled, error) {
	var policy simulate.Policy
	if policyFile != "" {
		f, err := os.Open(policyFile)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		if policy, err = simulate.ReadPolicy(f); err != nil {
			return nil, fmt.Errorf("%s: %w", policyFile, err)
		}
	}
	resp, err := c.GetTrace(ctx, &p)
	if err := call.Check(resp, err); err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	tr, err := simulate.ReadTrace(resp.Body)
	if err != nil {
		return nil, err
	}
	if len(tr.Jobs) == 0 {
		return nil, &schema.Error{Code: schema.CodeInvalid, Message: "no job that was submitted in this time has run and ended: there is no history to replay", Hint: "give an earlier --from"}
	}
	servers, err := listServers(ctx, c, schema.PhaseAvailable)
	if err != nil {
		return nil, err
	}
	list, err := simulate.Forecast(tr, poolOf(servers), policy, wait, 1, func(growth float64) {
		fmt.Fprintf(progress, "replaying %d jobs on %d servers with %gx demand\n", len(tr.Jobs), len(servers), growth)
	})
	if err != nil {
		return nil, err
	}
	var out []modelled
	for _, o := range list {
		i := slices.IndexFunc(tr.Specs, func(s engine.Spec) bool { return s.Name == o.Spec })
		out = append(out, modelled{o, tr.Specs[i].Model})
	}
	return out, nil
}

// poolOf are servers as the engine sees them. A trace's specs ask for no processors and no memory.
func poolOf(servers []contract.Server) *simulate.Pool {
	p := &simulate.Pool{}
	for _, s := range servers {
		e := engine.Server{ID: s.Id, Region: s.Region, Site: s.Site, Rack: s.Rack, NVLinkDomain: s.NvlinkDomain, CPU: int64(s.Cpus), MemoryBytes: s.MemoryBytes, Schedulable: true}
		for i := range s.Accelerators {
			e.Accelerators = append(e.Accelerators, engine.Accelerator{ID: s.Id + "-" + strconv.Itoa(i), Model: s.Model, Index: i, Schedulable: true})
		}
		p.Servers = append(p.Servers, e)
	}
	slices.SortFunc(p.Servers, func(a, b engine.Server) int { return cmp.Compare(a.ID, b.ID) })
	return p
}

// reaches is the day on which a model's demand is growth times what it is, by its trend; empty = not within Horizon.
func reaches(trends []usage.Trend, model string, growth float64, now time.Time) string {
	i := slices.IndexFunc(trends, func(t usage.Trend) bool { return t.Model == model })
	if i < 0 || growth == 0 || growth > 1 && (trends[i].Slope <= 0 || trends[i].Demand <= 0) {
		return ""
	}
	days := 0.0
	if growth > 1 {
		days = math.Ceil((growth - 1) * trends[i].Demand / trends[i].Slope)
	}
	if days > usage.Horizon {
		return ""
	}
	return now.UTC().AddDate(0, 0, int(days)).Format(time.DateOnly)
}
