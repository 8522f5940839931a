package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

func (a *app) health() *cobra.Command {
	return group("health", "See and change what evidence of failing hardware means, and what came of it",
		a.healthRules(), a.healthSet(), a.healthReplay(), a.healthSilence(), a.healthSilences(), a.healthUnsilence(), a.healthBreakers(), a.healthReset(), a.healthTimes(), a.healthHistory(), a.healthLemons())
}

func (a *app) healthRules() *cobra.Command {
	var kind string
	cmd := &cobra.Command{
		Use: "rules", Short: "List the rules with what came of them over 30 days", Args: exactly(), Example: "  gpupool health rules --kind xid",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.HealthRuleList, error) {
				return call.Do[contract.HealthRuleList](c.ListHealthRules(cmd.Context()))
			}, func(l contract.HealthRuleList) {
				t := newTable("RULE", "MODE", "WHEN", "ACTION", "CURE", "MET", "REPAIRS", "FALSE", "WHY")
				for _, r := range l.Items {
					if kind != "" && r.Kind != kind {
						continue
					}
					mode := r.Mode
					if r.Changed != "" {
						mode += " (changed)"
					}
					t.row(r.Name, mode, whenMet(r), string(r.Action), string(r.Cure), strconv.Itoa(r.Met), strconv.Itoa(r.Repairs), strconv.Itoa(r.FalsePositives), r.Why)
				}
				t.write(cmd.OutOrStdout(), "No such rules.")
			})
		},
	}
	cmd.Flags().StringVar(&kind, "kind", "", "only of this kind of evidence: xid, ras, link, ...")
	return cmd
}

// whenMet is a rule's condition in few words.
func whenMet(r schema.HealthRule) string {
	var w []string
	if len(r.Codes) > 0 {
		w = append(w, strings.Join(r.Codes, ","))
	}
	if r.Severity != "" {
		w = append(w, string(r.Severity))
	}
	if r.Above > 0 {
		w = append(w, "over "+strconv.FormatFloat(r.Above, 'f', -1, 64))
	}
	if r.Beside != "" {
		w = append(w, "beside "+r.Beside)
	}
	if r.Count > 1 {
		n := strconv.Itoa(r.Count) + " times"
		if r.Across {
			n += " over repairs"
		}
		w = append(w, n+" in "+schema.Setting(time.Duration(r.Within)*time.Millisecond))
	}
	return r.Kind + " " + strings.Join(w, " ")
}

func ruleChangeFlags(cmd *cobra.Command, in *contract.RuleChange, within *duration) {
	f := cmd.Flags()
	f.StringVar((*string)(&in.Mode), "mode", "", "off, observe or enforce")
	f.Int64Var(&in.Count, "count", 0, "how often, within --within")
	f.Var(within, "within", "of so long, such as 24h")
	f.Int64Var(&in.Above, "above", 0, "the least value, in the kind's unit")
	f.StringVar((*string)(&in.Action), "action", "", "observe, cordon, reset or repair")
	f.StringVar((*string)(&in.Cure), "cure", "", "burn-in, device, baseboard, reboot, power-cycle or technician")
	f.StringVar(&in.Reason, "reason", "", "why")
}

