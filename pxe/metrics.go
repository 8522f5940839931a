package pxe

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Collector gives the service's counts to Prometheus. Register it once for each Server.
func (s *Server) Collector() prometheus.Collector { return collector{s} }

type collector struct{ s *Server }

var (
	descMessages = prometheus.NewDesc("gpupool_pxe_dhcp_messages_total", "DHCP messages of known machines, received and sent, by kind.", []string{"kind"}, nil)
	descDropped  = prometheus.NewDesc("gpupool_pxe_dhcp_dropped_total", "DHCP packets dropped unanswered: malformed ones by their fault, strangers (not in the inventory), limited (by a rate), overrun (all workers were behind).", []string{"reason"}, nil)
	descLost     = prometheus.NewDesc("gpupool_pxe_evidence_dropped_total", "Boot evidence that could not be kept.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	to <- descMessages
	to <- descDropped
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
	count(descLost, c.s.evidence.dropped.Load())
}
