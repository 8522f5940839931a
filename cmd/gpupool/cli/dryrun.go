package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

// dryRun asks what would become of a job, and submits nothing.
func (a *app) dryRun(cmd *cobra.Command, c *client.Client, r *request, command []string) error {
	if err := r.complete(command); err != nil {
		return err
	}
	d, err := again(cmd, func() (contract.DryRun, error) {
		return call.Do[contract.DryRun](c.DryRunJob(cmd.Context(), r.in))
	})
	if err != nil {
		return err
	}
	if a.json() {
		if err := printJSON(cmd.OutOrStdout(), d); err != nil {
			return err
		}
	} else {
		readable(cmd, c, contract.Job{Reason: d.Reason})
		putDryRun(fields{cmd.OutOrStdout()}, d, nowInstant())
	}
	if !d.Starts && len(d.Victims) == 0 {
		return &exitError{code: ExitWouldWait}
	}
	return nil
}

func putDryRun(f fields, d contract.DryRun, now schema.Instant) {
	switch {
	case d.Starts:
		f.put("It would", "start at once")
		on := make([]string, len(d.Places))
		for i, p := range d.Places {
			on[i] = p.Server + "/" + strings.Join(p.Slots, " ")
		}
		f.put("On", strings.Join(on, "\n"))
	case len(d.Victims) > 0:
		f.put("It would", "start when others have been stopped for it")
		stop := make([]string, len(d.Victims))
		for i, v := range d.Victims {
			stop[i] = fmt.Sprintf("%s: %d accelerators, %s, ended by %s, loses %.2f accelerator-hours", strings.TrimSpace(v.Job+" "+v.Name), v.Accelerators, victimWords(v.Why), words.Clock(v.GraceUntil, now), float64(v.LostGpuMs)/3.6e6)
		}
		f.put("To stop", strings.Join(stop, "\n"))
	default:
		f.put("It would", "wait")
	}
	if d.Reason != nil && len(d.Victims) == 0 {
		putWhy(f, words.Reason(*d.Reason, now))
	}
	f.put("Priority", fmt.Sprint(d.Priority))
	if d.TimeLimitMs > 0 {
		f.put("Time limit", (&duration{d.TimeLimitMs}).String())
	}
	f.put("As of", fmt.Sprintf("%s in region %s, after cycle %d; nothing is kept for it", words.Clock(d.At, now), d.Region, d.Cycle))
}

func victimWords(why contract.DryRunVictimWhy) string {
	if why == contract.Reclaim {
		return "on capacity that is guaranteed to others"
	}
	return "of a lower priority"
}