func (a *app) healthSet() *cobra.Command {
	var in contract.RuleChange
	var within duration
	cmd := &cobra.Command{
		Use: "set RULE [--mode M] [--count N --within D] [--above V] [--action A] [--cure C] --reason TEXT", Short: "Change a rule; without a change, take an earlier one back", Args: exactly("RULE"),
		Example: `  gpupool health set xid-94-again --count 5 --within 24h --reason "tenants' own fault, looked into"
  gpupool health set xid-94-again --reason "back to the built-in rule"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			in.WithinMs = within.ms
			return act(a, cmd, func(c *client.Client) (schema.HealthRule, error) {
				return call.Do[schema.HealthRule](c.ChangeHealthRule(cmd.Context(), args[0], in))
			}, func(r schema.HealthRule) string {
				return fmt.Sprintf("Rule %s: %s, when %s: %s.", r.Name, r.Mode, whenMet(r), r.Action)
			})
		},
	}
	ruleChangeFlags(cmd, &in, &within)
	required(cmd, "reason")
	return cmd
}

func (a *app) healthReplay() *cobra.Command {
	var in contract.RuleChange
	var within, since duration
	var rule string
	cmd := &cobra.Command{
		Use: "replay [--since D] [--rule RULE --mode M --count N ...]", Short: "What the rules, or a changed one, would have made of past faults", Args: exactly(),
		Long:    "Judge the faults of the last week anew by the rules in force, or with a change that is tried. Nothing is changed by it.",
		Example: "  gpupool health replay --rule xid-31-again --mode enforce --count 3",
		RunE: func(cmd *cobra.Command, _ []string) error {
			req := contract.ReplayRequest{Rule: rule}
			if since.ms > 0 {
				req.Since = nowInstant().Add(-time.Duration(since.ms) * time.Millisecond)
			}
			if in.WithinMs = within.ms; in != (contract.RuleChange{}) {
				if in.Reason == "" {
					in.Reason = "tried"
				}
				req.Change = &in
			}
			var c *client.Client
			return show(a, cmd, func(to *client.Client) (schema.Replay, error) {
				c = to
				return call.Do[schema.Replay](c.ReplayHealth(cmd.Context(), req))
			}, func(r schema.Replay) {
				out := cmd.OutOrStdout()
				fmt.Fprintf(out, "%s since %s.\n", words.Count(r.Faults, "fault"), words.Clock(r.Since, nowInstant()))
				replayTable(r, req.Change != nil).write(out, "No faults.")
				then, now := "THEN", "NOW"
				if req.Change != nil {
					then, now = inForce, changed
				}
				switch {
				case len(r.Differ) > 0 && req.Change != nil:
					fmt.Fprintf(out, "\nWhat the change of %s would make different:\n", rule)
				case len(r.Differ) > 0:
					fmt.Fprintln(out, "\nOtherwise than it was:")
				case req.Change != nil:
					fmt.Fprintf(out, "\nThe change of %s would make nothing of these faults different.\n", rule)
					return
				default:
					return
				}
				known := serverNames(cmd, c)
				t := newTable("AT", "SERVER", then, now, "RULE", "TEXT")
				for _, d := range r.Differ {
					t.row(words.Clock(d.At, nowInstant()), known.of(d.Server), d.Then, string(d.Verdict), d.Rule, d.Text)
				}
				t.write(out, "")
			})
		},
	}
	ruleChangeFlags(cmd, &in, &within)
	cmd.Flags().StringVar(&rule, "rule", "", "the rule that is changed")
	cmd.Flags().Var(&since, "since", "how far back, such as 30d; 7d where it is not given")
	return cmd
}

// The two sides of a replay with a change.
const inForce, changed = "IN FORCE", "WITH THE CHANGE"

// replayTable is how often each rule would have asked for what; where a change was tried, beside what the rules in force do.
func replayTable(r schema.Replay, tried bool) *table {
	if !tried {
		t := newTable("RULE", "ACTION", "FAULTS", "SERVERS")
		for _, x := range r.Actions {
			t.row(ruleName(x.Rule), string(x.Action), strconv.Itoa(x.Faults), strconv.Itoa(x.Servers))
		}
		return t
	}
	find := func(list []schema.ActionCount, of schema.ActionCount) string {
		for _, x := range list {
			if x.Rule == of.Rule && x.Action == of.Action {
				return words.Count(x.Faults, "fault") + " on " + words.Count(x.Servers, "server")
			}
		}
		return ""
	}
	t := newTable("RULE", "ACTION", inForce, changed)
	for _, x := range r.Actions {
		t.row(ruleName(x.Rule), string(x.Action), find(r.Before, x), find(r.Actions, x))
	}
	for _, x := range r.Before {
		if find(r.Actions, x) == "" {
			t.row(ruleName(x.Rule), string(x.Action), find(r.Before, x), "")
		}
	}
	return t
}

func ruleName(rule string) string {
	if rule == "" {
		return "(no rule knows it)"
	}
	return rule
}

func (a *app) healthSilence() *cobra.Command {
	var in contract.NewSilence
	var until moment
	cmd := &cobra.Command{
		Use: "silence [--rule R] [--kind K] [--code C] [--server S] --until +D --reason TEXT", Short: "Keep evidence from being acted on until a moment", Args: exactly(),
		Example: `  gpupool health silence --rule link-errors --server r12s03 --until +2d --reason "cable on order"`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in.Until = until.at
			return act(a, cmd, func(c *client.Client) (schema.Silence, error) {
				return call.Do[schema.Silence](c.CreateSilence(cmd.Context(), in))
			}, func(x schema.Silence) string {
				return fmt.Sprintf("Silence %s until %s. End it: gpupool health unsilence %s", x.ID, x.Until, x.ID)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.Rule, "rule", "", "that would act")
	f.StringVar(&in.Kind, "kind", "", "of evidence")
	f.StringVar(&in.Code, "code", "", "of evidence")
	f.StringVar(&in.Server, "server", "", "id or name")
	f.StringVar(&in.Accelerator, "accelerator", "", "id or serial; with --server also its slot")
	f.Var(&until, "until", "a moment, or +2d (required)")
	f.StringVar(&in.Reason, "reason", "", "why (required)")
	required(cmd, "until", "reason")
	return cmd
}

func (a *app) healthSilences() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "silences", Short: "List the silences in force", Args: exactly(), Example: "  gpupool health silences --all",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.SilenceList, error) {
				return call.Do[contract.SilenceList](c.ListSilences(cmd.Context(), &contract.ListSilencesParams{All: opt(all)}))
			}, func(l contract.SilenceList) {
				t := newTable("ID", "RULE", "KIND", "CODE", "SERVER", "UNTIL", "BY", "REASON")
				for _, x := range l.Items {
					t.row(x.ID, x.Rule, x.Kind, x.Code, x.Server, words.Clock(x.Until, nowInstant()), x.By, x.Reason)
				}
				t.write(cmd.OutOrStdout(), "Nothing is silenced.")
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also those that are over")
	return cmd
}

func (a *app) healthUnsilence() *cobra.Command {
	return &cobra.Command{
		Use: "unsilence ID", Short: "End a silence before its time", Args: exactly("ID"), Example: "  gpupool health unsilence sil_01k8",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			if err := call.Check(c.EndSilence(cmd.Context(), args[0])); err != nil {
				return err
			}
			return a.said(cmd, map[string]string{"id": args[0]}, "Silence %s is over.", args[0])
		},
	}
}

func (a *app) healthBreakers() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "breakers", Short: "List what holds automatic cordons back", Args: exactly(), Example: "  gpupool health breakers",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.BreakerList, error) {
				return call.Do[contract.BreakerList](c.ListBreakers(cmd.Context(), &contract.ListBreakersParams{All: opt(all)}))
			}, func(l contract.BreakerList) {
				out := cmd.OutOrStdout()
				t := newTable("ID", "SCOPE", "OPENED", "RESET", "WHY")
				for _, b := range l.Items {
					t.row(b.ID, b.Scope, words.Ago(b.OpenedAt, nowInstant()), b.ResetBy, b.Why)
				}
				t.write(out, "No breaker is open.")
				t = newTable("HELD BACK", "SINCE", "WHERE", "BREAKER", "TEXT")
				open := false
				for _, b := range l.Items {
					open = open || b.ResetAt.IsZero()
					for _, h := range b.Held {
						t.row(strings.TrimSpace(h.Kind+" "+h.Code), words.Ago(h.At, nowInstant()), strings.TrimSpace(h.ServerName+" "+h.Slot), b.Scope, h.Text)
					}
				}
				if len(t.rows) > 0 {
					fmt.Fprintln(out)
					t.write(out, "")
				}
				if open {
					fmt.Fprintln(out, "\nWhile a breaker is open no server of its scope is taken out automatically, except where work may be\ncorrupted. Once you know the cause: gpupool health reset ID --reason TEXT")
				}
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "also those that were reset")
	return cmd
}

// resetBreaker is the command that lets faults of a breaker's scope be acted on again.
func resetBreaker(b schema.Breaker) string { return "gpupool health reset " + b.ID + " --reason TEXT" }

func (a *app) healthReset() *cobra.Command {
	var in contract.WithReason
	cmd := &cobra.Command{
		Use: "reset ID --reason TEXT", Short: "Reset a breaker: what it held back is judged anew", Args: exactly("ID"), Example: `  gpupool health reset brk_01k8 --reason "driver 570.86 rolled back"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (schema.Breaker, error) {
				return call.Do[schema.Breaker](c.ResetBreaker(cmd.Context(), args[0], in))
			}, func(b schema.Breaker) string {
				return fmt.Sprintf("Breaker %s (%s) is reset. What it held back is judged anew; while as much is out as the limit allows, it opens again.", b.ID, b.Scope)
			})
		},
	}
	cmd.Flags().StringVar(&in.Reason, "reason", "", "what was found (required)")
	required(cmd, "reason")
	return cmd
}

