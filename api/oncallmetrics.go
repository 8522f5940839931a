package api

import (
	"github.com/prometheus/client_golang/prometheus"

	"gpupool/schema"
	"gpupool/schema/store"
)

// Metrics that deploy/prometheus/pool-alerts.yaml wakes an operator by; docs/runbook/alerts.md says what to do then.
var (
	metricServers     = desc("servers", "Servers by phase.", "phase")
	metricStopped     = desc("servers_stopped", "Servers whose process has stopped and waits for a person.")
	metricRepairs     = desc("repairs", "Open repairs by state.", "state")
	metricOverdue     = desc("repairs_overdue", "Open repairs whose next step was due before now, by state.", "state")
	metricBreakers    = desc("breakers_open", "Open breakers: faults of their scope are observed and no longer acted on.")
	metricEpoch       = desc("allocator_epoch", "The fencing epoch of the region's allocator: it rises when another process takes over.", "region")
	metricUnevaluated = desc("jobs_unevaluated_seconds", "For how long the queued job has waited that no allocator has looked at for the longest; 0 where there is none.", "region")
	metricBMCs        = desc("bmcs", "Servers by what is wrong with their BMC, as the watch saw it last; none where it answers.", "trouble")
	metricClusterUp   = desc("cluster_up", "1 where the Slurm or Kubernetes cluster answers its connector.", "cluster")
	metricBehind      = desc("events_behind", "Events that a reader of the log has yet to read.", "reader")
	metricUnchecked   = desc("usage_unchecked_seconds", "How old the newest hour is whose accelerator time was compared with what was installed.")
	metricWebhooks    = desc("webhooks", "Webhooks by how they do: told, failing, disabled.", "state")
	metricUndelivered = desc("webhook_deliveries_waiting", "Messages to webhooks that are yet to be taken.")
)

// onCall turns the figures of the pool's state into metrics.
func onCall(o store.Overview, c store.OnCall, gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	for phase, n := range o.Phases {
		gauge(metricServers, float64(n), string(phase))
	}
	gauge(metricStopped, float64(len(o.Failures)))
	repairs, overdue := map[schema.RepairState]int{}, map[schema.RepairState]int{}
	for _, r := range o.Repairs {
		repairs[r.State]++
		if r.Deadline != 0 && r.Deadline < o.At {
			overdue[r.State]++
		}
	}
	for state, n := range repairs {
		gauge(metricRepairs, float64(n), string(state))
	}
	for state, n := range overdue {
		gauge(metricOverdue, float64(n), string(state))
	}
	gauge(metricBreakers, float64(len(o.Breakers)))
	for region, epoch := range c.Epochs {
		gauge(metricEpoch, float64(epoch), region)
	}
	for region, since := range c.Unevaluated {
		age := 0.0
		if since != 0 {
			age = max(0, c.At.Sub(since).Seconds())
		}
		gauge(metricUnevaluated, age, region)
	}
	for trouble, n := range c.BMCs {
		if trouble == schema.BMCFine {
			trouble = "none"
		}
		gauge(metricBMCs, float64(n), string(trouble))
	}
	for name, up := range c.Clusters {
		v := 0.0
		if up {
			v = 1
		}
		gauge(metricClusterUp, v, name)
	}
	for reader, n := range c.Behind {
		gauge(metricBehind, float64(n), reader)
	}
	if c.Checked != 0 {
		gauge(metricUnchecked, c.At.Sub(c.Checked).Seconds())
	}
	for state, n := range c.Webhooks {
		gauge(metricWebhooks, float64(n), state)
	}
	gauge(metricUndelivered, float64(c.Undelivered))
}
