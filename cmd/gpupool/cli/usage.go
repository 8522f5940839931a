package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
	"gpupool/schema/usage"
)

func (a *app) usage() *cobra.Command {
	var by []string
	var from, to moment
	var tenant, project, every, zone string
	var live, parts bool
	keys := []string{"tenant", "project", "spec", "model", "region", "outcome", "server", "rack", "job", "vendor", "generation"}
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Report GPU-hours by tenant, project, spec and so on",
		Long: `Report GPU time from the ledger. An interval counts from its begin up to, not including, its end, and is cut at --from
and --to. Times without a zone are UTC; 2026-11 is the begin of that month. --every cuts the report at the calendar of
--zone, whose days have 23, 24 or 25 hours. With -o csv the columns hold GPU-milliseconds as well, which add up exactly.`,
		Example: `  gpupool usage --by tenant,project --from 2026-11 --to 2026-12
  gpupool usage --by spec --every day --zone Europe/Berlin --from 2026-11
  gpupool usage --by vendor,generation,model --from 2026-11
  gpupool usage --by project --parts --from 2026-11
  gpupool usage --by spec -o csv > usage.csv`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, k := range by {
				if !slices.Contains(keys, k) {
					return schema.Invalid("by", k, "one or more of "+strings.Join(keys, ", "))
				}
			}
			c, err := a.connect("csv")
			if err != nil {
				return err
			}
			u, err := call.Do[contract.Usage](c.GetUsage(cmd.Context(), &contract.GetUsageParams{Tenant: opt(tenant), Project: opt(project), Live: opt(live), Parts: opt(parts), By: &by, From: from.given(), To: to.given(), Every: opt(every), Zone: opt(zone)}))
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			switch a.output {
			case "json":
				return printJSON(w, u)
			case "csv":
				return usageTable(u, true, parts).csv(w)
			}
			usageTable(u, false, parts).write(w, "Nothing was used.")
			return nil
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&by, "by", []string{"tenant", "project", "spec"}, "group by these, in this order: "+strings.Join(keys, ", "))
	f.Var(&from, "from", "from this time; else from the beginning")
	f.Var(&to, "to", "up to this time; else now")
	f.StringVar(&tenant, "tenant", "", "only this tenant")
	f.StringVar(&project, "project", "", "only this project")
	f.StringVar(&every, "every", "", "apart for each hour, day, week or month")
	f.StringVar(&zone, "zone", "", "time zone of --every, like Europe/Berlin; else the pool's")
	f.BoolVar(&live, "live", false, "count also what runs now")
	f.BoolVar(&parts, "parts", false, "apart: waits, launch, run, drain, credits and corrections, and what of the held time is known to have been idle; counts also what runs now")
	cmd.AddCommand(a.usageNow(), a.usageAudit(), a.usageAdjust(), a.usageCapacity(), a.forecast(), a.charging(), a.prices(),
		a.file("statement", "A tenant's monthly statement, as HTML", "month", func(ctx context.Context, c *client.Client, o files) (*http.Response, error) {
			return c.GetStatement(ctx, &contract.GetStatementParams{Tenant: opt(o.tenant), Month: o.month, Zone: opt(o.zone)})
		}),
		a.file("focus", "A month's charges as CSV with the columns of FOCUS, for FinOps tools", "month", func(ctx context.Context, c *client.Client, o files) (*http.Response, error) {
			return c.GetFocus(ctx, &contract.GetFocusParams{Tenant: opt(o.tenant), Month: o.month, Zone: opt(o.zone)})
		}),
		a.file("trace", "The pool's own history as a trace for gpupool simulate", "", func(ctx context.Context, c *client.Client, o files) (*http.Response, error) {
			return c.GetTrace(ctx, &contract.GetTraceParams{From: o.from.given(), To: o.to.given()})
		}))
	return cmd
}

// given is the time, or nil where none was.
func (m *moment) given() *time.Time {
	if m.at.IsZero() {
		return nil
	}
	t := m.at.Time()
	return &t
}

// files are the flags of verbs that print a file of the API's.
type files struct {
	tenant, month, zone string
	from, to            moment
}

