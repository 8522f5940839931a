package agent_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"gpupool/schema/agentproto"
	"gpupool/worker/agent"
	"gpupool/worker/agent/accelerator"
)

// scrape asks an agent as Prometheus does, until what it shows satisfies ok.
func scrape(t *testing.T, w *world, address string, ok func(page string) bool) string {
	t.Helper()
	page := ""
	err := w.api.Until(t.Context(), func() bool {
		resp, err := http.Get("http://" + address + "/metrics") //nolint:noctx // it is on loopback and answers at once
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		page = string(b)
		return err == nil && resp.StatusCode == http.StatusOK && ok(page)
	})
	if err != nil {
		t.Fatalf("%v; the page is\n%s", err, page)
	}
	return page
}

func TestMetricsShowWhatIsKnownAndNothingElse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(cfg *agent.Config) { cfg.Metrics, cfg.ReadTimeout = l, 200*time.Millisecond })
	w.reader.change(func(d []agentproto.Device) []agentproto.Device {
		d[1].Error, d[1].Samples = "lost", nil
		d[2].NotApplicable = []string{accelerator.LinksUp, accelerator.LinksUp}
		delete(d[2].Samples, accelerator.LinksUp)
		d[3].Slot = "SXM\xff4"
		d[3].Samples["made_up"] = 1
		return d
	})
	w.start()
	has := func(want string) func(string) bool {
		return func(page string) bool { return strings.Contains(page, want) }
	}
	page := scrape(t, w, l.Addr().String(), has("gpupool_device_up"))
	for _, want := range []string{
		"# TYPE gpupool_device_ecc_uncorrected_total counter\n", "# TYPE gpupool_device_temperature_celsius gauge\n",
		`gpupool_device_temperature_celsius{device="S0",model="nvidia-h100-80gb",slot="SXM1",vendor="nvidia"} 40`,
		`gpupool_device_up{device="S1",model="nvidia-h100-80gb",slot="SXM2",vendor="nvidia"} 0`,
		`gpupool_device_up{device="S3",model="nvidia-h100-80gb",slot="SXM?4",vendor="nvidia"} 1`,
		`gpupool_device_not_applicable{device="S2",metric="fabric_links_up",model="nvidia-h100-80gb",slot="SXM3",vendor="nvidia"} 1`,
		`gpupool_device_info{device="S0",firmware="",model="nvidia-h100-80gb",pci="0000:10:00.0",serial="S0",slot="SXM1",uuid="GPU-0",vendor="nvidia"} 1`,
		`gpupool_collect_state{source="nvidia",state="ok"} 1`, `gpupool_agent_info{version="test"} 1`, "process_resident_memory_bytes ",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not shown", want)
		}
	}
	for _, not := range []string{`gpupool_device_temperature_celsius{device="S1"`, `gpupool_device_fabric_links_up{device="S2"`, "made_up"} {
		if strings.Contains(page, not) {
			t.Errorf("%q is shown", not)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
	// A driver that hangs keeps no scrape waiting, and what it said before is not told as if it were now.
	hang := make(chan struct{})
	w.reader.mu.Lock()
	w.reader.hang = hang
	w.reader.mu.Unlock()
	defer close(hang)
	scrape(t, w, l.Addr().String(), has(`gpupool_collect_state{source="nvidia",state="timeout"} 1`))
	scrape(t, w, l.Addr().String(), func(page string) bool { return !strings.Contains(page, "gpupool_device_temperature_celsius{") })
}

func TestTheSchemaIsWhole(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, m := range accelerator.Metrics {
		if m.Name == "" || m.Help == "" || names[m.Name] {
			t.Errorf("%+v: a name of its own, and what it is", m)
		}
		if m.Counter != strings.HasSuffix(m.Name, "_total") {
			t.Errorf("%s: a counter ends in _total, and nothing else does", m.Name)
		}
		names[m.Name] = true
	}
	for _, name := range accelerator.ErrorCounters {
		if !names[name] {
			t.Errorf("%s is not in the schema", name)
		}
	}
}
