package pxe

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
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
	descLost     = prometheus.NewDesc("gpupool_pxe_evidence_dropped_total", "Boot evidence that could not be kept.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	to <- descMessages
	to <- descDropped
	to <- descEvidence
	to <- descBytes
	to <- descLimited
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
}