// file is a verb that prints what the API answers, as it is.
func (a *app) file(name, short, need string, get func(context.Context, *client.Client, files) (*http.Response, error)) *cobra.Command {
	var o files
	cmd := &cobra.Command{
		Use: name, Short: short, Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			resp, err := get(cmd.Context(), c, o)
			if err := call.Check(resp, err); err != nil {
				return err
			}
			defer resp.Body.Close()
			_, err = io.Copy(cmd.OutOrStdout(), resp.Body)
			return err
		},
	}
	f := cmd.Flags()
	if need == "month" {
		cmd.Use += " --month MONTH"
		f.StringVar(&o.month, "month", "", "the month, like 2026-11 (required)")
		f.StringVar(&o.tenant, "tenant", "", "the tenant; a tenant's own token needs none")
		f.StringVar(&o.zone, "zone", "", "time zone of the month; else the pool's")
		required(cmd, "month")
		return cmd
	}
	f.Var(&o.from, "from", "jobs submitted from this time on; else 30 days")
	f.Var(&o.to, "to", "up to this time; else now")
	return cmd
}

func (a *app) usageNow() *cobra.Command {
	var tenant, project string
	cmd := &cobra.Command{
		Use: "live", Short: "What runs now, what it has used and what it burns", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.LiveUsageList, error) {
				return call.Do[contract.LiveUsageList](c.GetLiveUsage(cmd.Context(), &contract.GetLiveUsageParams{Tenant: opt(tenant), Project: opt(project)}))
			}, func(l contract.LiveUsageList) {
				t := newTable("JOB", "TENANT/PROJECT", "SPEC", "STATE", "GPU-HOURS", "PER HOUR", "COST PER HOUR", "IDLE SINCE", "STOPPED")
				now := nowInstant()
				for _, j := range l.Items {
					t.row(j.Job, j.Tenant+"/"+j.Project, j.Spec, string(j.State), words.GPUHours(j.GpuMs), strconv.Itoa(j.GpuHoursPerHour), money(j.CostMicrosPerHour, j.Currency), words.Ago(j.IdleSince, now), reclaim(j, now))
				}
				t.write(cmd.OutOrStdout(), "Nothing runs.")
			})
		},
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "only this tenant")
	cmd.Flags().StringVar(&project, "project", "", "only this project")
	return cmd
}

// reclaim is when an idle job is stopped if it goes on so; empty where it is not.
func reclaim(j contract.LiveUsage, now schema.Instant) string {
	if j.ReclaimAt.IsZero() {
		return ""
	}
	return words.Clock(j.ReclaimAt, now)
}

func money(micros *int64, currency *string) string {
	if micros == nil || currency == nil {
		return ""
	}
	return strconv.FormatFloat(float64(*micros)/1e6, 'f', 2, 64) + " " + *currency
}

