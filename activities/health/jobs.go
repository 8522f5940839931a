package health

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"gpupool/activities/health/rules"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

const (
	jobsEvery    = 30 * time.Second
	jobsWithin   = 24 * time.Hour
	commandsMost = 500
)

// infra is how programs say that hardware, or what reaches it, failed under them. Running out of memory by one's own allocation
// is not among it.
var infra = regexp.MustCompile(`(?i)(GPU is lost|fallen off the bus|uncorrectable|ECC error|Xid|NVML:? |failed to get nvlink|NCCL (?:error|WARN)|unhandled (?:cuda|system) error|CUDA error: (?:an illegal|unspecified|device-side|uncorrectable|hardware|no CUDA|initialization)|hipError|HSA_STATUS_ERROR|RCCL|device not (?:found|ready)|CUDA_ERROR_(?:ECC|NO_DEVICE|UNKNOWN|SYSTEM))`)

// WatchJobs reports hardware that failing jobs have in common, until ctx ends.
func WatchJobs(ctx context.Context, s *store.Store) error {
	t := time.NewTicker(jobsEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := blameJobs(ctx, s); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "looking at failed jobs failed; again at the next turn", "error", err)
		}
	}
}

func blameJobs(ctx context.Context, s *store.Store) error {
	now := s.Now()
	since := now.Add(-jobsWithin)
	failed, err := s.FailedJobs(ctx, since)
	if err != nil || len(failed) == 0 {
		return err
	}
	var commands []string
	seen := map[string]bool{}
	for _, f := range failed {
		if !seen[f.Command] && len(commands) < commandsMost {
			seen[f.Command] = true
			commands = append(commands, f.Command)
		}
	}
	good, err := s.CompletedJobs(ctx, since, commands)
	if err != nil {
		return err
	}
	for _, b := range rules.BlameJobs(jobEnds(failed, good), now) {
		f := schema.Fault{Accelerator: b.Device, Source: "job", Kind: b.Kind, Part: b.Slot, Severity: schema.SeverityWarning, Text: b.Text, At: b.At,
			// The same jobs blame the same hardware once: the last of them is in the key, and the server's epoch.
			Dedupe: fmt.Sprintf("jobs/%s/%s/%s/%s/%d", b.Kind, b.Server, b.Device, b.Slot, b.At)}
		if b.Kind == "job-failures" {
			f.Part = ""
		}
		if err := s.ReportFault(ctx, b.Server, f); err != nil {
			return err
		}
	}
	return nil
}

// jobEnds joins the accelerators of each node's part of an attempt.
func jobEnds(failed, good []store.JobEnd) []rules.JobEnd {
	at := map[string]int{}
	var out []rules.JobEnd
	for _, f := range failed {
		key := fmt.Sprint(f.Job, "/", f.Attempt, "/", f.Server)
		i, ok := at[key]
		if !ok {
			i = len(out)
			at[key] = i
			said := f.Text + "\n" + f.Output
			e := rules.JobEnd{Job: f.Job, Owner: f.Owner, Image: f.Command, Server: f.Server, At: f.EndAt, Took: f.EndAt.Sub(f.StartAt),
				Infra: f.Outcome == schema.AttemptUnstarted || infra.MatchString(said), Refused: strings.HasPrefix(f.Text, agentproto.Refused), Text: quote(said)}
			out = append(out, e)
		}
		out[i].Devices = append(out[i].Devices, rules.JobDevice{ID: f.Accelerator, Slot: f.Slot})
	}
	for _, g := range good {
		out = append(out, rules.JobEnd{Job: g.Job, Owner: g.Owner, Image: g.Command, Server: g.Server, At: g.EndAt, Took: g.EndAt.Sub(g.StartAt), OK: true})
	}
	return out
}

// quote is the line of what a job said that tells of hardware, else its last one.
func quote(said string) string {
	last := ""
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		last = line
		if infra.MatchString(line) {
			break
		}
	}
	return last[:min(len(last), 300)]
}
