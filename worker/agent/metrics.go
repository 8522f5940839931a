package agent

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/kmsg"
)

// metrics shows the last reading to Prometheus. To be asked costs no reading: a scrape never waits for a driver.
//
// A metric is a value, not applicable (gpupool_device_not_applicable), or absent: unknown. It is never 0 for either.
type metrics struct {
	devices  *devices
	registry *prometheus.Registry
	last     atomic.Pointer[[]agentproto.Device]
}

// Prefixes of the names on /metrics.
const (
	devicePrefix = "gpupool_device_"
	portPrefix   = "gpupool_port_"
)

var (
	deviceLabels = []string{"device", "vendor", "model", "slot"}
	descs        = func() map[string]*prometheus.Desc {
		out := map[string]*prometheus.Desc{}
		for _, m := range accelerator.Metrics {
			out[m.Name] = prometheus.NewDesc(devicePrefix+m.Name, m.Help, deviceLabels, nil)
		}
		return out
	}()
	descInfo    = prometheus.NewDesc(devicePrefix+"info", "who the device is: always 1", append(deviceLabels, "serial", "uuid", "pci", "firmware"), nil)
	descUp      = prometheus.NewDesc(devicePrefix+"up", "1 = it answered the last reading, 0 = it is listed and did not", deviceLabels, nil)
	descMemory  = prometheus.NewDesc(devicePrefix+"memory_bytes", "device memory in all", deviceLabels, nil)
	descNA      = prometheus.NewDesc(devicePrefix+"not_applicable", "1 = the hardware can't say this metric. One that is neither here nor shown is unknown", append(deviceLabels, "metric"), nil)
	descCollect = prometheus.NewDesc("gpupool_collect_state", "1 for the state of each source's last reading: ok, none (no driver), error, timeout", []string{"source", "state"}, nil)
	descAge     = prometheus.NewDesc("gpupool_collect_age_seconds", "since each source's last answer", []string{"source"}, nil)
	descGarbled = prometheus.NewDesc("gpupool_agent_unreadable_total", "what a source said and nothing could be made of", []string{"source"}, nil)
	portDescs   = func() map[string]*prometheus.Desc {
		out := map[string]*prometheus.Desc{}
		for name, help := range map[string]string{accelerator.IBSymbolErrors: "symbol errors", accelerator.IBLinkDowned: "times that the link failed", accelerator.IBIntegrity: "local link integrity errors", accelerator.IBOverrun: "excessive buffer overruns"} {
			out[name] = prometheus.NewDesc(portPrefix+name+"_total", "InfiniBand port: "+help, []string{"port"}, nil)
		}
		out[accelerator.IBRate] = prometheus.NewDesc(portPrefix+"rate_bits", "InfiniBand port: bits a second", []string{"port"}, nil)
		return out
	}()
	descPortUp = prometheus.NewDesc(portPrefix+"active", "1 = the InfiniBand port is active, 0 = it is down", []string{"port"}, nil)
)

func newMetrics(d *devices, version string) *metrics {
	m := &metrics{devices: d, registry: prometheus.NewRegistry()}
	m.registry.MustRegister(m, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpupool_agent_info", Help: "the agent: always 1", ConstLabels: prometheus.Labels{"version": version}}, func() float64 { return 1 }))
	return m
}

// show takes a reading.
func (m *metrics) show(list []agentproto.Device) { m.last.Store(&list) }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descInfo, descUp, descMemory, descNA, descCollect, descAge, descGarbled, descPortUp} {
		ch <- d
	}
	for _, set := range []map[string]*prometheus.Desc{descs, portDescs} {
		for _, d := range set {
			ch <- d
		}
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if list := m.last.Load(); list != nil {
		seen := map[string]bool{}
		for _, d := range *list {
			if id := accelerator.Identity(d); id != "" && !seen[id] {
				seen[id] = true
				collect(ch, d)
			}
		}
	}
	for _, p := range m.devices.parts() {
		for name, v := range p.Samples {
			desc, ok := portDescs[name]
			if !ok {
				continue
			}
			kind := prometheus.CounterValue
			if name == accelerator.IBRate {
				kind = prometheus.GaugeValue
			}
			ch <- prometheus.MustNewConstMetric(desc, kind, v, p.Name)
		}
		switch p.State {
		case accelerator.PartActive:
			gauge(descPortUp, 1, p.Name)
		case accelerator.PartDown:
			gauge(descPortUp, 0, p.Name)
		case accelerator.PartUnknown:
		}
	}
	for _, s := range m.devices.states() {
		if s.state == "" {
			continue
		}
		gauge(descCollect, 1, string(s.vendor), s.state)
		gauge(descAge, s.age.Seconds(), string(s.vendor))
	}
	for source, n := range accelerator.UnreadableCounts() {
		ch <- prometheus.MustNewConstMetric(descGarbled, prometheus.CounterValue, float64(n), source)
	}
	ch <- prometheus.MustNewConstMetric(descGarbled, prometheus.CounterValue, float64(kmsg.Malformed.Load()), "kernel-log")
}

// valid makes a label of what hardware says of itself, which may be anything.
func valid(s string) string { return strings.ToValidUTF8(s, "?") }

// counters are the metrics that only rise.
var counters = func() map[string]bool {
	out := map[string]bool{}
	for _, m := range accelerator.Metrics {
		out[m.Name] = m.Counter
	}
	return out
}()

func collect(ch chan<- prometheus.Metric, d agentproto.Device) {
	labels := []string{valid(accelerator.Identity(d)), valid(string(d.Vendor)), valid(d.Model), valid(d.Slot)}
	gauge := func(desc *prometheus.Desc, v float64, more ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, append(labels[:len(labels):len(labels)], more...)...)
	}
	gauge(descInfo, 1, valid(d.Serial), valid(d.UUID), valid(d.PCI), valid(d.Firmware))
	up := 1.0
	if d.Error != "" {
		up = 0
	}
	gauge(descUp, up)
	if d.MemoryBytes > 0 {
		gauge(descMemory, float64(d.MemoryBytes))
	}
	for name, v := range d.Samples {
		desc, ok := descs[name]
		if !ok {
			continue
		}
		kind := prometheus.GaugeValue
		if counters[name] {
			kind = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(desc, kind, v, labels...)
	}
	told := map[string]bool{}
	for _, name := range d.NotApplicable {
		if !told[name] {
			told[name] = true
			gauge(descNA, 1, valid(name))
		}
	}
}

// serve answers until ctx ends.
func (m *metrics) serve(ctx context.Context, l net.Listener, log *slog.Logger) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(l); err != nil && ctx.Err() == nil {
		log.WarnContext(ctx, "metrics are not shown any more", "err", err)
	}
}