func (a *app) usageAudit() *cobra.Command {
	var from, to moment
	cmd := &cobra.Command{
		Use: "audit", Short: "Recompute a period from the events and compare it with the books; exit code 22 where they differ", Args: exactly(),
		Long: `Recompute a period from the log of events: which accelerators were installed and in which state, and what was held. Then
compare: the states with the record of states, what was held with the ledger row by row, the hourly sums with the ledger.
Each difference names the accelerator and the moment.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			r, err := call.Do[contract.Audit](c.AuditUsage(cmd.Context(), &contract.AuditUsageParams{From: from.given(), To: to.given()}))
			if err != nil {
				return err
			}
			if a.json() {
				if err := printJSON(cmd.OutOrStdout(), r); err != nil {
					return err
				}
			} else {
				auditWords(cmd.OutOrStdout(), r)
			}
			if n := len(r.Findings); n > 0 {
				return &exitError{ExitUnbalanced, fmt.Sprintf("the books do not balance: %d findings", n)}
			}
			return nil
		},
	}
	cmd.Flags().Var(&from, "from", "from this time; else 30 days before --to")
	cmd.Flags().Var(&to, "to", "up to this time; else now")
	return cmd
}

func auditWords(w io.Writer, r contract.Audit) {
	fmt.Fprintf(w, "From %s up to %s: %d accelerators, %d intervals.\n", r.From, r.To, r.Accelerators, r.Intervals)
	t := newTable("STATE", "GPU-HOURS")
	for _, s := range usage.States {
		t.row(string(s), words.GPUHours(*r.Balance.Of(s)))
	}
	t.row("sum", words.GPUHours(r.Balance.Parts()))
	t.row("installed", words.GPUHours(r.Balance.Installed))
	t.write(w, "")
	fmt.Fprintf(w, "Held by the events %s, in the ledger %s, live %s GPU-hours.\n", words.GPUHours(r.EventsGpuMs), words.GPUHours(r.LedgerGpuMs), words.GPUHours(r.LiveGpuMs))
	f := newTable("FINDING", "ACCELERATOR", "AT", "GPU-MS", "WHAT")
	for _, x := range r.Findings {
		f.row(x.Kind, x.Accelerator, x.At.String(), strconv.FormatInt(x.Milliseconds, 10), x.Text)
	}
	f.write(w, "The books balance.")
}

func (a *app) usageAdjust() *cobra.Command {
	var in contract.NewAdjustment
	var hours string
	cmd := &cobra.Command{
		Use: "adjust KEY --tenant T --gpu-hours N --note WHY", Short: "Book a correction as a row of its own; the same key is booked once", Args: exactly("KEY"),
		Example: `  gpupool usage adjust ticket-4711 --tenant acme --job job_01... --gpu-hours=-12.5 --note "the node's disk failed unnoticed"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			ms, err := gpuHours(hours)
			if err != nil {
				return err
			}
			in.Key, in.GpuMs = args[0], ms
			return act(a, cmd, func(c *client.Client) (schema.LedgerRow, error) {
				return call.Do[schema.LedgerRow](c.AdjustUsage(cmd.Context(), in))
			}, func(r schema.LedgerRow) string {
				return fmt.Sprintf("%s GPU-hours are booked for %s at %s.", words.GPUHours(r.Amount), r.Tenant, r.End)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.Tenant, "tenant", "", "tenant (required)")
	f.StringVar(&in.Project, "project", "", "project")
	f.StringVar(&in.Spec, "spec", "", "spec, by whose price it is charged")
	f.StringVar(&in.Job, "job", "", "the job that it corrects: gives project and spec")
	f.StringVar(&hours, "gpu-hours", "", "GPU-hours; negative in the tenant's favour (required)")
	f.StringVar(&in.Note, "note", "", "why; it stands on the statement (required)")
	required(cmd, "tenant", "gpu-hours", "note")
	return cmd
}

// gpuHours reads GPU-hours as GPU-milliseconds.
func gpuHours(s string) (int64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || v != v || v > 1e9 || v < -1e9 {
		return 0, schema.Invalid("gpu-hours", s, "a number of GPU-hours, like 250 or 12.5")
	}
	if v < 0 {
		return int64(v*usage.Hour - 0.5), nil
	}
	return int64(v*usage.Hour + 0.5), nil
}

func (a *app) usageCapacity() *cobra.Command {
	var from, to moment
	var every, zone string
	cmd := &cobra.Command{
		Use: "capacity", Short: "The time of all accelerators by state, which sums to what was installed", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.CapacityList, error) {
				return call.Do[contract.CapacityList](c.GetCapacity(cmd.Context(), &contract.GetCapacityParams{From: from.given(), To: to.given(), Every: opt(every), Zone: opt(zone)}))
			}, func(l contract.CapacityList) {
				head := []string{"PERIOD", "REGION", "MODEL", "INSTALLED"}
				for _, s := range usage.States {
					head = append(head, strings.ToUpper(string(s)))
				}
				t := newTable(head...)
				for _, r := range l.Items {
					row := []string{r.Period, r.Region, r.Model, words.GPUHours(r.Capacity.Installed)}
					for _, s := range usage.States {
						row = append(row, words.GPUHours(*r.Capacity.Of(s)))
					}
					t.row(row...)
				}
				t.write(cmd.OutOrStdout(), "Nothing was installed.")
			})
		},
	}
	cmd.Flags().Var(&from, "from", "from this time; else 30 days before --to")
	cmd.Flags().Var(&to, "to", "up to this time; else now")
	cmd.Flags().StringVar(&every, "every", "", "apart for each hour, day, week or month")
	cmd.Flags().StringVar(&zone, "zone", "", "time zone of --every; else the pool's")
	return cmd
}

