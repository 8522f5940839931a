package pxe_test

import (
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestCountsAreMetrics(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.22", nil)
	s.client(t, mac, "127.77.22.1").lease(nil)
	if code, text := get(t, http.DefaultClient, s.URL()+"/files/vmlinuz"); code != http.StatusOK || text != "kernel" {
		t.Fatal(code, text)
	}
	c, err := net.Dial("udp4", s.Addrs().DHCP.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("noise")); err != nil {
		t.Fatal(err)
	}
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(s.Collector()); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		"gpupool_pxe_dhcp_messages_total dhcp-discover": 1, "gpupool_pxe_dhcp_messages_total dhcp-offer": 1, "gpupool_pxe_dhcp_messages_total dhcp-ack": 1,
		"gpupool_pxe_dhcp_dropped_total too-short": 1, "gpupool_pxe_dhcp_dropped_total stranger": 0, "gpupool_pxe_dhcp_dropped_total limited": 0,
		"gpupool_pxe_dhcp_dropped_total overrun": 0, "gpupool_pxe_evidence_dropped_total": 0, "gpupool_pxe_evidence_limited_total": 0,
		"gpupool_pxe_evidence_total dhcp-discover": 1, "gpupool_pxe_evidence_total dhcp-offer": 1, "gpupool_pxe_evidence_total dhcp-ack": 1,
		"gpupool_pxe_addresses leased 127.77.22.0/24": 1, "gpupool_pxe_addresses quarantined 127.77.22.0/24": 0, "gpupool_pxe_addresses free 127.77.22.0/24": 10,
		"gpupool_pxe_evidence_total http": 1, "gpupool_pxe_sent_bytes_total http": 6,
	}
	for end := time.Now().Add(5 * time.Second); ; {
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		if maps.Equal(got, want) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("got %v, want %v", got, want)
		}
		<-time.After(10 * time.Millisecond) // the noise arrives by itself; there is nothing to wait on
	}
	if code, text := get(t, http.DefaultClient, s.URL()+"/metrics"); code != http.StatusOK || !strings.Contains(text, `gpupool_pxe_sent_bytes_total{kind="http"} 6`) {
		t.Fatal(code, text)
	}
}
