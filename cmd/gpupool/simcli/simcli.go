// Package simcli is `gpupool simulate`: a trace through the allocator's engine on a virtual clock.
package simcli

import (
	"errors"

	"github.com/spf13/cobra"

	"gpupool/activities/allocator/simulate"
	"gpupool/schema"
)

// Command is `gpupool simulate`.
func Command() *cobra.Command {
	var o simulate.Options
	var output string
	c := &cobra.Command{Use: "simulate --trace FILE (--pool FILE | --gpus N)", Short: "Replay a trace of jobs through the engine: waits, utilization, fragmentation", Args: cobra.NoArgs,
		Long:    "Replay a trace of jobs through the allocator's engine on a virtual clock: waits by spec, utilization, fragmentation,\npreemptions, GPU-hours by tenant.\n\nA trace is CSV with the columns of one of three formats:\n  gpupool  submit,run,accelerators, and where wanted id,tenant,project,spec,model,nodes,priority,preemptible,limit (times in seconds;\n           a job without a model takes any)\n  Philly   timestamp,duration,num_gpus,gpu_time,cluster\n  openb    name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,...,creation_time,deletion_time,scheduled_time\n\nA pool is openb's node list as CSV, or YAML of groups of equal servers:\n  servers: [{count: 100, model: h100, accelerators: 8, per_rack: 8, nvlink_rack: false, cpu: 112, memory_gib: 2048, site: s1, region: eu}]\n\nA policy is YAML, every field optional:\n  name, order (fair-share, fifo), placement (least-fragmentation, best-fit, spread), half_life, entry_penalty,\n  min_run_time, grace, assumed_limit, preemption, backfill, reservations, backfill_depth,\n  preemptible (takes every job of the trace for preemptible)\n  quotas:   [{tenant: red, project: a, model: h100, guaranteed: 8, limit: 16}]\n  accounts: [{tenant: red, project: a, weight: 2, max_running_jobs: 10, max_priority: 50}]\n  budgets:  [{tenant: red, project: a, model: h100, gpu_hours: 1000, time_zone: Europe/Berlin}]\n  windows:  [{id: fw, kind: maintenance, servers: [g0s00000], from: 2026-03-01T00:00:00Z, until: 2026-03-01T04:00:00Z}]",
		Example: "  gpupool simulate --trace philly.csv --gpus 1243\n  gpupool simulate --trace jobs.csv --pool pool.yaml --policy a.yaml --policy b.yaml --picture queue.svg",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch output {
			case "table", "json":
			default:
				return schema.Invalid("output", output, "table or json")
			}
			o.JSON, o.Progress = output == "json", cmd.ErrOrStderr()
			err := simulate.Run(o, cmd.OutOrStdout())
			if errors.Is(err, simulate.ErrOptions) {
				return &schema.Error{Code: schema.CodeInvalid, Message: err.Error(), Hint: "see gpupool simulate --help"}
			}
			return err
		}}
	f := c.Flags()
	f.StringVar(&o.Trace, "trace", "", "trace of jobs, CSV: Philly, openb or gpupool columns")
	f.StringVar(&o.Pool, "pool", "", "pool: YAML, or openb's node list as CSV")
	f.IntVar(&o.GPUs, "gpus", 0, "instead of a pool: so many accelerators without topology")
	f.StringArrayVar(&o.Policies, "policy", nil, "policy, YAML; several are compared side by side")
	f.Float64Var(&o.Fill, "fill", 0, "fill the pool to this share of demand with tasks that never end")
	f.Uint64Var(&o.Seed, "seed", 1, "order of --fill")
	f.StringVar(&o.Picture, "picture", "", "write queue and utilization as SVG here")
	f.StringVar(&o.Report, "report", "", "write the reports as JSON here")
	f.StringVarP(&output, "output", "o", "table", "table, or json for programs")
	return c
}
