package api

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(r *prometheus.Registry, waiting *atomic.Int64) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "gpupool_api_requests_total", Help: "Requests by route and status."}, []string{"route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "gpupool_api_request_seconds", Help: "How long requests took; waits and streams count with what they waited.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30, 60}}, []string{"route"}),
	}
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "gpupool_api_waiting", Help: "Long-polls and streams that wait now."}, func() float64 { return float64(waiting.Load()) })
	for _, c := range []prometheus.Collector{m.requests, m.seconds, gauge} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) seen(route string, status int, begin time.Time) {
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(route).Observe(time.Since(begin).Seconds())
}

func (s *Server) serveMetrics(c *gin.Context) {
	promhttp.HandlerFor(s.c.Registry, promhttp.HandlerOpts{}).ServeHTTP(c.Writer, c.Request)
}