func (a *app) healthTimes() *cobra.Command {
	var since duration
	cmd := &cobra.Command{
		Use: "times", Short: "How long repairs took, how often hardware fails, and what that cost", Args: exactly(), Example: "  gpupool health times --since 90d",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var p contract.GetHealthTimesParams
			if since.ms > 0 {
				p.Since = opt(nowInstant().Add(-time.Duration(since.ms) * time.Millisecond).Time())
			}
			return show(a, cmd, func(c *client.Client) (schema.HealthTimes, error) {
				return call.Do[schema.HealthTimes](c.GetHealthTimes(cmd.Context(), &p))
			}, func(h schema.HealthTimes) {
				out := cmd.OutOrStdout()
				fmt.Fprintf(out, "%s since %s.\n", words.Count(h.Repairs, "repair"), words.Clock(h.Since, nowInstant()))
				t := newTable("STEP", "COUNT", "MEAN", "P50", "P90", "MAX")
				secs := func(s float64) string {
					return words.Duration((time.Duration(s*1000) * time.Millisecond).Round(time.Second))
				}
				for _, x := range h.Steps {
					if x.Count == 0 {
						t.row(x.Step, "0", "", "", "", "")
						continue
					}
					t.row(x.Step, strconv.Itoa(x.Count), secs(x.Mean), secs(x.P50), secs(x.P90), secs(x.Max))
				}
				t.write(out, "")
				share := func(v float64) string { return strconv.FormatFloat(100*v, 'f', 0, 64) + " %" }
				f := fields{out}
				if h.Repairs > 0 {
					f.put("MTBF", strconv.FormatFloat(h.MTBFHours, 'f', 1, 64)+" hours (a server in the pool between two repairs)")
				}
				if h.Returned == 0 {
					f.put("Shares", "none yet: no repair has returned its server")
				} else {
					f.put("First proof passed", share(h.FirstPass))
					f.put("By resets alone", share(h.ResetsAlone))
					f.put("Again in 7 d, 30 d", share(h.Repeat7d)+", "+share(h.Repeat30d))
					f.put("False positives", share(h.FalsePos))
				}
				f.put("Lost GPU-hours", strconv.FormatFloat(h.LostGPUHours, 'f', 1, 64))
				t = newTable("CAUSE", "REPAIRS", "GPU-HOURS")
				for _, l := range h.LostByCause {
					t.row(l.Rule, strconv.Itoa(l.Repairs), strconv.FormatFloat(l.GPUHours, 'f', 1, 64))
				}
				t.write(out, "")
			})
		},
	}
	cmd.Flags().Var(&since, "since", "how far back; 30d where it is not given")
	return cmd
}

