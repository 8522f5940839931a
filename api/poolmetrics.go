package api

import (
	"cmp"
	"context"
	"slices"
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
	metricFindings     = desc("usage_findings", "Places where the books of accelerator time do not balance, ever found (200 at most).", "kind")
	metricRemaining    = desc("budget_remaining_gpu_seconds", "What of the month's budget is neither spent nor committed.", "tenant", "project", "model")
	metricUp           = desc("pool_metrics_up", "1 where the record could be read for this scrape.")
)

// countsBy are the four counts by one key, over the last 24 hours.
type countsBy struct {
	by                                                                         string
	wait, share, idle, unknown, jobSuccess, gpuSuccess, used, waiting, overdue *prometheus.Desc
}

// newCountsBy names them; those of tenants and regions have a prefix, so that no sum adds the same time up twice.
func newCountsBy(by, prefix string) countsBy {
	d := func(name, help string, more ...string) *prometheus.Desc {
		return desc(prefix+name, help, append([]string{by}, more...)...)
	}
	return countsBy{by: by,
		wait:       d("queue_wait_seconds", "Queue wait of attempts started in the last 24 hours, nearest rank.", "percentile"),
		share:      d("allocated_share", "Share of the available accelerator time (of a spec's model, a region; for tenants of all) that it had allocated, last 24 hours."),
		idle:       d("idle_rate", "Share of the known allocated accelerator time that was idle, last 24 hours."),
		unknown:    d("utilization_unknown_share", "Share of the allocated accelerator time of which no utilization is known, last 24 hours."),
		jobSuccess: d("job_success_ratio", "Completed jobs among those that ended, cancelled ones aside, last 24 hours."),
		gpuSuccess: d("gpu_success_ratio", "Accelerator time of completed attempts among ended ones, cancelled ones aside, last 24 hours."),
		used:       d("used_gpu_seconds", "Accelerator time held in the last 24 hours."),
		waiting:    d("waiting_jobs", "Jobs that wait now, but for those that are held or not to start yet."),
		overdue:    d("overdue_jobs", "Of the jobs that wait now, those that have for 15 minutes or longer."),
	}
}

// mostKeys bounds the series: of more specs, tenants or regions those that used the most accelerator time have some.
const mostKeys = 100

var (
	countsMetrics    = []countsBy{newCountsBy("spec", ""), newCountsBy("tenant", "tenant_"), newCountsBy("region", "region_")}
	metricKeysBeyond = desc("counts_left_out", "Specs, tenants or regions beyond the 100 that used most, which have no series of their own.", "by")
)

// read gives the counts of each key.
func (k countsBy) read(ctx context.Context, st *store.Store, gauge func(*prometheus.Desc, float64, ...string)) error {
	now := st.Now()
	counts, err := st.FourCounts(ctx, store.CountsQuery{By: k.by, Periods: []usage.Period{{Interval: usage.Interval{Start: now.Add(-countedOver), End: now}}}})
	if err != nil {
		return err
	}
	slices.SortStableFunc(counts, func(a, b usage.Counts) int {
		return cmp.Or(cmp.Compare(b.Allocated, a.Allocated), cmp.Compare(b.Waiting, a.Waiting))
	})
	gauge(metricKeysBeyond, float64(max(0, len(counts)-mostKeys)), k.by)
	for _, c := range counts[:min(len(counts), mostKeys)] {
		if c.Wait.Attempts > 0 {
			for q, ms := range map[string]int64{"50": c.Wait.P50, "90": c.Wait.P90, "99": c.Wait.P99} {
				gauge(k.wait, seconds(ms), c.Key, q)
			}
		}
		gauge(k.used, seconds(c.Allocated), c.Key)
		gauge(k.waiting, float64(c.Waiting), c.Key)
		gauge(k.overdue, float64(c.Overdue), c.Key)
		for _, f := range []struct {
			d  *prometheus.Desc
			of func() (float64, bool)
		}{{k.share, c.AllocatedShare}, {k.idle, c.IdleRate}, {k.unknown, c.UnknownShare}, {k.jobSuccess, c.JobSuccess}, {k.gpuSuccess, c.GPUSuccess}} {
			if v, ok := f.of(); ok { // what is not known has no series: it is not 0
				gauge(f.d, v, c.Key)
			}
		}
	}
	return nil
}

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
	for _, k := range countsMetrics {
		if err := k.read(ctx, m.store, gauge); err != nil {
			return nil, err
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