func (a *app) report() *cobra.Command {
	var from, to moment
	var by, every, zone, tenant, project string
	cmd := &cobra.Command{
		Use: "report", Short: "The four counts: queue wait, allocated share, idle rate, success rate; and what they mean together", Args: exactly(),
		Long: `The four counts of a period. Wait: percentiles of what started. Allocated: of the time that accelerators were available.
Idle: of the allocated time whose utilization is known; what is not known is shown apart. Success: by jobs (cancelled ones
aside) and by GPU-hours of ended attempts (the same). All together, by region and by model the verdict also says for how much of the time
in which jobs waited some accelerators of what they asked for were idle.`,
		Example: `  gpupool report --by spec --from 2026-11
  gpupool report --every day -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.Report, error) {
				return call.Do[contract.Report](c.GetReport(cmd.Context(), &contract.GetReportParams{Tenant: opt(tenant), Project: opt(project), From: from.given(), To: to.given(), Every: opt(every), Zone: opt(zone), By: opt(by)}))
			}, func(r contract.Report) {
				w := cmd.OutOrStdout()
				t := newTable(periodKey(every, by, "PERIOD", strings.ToUpper(by), "STARTS", "WAIT P50", "P90", "P99", "ALLOCATED", "IDLE", "UNKNOWN", "JOBS OK", "GPU-HOURS OK")...)
				for _, n := range r.Items {
					t.row(periodKey(every, by, n.Period, n.Key, strconv.FormatInt(n.Wait.Attempts, 10), wait(n.Wait.P50), wait(n.Wait.P90), wait(n.Wait.P99), percent(n.AllocatedShare), percent(n.IdleRate), percent(n.UnknownShare), percent(n.JobSuccess), percent(n.GpuSuccess))...)
				}
				t.write(w, "Nothing to count.")
				if every != "" {
					return
				}
				for _, n := range r.Items {
					reasons(w, n)
					if n.Verdict != "" {
						fmt.Fprintln(w)
						for _, l := range wrap(words.Printable(strings.TrimPrefix(n.Key+": ", ": ")+n.Verdict, false), maxWidth) {
							fmt.Fprintln(w, l)
						}
					}
				}
			})
		},
	}
	f := cmd.Flags()
	f.Var(&from, "from", "from this time; else 30 days before --to")
	f.Var(&to, "to", "up to this time; else now")
	f.StringVar(&by, "by", "", "apart for each spec, tenant, region or model")
	f.StringVar(&every, "every", "", "apart for each hour, day, week or month")
	f.StringVar(&zone, "zone", "", "time zone of --every; else the pool's")
	f.StringVar(&tenant, "tenant", "", "only this tenant")
	f.StringVar(&project, "project", "", "only this project")
	return cmd
}

// reasons lists what held attempts up, and why jobs ended.
func reasons(w io.Writer, n contract.Counts) {
	t := newTable("WAITED FOR", "STARTS", "P50", "P90")
	var codes []string
	for code := range n.WaitByReason {
		codes = append(codes, code)
	}
	slices.Sort(codes)
	for _, code := range codes {
		v := n.WaitByReason[code]
		t.row(code, strconv.FormatInt(v.Attempts, 10), wait(v.P50), wait(v.P90))
	}
	if len(codes) > 0 {
		fmt.Fprintln(w)
		t.write(w, "")
	}
	if n.Waiting > 0 {
		fmt.Fprintf(w, "\nWaiting still: %d, of them %d for 15 minutes or longer\n", n.Waiting, n.Overdue)
	}
	var ends []string
	for cause, k := range n.Jobs {
		ends = append(ends, fmt.Sprintf("%s %d", cause, k))
	}
	slices.Sort(ends)
	if len(ends) > 0 {
		fmt.Fprintln(w, "\nJobs ended: "+strings.Join(ends, ", "))
	}
}

// periodKey leaves the first cell out of a row where the report has one period, the second where it is of everything.
func periodKey(every, by string, cells ...string) []string {
	row := cells[2:]
	if by != "" {
		row = append([]string{cells[1]}, row...)
	}
	if every != "" {
		row = append([]string{cells[0]}, row...)
	}
	return row
}

func percent(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(100**v, 'f', 1, 64) + "%"
}

func wait(ms int64) string {
	return words.Duration((time.Duration(ms) * time.Millisecond).Round(time.Second))
}

func (a *app) budget() *cobra.Command {
	var tenant, hours string
	var in contract.NewBudget
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List budgets with what their month has spent", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.BudgetList, error) {
				return call.Do[contract.BudgetList](c.ListBudgets(cmd.Context(), &contract.ListBudgetsParams{Tenant: opt(tenant)}))
			}, func(l contract.BudgetList) {
				t := newTable("ID", "TENANT", "PROJECT", "MODEL", "GPU-HOURS A MONTH", "SPENT", "COMMITTED", "REMAINING", "ZONE")
				for _, b := range l.Items {
					t.row(b.Id, b.Tenant, b.Project, b.Model, words.GPUHours(b.GpuMs), words.GPUHours(b.SpentGpuMs), words.GPUHours(b.CommittedGpuMs), words.GPUHours(b.RemainingGpuMs), b.Zone)
				}
				t.write(cmd.OutOrStdout(), "No budgets: nothing is limited.")
			})
		},
	}
	set := &cobra.Command{
		Use: "set --tenant T [--project P] [--model M] --gpu-hours N", Short: "Set the GPU-hours of each calendar month", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if in.GpuMs, err = gpuHours(hours); err != nil {
				return err
			}
			return act(a, cmd, func(c *client.Client) (contract.Budget, error) {
				return call.Do[contract.Budget](c.SetBudget(cmd.Context(), in))
			}, func(b contract.Budget) string {
				return fmt.Sprintf("%s: %s GPU-hours a month (%s), %s remain.", strings.TrimSuffix(b.Tenant+"/"+b.Project, "/"), words.GPUHours(b.GpuMs), b.Zone, words.GPUHours(b.RemainingGpuMs))
			})
		},
	}
	remove := &cobra.Command{
		Use: "delete ID", Short: "Remove a budget", Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (struct{}, error) {
				return call.Do[struct{}](c.DeleteBudget(cmd.Context(), args[0]))
			}, func(struct{}) string { return "The budget is gone." })
		},
	}
	list.Flags().StringVar(&tenant, "tenant", "", "only this tenant")
	f := set.Flags()
	f.StringVar(&in.Tenant, "tenant", "", "tenant (required)")
	f.StringVar(&in.Project, "project", "", "project; else the tenant as a whole")
	f.StringVar(&in.Model, "model", "", "accelerator model; else all")
	f.StringVar(&hours, "gpu-hours", "", "GPU-hours a month (required)")
	f.StringVar(&in.Zone, "zone", "", "time zone of the month; else UTC")
	f.IntSliceVar(&in.Warn, "warn", nil, "per cents at which is warned; else 50,80,100")
	required(set, "tenant", "gpu-hours")
	return group("budget", "Budgets: GPU-hours a month for tenants and projects", list, set, remove)
}

func (a *app) prices() *cobra.Command {
	var in contract.NewPrice
	var price string
	var from moment
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List prices of all times", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.PriceList, error) {
				return call.Do[contract.PriceList](c.ListPrices(cmd.Context()))
			}, func(l contract.PriceList) {
				t := newTable("SPEC", "FROM", "PER GPU-HOUR", "BY")
				for _, p := range l.Items {
					t.row(p.Spec, p.From.String(), money(&p.Micros, &p.Currency), p.By)
				}
				t.write(cmd.OutOrStdout(), "No prices: usage is shown without cost.")
			})
		},
	}
	set := &cobra.Command{
		Use: "set SPEC --per-gpu-hour N --currency C", Short: "Price a spec's accelerator-hour, from the next hour or a later one on", Args: exactly("SPEC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := strconv.ParseFloat(price, 64)
			if err != nil || !(v >= 0 && v <= 1e6) {
				return schema.Invalid("per-gpu-hour", price, "a price, like 2.49")
			}
			in.Spec, in.MicrosPerHour, in.From = args[0], int64(v*1e6+0.5), from.given()
			return act(a, cmd, func(c *client.Client) (usage.Price, error) {
				return call.Do[usage.Price](c.SetPrice(cmd.Context(), in))
			}, func(p usage.Price) string {
				since := "as of ever"
				if !p.From.IsZero() {
					since = "from " + p.From.String() + " on"
				}
				return fmt.Sprintf("%s costs %s a GPU-hour %s.", p.Spec, money(&p.Micros, &p.Currency), since)
			})
		},
	}
	f := set.Flags()
	f.StringVar(&price, "per-gpu-hour", "", "the price (required)")
	f.StringVar(&in.Currency, "currency", "", "three letters, like EUR (required)")
	f.Var(&from, "from", "from this whole hour on; else the next, or ever for a first price")
	required(set, "per-gpu-hour", "currency")
	return group("price", "Prices of specs", list, set)
}

func (a *app) charging() *cobra.Command {
	read := func(cmd *cobra.Command) func(*client.Client) (usage.Policy, error) {
		return func(c *client.Client) (usage.Policy, error) {
			return call.Do[usage.Policy](c.GetCharging(cmd.Context()))
		}
	}
	print := func(w io.Writer, p usage.Policy) {
		f := fields{w}
		f.put("launch", string(p.Launch))
		f.put("drain", string(p.Drain))
		f.put("preempted run", string(p.PreemptedRun))
		f.put("its grace", string(p.PreemptedDrain))
		f.put("unstarted", "charged "+schema.Setting(time.Duration(p.Unstarted)*time.Millisecond)+" at most")
		f.put("lost", string(p.Lost))
		f.put("months", fmt.Sprintf("%s, closed %d days after their end", p.Zone, p.CloseAfterDays))
		f.put("idle", fmt.Sprintf("under %d%% utilization; told %s, stopped %s", p.IdleBelow, idleWords(p.IdleWarn), idleWords(p.IdleReclaim)))
	}
	var changes struct {
		launch, drain, run, grace, lost, zone string
		unstarted, warn, reclaim              time.Duration
		close                                 int
		below                                 int
	}
	get := &cobra.Command{Use: "show", Short: "What of held time is charged, and what counts as idle", Args: exactly(), RunE: func(cmd *cobra.Command, _ []string) error {
		return show(a, cmd, read(cmd), func(p usage.Policy) { print(cmd.OutOrStdout(), p) })
	}}
	set := &cobra.Command{Use: "set", Short: "Change what is charged of what ends from now on; flags that are not given stay", Args: exactly(), RunE: func(cmd *cobra.Command, _ []string) error {
		return act(a, cmd, func(c *client.Client) (usage.Policy, error) {
			p, err := read(cmd)(c)
			if err != nil {
				return p, err
			}
			on := cmd.Flags().Changed
			for _, f := range []struct {
				flag string
				set  func()
			}{
				{"launch", func() { p.Launch = usage.Payer(changes.launch) }}, {"drain", func() { p.Drain = usage.Payer(changes.drain) }},
				{"preempted-run", func() { p.PreemptedRun = usage.Payer(changes.run) }}, {"preempted-drain", func() { p.PreemptedDrain = usage.Payer(changes.grace) }},
				{"lost", func() { p.Lost = usage.Loss(changes.lost) }}, {"zone", func() { p.Zone = changes.zone }}, {"close-after-days", func() { p.CloseAfterDays = changes.close }},
				{"unstarted-charged", func() { p.Unstarted = changes.unstarted.Milliseconds() }}, {"idle-below", func() { p.IdleBelow = changes.below }},
				{"idle-warn", func() { p.IdleWarn = changes.warn.Milliseconds() }}, {"idle-reclaim", func() { p.IdleReclaim = changes.reclaim.Milliseconds() }},
			} {
				if on(f.flag) {
					f.set()
				}
			}
			return call.Do[usage.Policy](c.SetCharging(cmd.Context(), p))
		}, func(usage.Policy) string { return "Charging is changed for what ends from now on." })
	}}
	f := set.Flags()
	f.StringVar(&changes.launch, "launch", "", "who pays from allocation to running: tenant or pool")
	f.StringVar(&changes.drain, "drain", "", "who pays from the order to stop to the release, but for a preemption")
	f.StringVar(&changes.run, "preempted-run", "", "who pays what a preempted attempt ran")
	f.StringVar(&changes.grace, "preempted-drain", "", "who pays its grace period")
	f.StringVar(&changes.lost, "lost", "", "credited where hardware ended an attempt: since-good, all or none")
	f.StringVar(&changes.zone, "zone", "", "time zone of months")
	f.IntVar(&changes.close, "close-after-days", 0, "days after its end on which a month is closed")
	f.DurationVar(&changes.unstarted, "unstarted-charged", 0, "what an attempt that never started is charged at most")
	f.IntVar(&changes.below, "idle-below", 0, "the utilization in per cent under which an accelerator is idle")
	f.DurationVar(&changes.warn, "idle-warn", 0, "a job idle for as long is told of; 0 = never")
	f.DurationVar(&changes.reclaim, "idle-reclaim", 0, "a job idle for as long is stopped; 0 = never")
	return group("charging", "What of held time is charged", get, set)
}

// partsOf are the cells of --parts. What is not known is empty, not 0.
func partsOf(r contract.UsageRow, exact bool, hours func(int64) string) []string {
	known := func(ms *int64, text func(int64) string) string {
		if ms == nil {
			return ""
		}
		return text(*ms)
	}
	if exact {
		whole := func(ms int64) string { return strconv.FormatInt(ms, 10) }
		return []string{known(r.WaitedMs, whole), whole(r.LaunchGpuMs), whole(r.RunningGpuMs), whole(r.DrainGpuMs), whole(r.CreditGpuMs), whole(r.AdjustmentGpuMs), known(r.KnownGpuMs, whole), known(r.IdleGpuMs, whole)}
	}
	unknown := func(ms int64) string { return hours(max(0, r.UsedGpuMs-ms)) }
	return []string{known(r.WaitedMs, wait), hours(r.LaunchGpuMs), hours(r.RunningGpuMs), hours(r.DrainGpuMs), hours(r.CreditGpuMs), hours(r.AdjustmentGpuMs), known(r.IdleGpuMs, hours), known(r.KnownGpuMs, unknown)}
}

// usageTable has a column for each key, then the hours; for people a last line with the total.
func usageTable(u contract.Usage, exact, parts bool) *table {
	priced := slices.ContainsFunc(u.Items, func(r contract.UsageRow) bool { return r.CostMicros != nil })
	head := make([]string, 0, len(u.By)+3)
	for _, k := range u.By {
		if !exact {
			k = strings.ToUpper(k)
		}
		head = append(head, k)
	}
	if exact {
		head = append(head, "gpu_ms", "gpu_hours")
	} else {
		head = append(head, "GPU-HOURS")
	}
	if priced && exact {
		head = append(head, "cost")
	} else if priced {
		head = append(head, "COST")
	}
	if parts && exact {
		head = append(head, "waited_ms", "launch_gpu_ms", "running_gpu_ms", "drain_gpu_ms", "credit_gpu_ms", "adjustment_gpu_ms", "known_gpu_ms", "idle_gpu_ms")
	} else if parts {
		head = append(head, "WAITED", "LAUNCH", "RUN", "DRAIN", "CREDITED", "CORRECTED", "IDLE", "IDLE UNKNOWN")
	}
	t := newTable(head...)
	hours := func(ms int64) string { return words.GPUHoursTo(ms, words.HourDigits(u.TotalGpuMs)) }
	if exact {
		hours = func(ms int64) string { return words.GPUHoursTo(ms, 6) }
	}
	for _, r := range u.Items {
		row := make([]string, 0, len(head))
		for _, k := range u.By {
			row = append(row, r.Keys[k])
		}
		if exact {
			row = append(row, strconv.FormatInt(r.GpuMs, 10))
		}
		row = append(row, hours(r.GpuMs))
		if priced {
			row = append(row, money(r.CostMicros, r.Currency))
		}
		if parts {
			row = append(row, partsOf(r, exact, hours)...)
		}
		t.row(row...)
	}
	if !exact && len(u.Items) > 0 && len(u.By) > 0 {
		total := make([]string, len(head))
		total[0] = "total"
		for i := 1; i < len(head); i++ {
			total[i] = " "
		}
		total[len(u.By)] = hours(u.TotalGpuMs)
		t.row(total...)
	}
	return t
}