func (a *app) healthHistory() *cobra.Command {
	var since duration
	cmd := &cobra.Command{
		Use: "history SERVER [DEVICE] [METRIC] [--since D]", Short: "What a server's devices read by the hour",
		Long: "List the least, the mean, the greatest and the last of each metric by the hour. DEVICE is an id, a serial, a UUID or a slot; - is every one. An hour without a reading is unknown, and is not listed. What the BMC reads stands beside what the agent reads; where the two can't both be right, both lines say so.",
		Args: cobra.RangeArgs(1, 3), Example: "  gpupool health history r12s03 SXM3 ecc_corrected_total --since 7d\n  gpupool health history r12s03 - temperature_celsius",
		RunE: func(cmd *cobra.Command, args []string) error {
			p := contract.GetHealthHistoryParams{Server: args[0]}
			if len(args) > 1 && args[1] != "-" {
				p.Device = opt(args[1])
			}
			if len(args) > 2 {
				p.Metric = opt(args[2])
			}
			if since.ms > 0 {
				p.Since = opt(nowInstant().Add(-time.Duration(since.ms) * time.Millisecond).Time())
			}
			return show(a, cmd, func(c *client.Client) (contract.MetricHourList, error) {
				return call.Do[contract.MetricHourList](c.GetHealthHistory(cmd.Context(), &p))
			}, func(l contract.MetricHourList) {
				num := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
				t := newTable("HOUR", "SLOT", "SERIAL", "METRIC", "SOURCE", "MIN", "MEAN", "MAX", "LAST", "READINGS", "NOTE")
				for _, x := range l.Items {
					note := ""
					if x.Differs {
						note = "agent and BMC differ"
					}
					t.row(words.Clock(x.Hour, nowInstant()), x.Slot, x.Serial, x.Metric, x.Source, num(x.Min), num(x.Mean), num(x.Max), num(x.Last), strconv.FormatInt(x.Samples, 10), note)
				}
				t.write(cmd.OutOrStdout(), "Nothing was read in that time.")
			})
		},
	}
	cmd.Flags().Var(&since, "since", "how far back, such as 7d; a day where it is not given")
	return cmd
}

func (a *app) healthLemons() *cobra.Command {
	return &cobra.Command{
		Use: "lemons", Short: "Devices and slots that came back too often over 28 days", Args: exactly(), Example: "  gpupool health lemons",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.LemonList, error) {
				return call.Do[contract.LemonList](c.ListLemons(cmd.Context()))
			}, func(l contract.LemonList) {
				t := newTable("SCORE", "WHAT", "DEVICES", "REPAIRS", "UNPROVEN", "FAULTS")
				for _, x := range l.Items {
					what := "device " + x.Serial
					if x.Slot != "" {
						what = "slot " + x.Server + " " + x.Slot
					}
					t.row(strconv.Itoa(x.Score), what, strconv.Itoa(x.Devices), strconv.Itoa(x.Repairs), strconv.Itoa(x.Unproven), strconv.Itoa(x.Faults))
				}
				t.write(cmd.OutOrStdout(), "Nothing came back.")
			})
		},
	}
}
