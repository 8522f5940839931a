package cli

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

func (a *app) usage() *cobra.Command {
	var by []string
	var from, to moment
	var tenant, project string
	var live bool
	keys := []string{"tenant", "project", "spec", "model", "job", "server"}
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Report GPU-hours by tenant, project, spec and so on",
		Long: `Report GPU time from the ledger. An interval counts from its begin up to, not including, its end, and is cut at --from
and --to. Times without a zone are UTC; 2026-11 is the begin of that month. With -o csv the columns hold
GPU-milliseconds as well, which add up exactly.`,
		Example: `  gpupool usage --by tenant,project --from 2026-11 --to 2026-12
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
			p := contract.GetUsageParams{Tenant: opt(tenant), Project: opt(project), Live: opt(live), By: &by}
			if !from.at.IsZero() {
				t := from.at.Time()
				p.From = &t
			}
			if !to.at.IsZero() {
				t := to.at.Time()
				p.To = &t
			}
			u, err := call.Do[contract.Usage](c.GetUsage(cmd.Context(), &p))
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			switch a.output {
			case "json":
				return printJSON(w, u)
			case "csv":
				return usageTable(u, true).csv(w)
			}
			usageTable(u, false).write(w, "Nothing was used.")
			return nil
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&by, "by", []string{"tenant", "project", "spec"}, "group by these, in this order: "+strings.Join(keys, ", "))
	f.Var(&from, "from", "from this time; else from the beginning")
	f.Var(&to, "to", "up to this time; else now")
	f.StringVar(&tenant, "tenant", "", "only this tenant")
	f.StringVar(&project, "project", "", "only this project")
	f.BoolVar(&live, "live", false, "count also what runs now")
	return cmd
}

// usageTable has a column for each key, then the hours; for people a last line with the total.
func usageTable(u contract.Usage, exact bool) *table {
	head := make([]string, 0, len(u.By)+2)
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
		t.row(append(row, hours(r.GpuMs))...)
	}
	if !exact && len(u.Items) > 0 && len(u.By) > 0 {
		total := make([]string, len(head))
		total[0] = "total"
		for i := 1; i < len(head)-1; i++ {
			total[i] = " "
		}
		total[len(head)-1] = hours(u.TotalGpuMs)
		t.row(total...)
	}
	return t
}
