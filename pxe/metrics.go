package pxe

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"gpupool/pxe/lease"
)

// Collector gives the service's counts to Prometheus. Its HTTP service shows them at /metrics.
func (s *Server) Collector() prometheus.Collector { return collector{s} }

func (s *Server) metrics() (http.Handler, error) {
	r := prometheus.NewRegistry()
	if err := r.Register(s.Collector()); err != nil {
		return nil, err
	}
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{}), nil
}

type collector struct{ s *Server }

var (
	descMessages = prometheus.NewDesc("gpupool_pxe_dhcp_messages_total", "DHCP messages of known machines, received and sent, by kind.", []string{"kind"}, nil)
	descDropped  = prometheus.NewDesc("gpupool_pxe_dhcp_dropped_total", "DHCP packets dropped unanswered: malformed ones by their fault, strangers (not in the inventory), limited (by a rate), overrun (all workers were behind).", []string{"reason"}, nil)
	descEvidence = prometheus.NewDesc("gpupool_pxe_evidence_total", "Boot evidence by kind: DHCP messages, files by tftp and http, scripts, documents, and what was refused (token-refused, script-refused, tftp-refused, chain-loop).", []string{"kind"}, nil)
	descBytes    = prometheus.NewDesc("gpupool_pxe_sent_bytes_total", "Bytes of files, scripts and documents sent, by kind.", []string{"kind"}, nil)
	descLimited  = prometheus.NewDesc("gpupool_pxe_evidence_limited_total", "Boot evidence about others than the inventory's servers that was counted and not kept, since there was more than 5 a second of it.", nil, nil)
	descAddress  = prometheus.NewDesc("gpupool_pxe_addresses", "Addresses that a subnet may give out, by what they are: leased, quarantined (declined, or found in use by something else) or free. Not there in proxy mode, and while the record is away.", []string{"subnet", "state"}, nil)
	descLost     = prometheus.NewDesc("gpupool_pxe_evidence_dropped_total", "Boot evidence that could not be kept.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	to <- descMessages
	to <- descDropped
	to <- descEvidence
	to <- descBytes
	to <- descLimited
	to <- descAddress
	to <- descLost
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	n := c.s.dhcp.Metrics.Read()
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for kind, v := range n.Messages {
		count(descMessages, v, kind)
	}
	for reason, v := range n.Garbage {
		count(descDropped, v, string(reason))
	}
	count(descDropped, n.Strangers, "stranger")
	count(descDropped, n.Limited, "limited")
	count(descDropped, n.Overrun, "overrun")
	for kind, v := range c.s.evidence.counted() {
		count(descEvidence, v.n, kind)
		if v.bytes > 0 {
			count(descBytes, v.bytes, kind)
		}
	}
	count(descLimited, c.s.evidence.limited.Load())
	count(descLost, c.s.evidence.dropped.Load())
	for _, u := range c.s.usage.read() {
		for state, v := range map[string]int{addressLeased: u.Leased, addressQuarantined: u.Quarantined, addressFree: u.Free()} {
			to <- prometheus.MustNewConstMetric(descAddress, prometheus.GaugeValue, float64(v), u.Subnet, state)
		}
	}
}

// The states of gpupool_pxe_addresses.
const (
	addressLeased      = "leased"
	addressQuarantined = "quarantined"
	addressFree        = "free"
)

// usageFor is how long counted addresses are shown: they are counted in the record, and anybody may ask for the counts.
const usageFor = 5 * time.Second

// usage is how the subnets' addresses are used, as it was seconds ago at most.
type usage struct {
	ask func(context.Context) ([]lease.Usage, error)

	mu sync.Mutex
	at time.Time
	is []lease.Usage
}

func (u *usage) read() []lease.Usage {
	u.mu.Lock()
	defer u.mu.Unlock()
	if time.Since(u.at) > usageFor {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		is, err := u.ask(ctx)
		if err != nil {
			is = nil // the record is away: what was so is not known to be so still
		}
		u.is, u.at = is, time.Now()
	}
	return u.is
}
