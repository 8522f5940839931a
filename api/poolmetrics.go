package api

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/usage"
)

// countedOver is the window of the four counts as metrics; readEvery is how long one reading of the record serves scrapes.
const (
	countedOver = 24 * time.Hour
	readEvery   = time.Minute
)

// poolMetrics are figures of the whole pool, read from the record when they are scraped. Every process with the API role
// gives the same ones.
type poolMetrics struct {
	store *store.Store

	mu   sync.Mutex
	at   schema.Instant
	kept []prometheus.Metric
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("gpupool_"+name, help, labels, nil)
}

var (
	metricAccelerators = desc("accelerators", "Installed accelerators by what they are now.", "model", "state")
	metricJobs         = desc("jobs", "Live jobs by state.", "state")
	metricWaiting      = desc("jobs_waiting", "Queued jobs by why they wait.", "reason")
	metricWait         = desc("queue_wait_seconds", "Queue wait of attempts started in the last 24 hours, nearest rank.", "spec", "percentile")
	metricShare        = desc("allocated_share", "Share of the available accelerator time of the spec's model that it had allocated, last 24 hours.", "spec")
	metricIdle         = desc("idle_rate", "Share of the known allocated accelerator time that was idle, last 24 hours.", "spec")
	metricUnknown      = desc("utilization_unknown_share", "Share of the allocated accelerator time of which no utilization is known, last 24 hours.", "spec")
	metricJobSuccess   = desc("job_success_ratio", "Completed jobs among those that ended, cancelled ones aside, last 24 hours.", "spec")
	metricGPUSuccess   = desc("gpu_success_ratio", "Accelerator time of completed attempts among ended ones, last 24 hours.", "spec")
	metricUsed         = desc("used_gpu_seconds", "Accelerator time held in the last 24 hours.", "spec")
	metricFindings     = desc("usage_findings", "Places where the books of accelerator time do not balance, ever found (200 at most).", "kind")
	metricRemaining    = desc("budget_remaining_gpu_seconds", "What of the month's budget is neither spent nor committed.", "tenant", "project", "model")
	metricUp           = desc("pool_metrics_up", "1 where the record could be read for this scrape.")
)

// Describe tells nothing: which labels there are is known at the scrape.
func (m *poolMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- metricUp }

// Collect gives the last reading, or a new one where that is old.
func (m *poolMetrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.store.Now(); m.kept == nil || now.Sub(m.at) >= readEvery || now < m.at {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		read, err := m.read(ctx)
		cancel()
		if err != nil {
			ch <- prometheus.MustNewConstMetric(metricUp, prometheus.GaugeValue, 0)
			return
		}
		m.at, m.kept = now, read
	}
	ch <- prometheus.MustNewConstMetric(metricUp, prometheus.GaugeValue, 1)
	for _, v := range m.kept {
		ch <- v
	}
}

func (m *poolMetrics) read(ctx context.Context) ([]prometheus.Metric, error) {
	out := []prometheus.Metric{}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out = append(out, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...))
	}
	o, err := m.store.PoolOverview(ctx)
	if err != nil {
		return nil, err
	}
	for _, x := range o.Models {
		for state, n := range map[string]int{"allocated": x.Allocated, "idle": x.Idle, "cordoned": x.Cordoned, "draining": x.Draining, "repairing": x.Repairing, "unhealthy": x.Unhealthy} {
			gauge(metricAccelerators, float64(n), x.Model, state)
		}
	}
	for state, n := range o.Jobs {
		gauge(metricJobs, float64(n), string(state))
	}
	for reason, n := range o.Reasons {
		gauge(metricWaiting, float64(n), string(reason))
	}
	calls, err := m.store.ReadOnCall(ctx)
	if err != nil {
		return nil, err
	}
	onCall(o, calls, gauge)
	now := m.store.Now()
	counts, err := m.store.FourCounts(ctx, store.CountsQuery{By: "spec", Periods: []usage.Period{{Interval: usage.Interval{Start: now.Add(-countedOver), End: now}}}})
	if err != nil {
		return nil, err
	}
	for _, c := range counts {
		if c.Wait.Attempts > 0 {
			for q, ms := range map[string]int64{"50": c.Wait.P50, "90": c.Wait.P90, "99": c.Wait.P99} {
				gauge(metricWait, seconds(ms), c.Key, q)
			}
		}
		gauge(metricUsed, seconds(c.Allocated), c.Key)
		for _, f := range []struct {
			d  *prometheus.Desc
			of func() (float64, bool)
		}{{metricShare, c.AllocatedShare}, {metricIdle, c.IdleRate}, {metricUnknown, c.UnknownShare}, {metricJobSuccess, c.JobSuccess}, {metricGPUSuccess, c.GPUSuccess}} {
			if v, ok := f.of(); ok { // what is not known has no series: it is not 0
				gauge(f.d, v, c.Key)
			}
		}
	}
	found, err := m.store.Findings(ctx, 200)
	if err != nil {
		return nil, err
	}
	kinds := map[string]int{}
	for _, f := range found {
		kinds[f.Kind]++
	}
	for kind, n := range kinds {
		gauge(metricFindings, float64(n), kind)
	}
	budgets, err := m.store.BudgetStates(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, b := range budgets {
		gauge(metricRemaining, seconds(b.Remaining), b.Tenant, b.Project, b.Model)
	}
	return out, nil
}
