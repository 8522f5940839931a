package exporter

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"gpupool/schema"
	"gpupool/worker/agent/accelerator"
)

// dcgmPage is a page of dcgm-exporter 4 for devices, each with its values behind it.
func dcgmPage(lines ...string) string {
	var b strings.Builder
	last := ""
	for _, l := range lines {
		name, rest, _ := strings.Cut(l, " ")
		gpu, v, _ := strings.Cut(rest, " ")
		if name != last {
			fmt.Fprintf(&b, "# TYPE %s gauge\n", name)
		}
		last = name
		fmt.Fprintf(&b, "%s{gpu=\"%s\",UUID=\"GPU-%s\",pci_bus_id=\"00000000:1%s:00.0\",device=\"nvidia%s\",modelName=\"NVIDIA H100 80GB HBM3\",Hostname=\"n1\",DCGM_FI_DRIVER_VERSION=\"550.127.08\"} %s\n", name, gpu, gpu, gpu, gpu, v)
	}
	return b.String()
}

func read(t *testing.T, text string) page {
	t.Helper()
	p, err := parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDCGMsPageIsThreeValued(t *testing.T) {
	t.Parallel()
	p := read(t, dcgmPage("DCGM_FI_DEV_GPU_TEMP 0 41", "DCGM_FI_DEV_FB_USED 0 1000", "DCGM_FI_DEV_FB_FREE 0 80559", "DCGM_FI_DEV_GPU_UTIL 0 97", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL 0 54731746511",
		"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL 0 9223372036854775794", "DCGM_FI_DEV_MEMORY_TEMP 0 2147483634", "DCGM_FI_DEV_POWER_USAGE 0 140737488355328", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS 0 8",
		"DCGM_FI_DEV_SOMETHING_NEW 0 5")+`DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0",GPU_I_ID="1",GPU_I_PROFILE="1g.10gb"} 3
`)
	if len(p.devices) != 1 || p.driver != "550.127.08" {
		t.Fatalf("%+v", p)
	}
	d := p.devices[0]
	if d.UUID != "GPU-0" || d.PCI != "0000:10:00.0" || d.Model != "nvidia-h100-80gb" || d.Vendor != schema.VendorNVIDIA || d.MemoryBytes != 81559<<20 {
		t.Errorf("%+v", d)
	}
	for m, want := range map[string]float64{accelerator.Temperature: 41, accelerator.Utilization: 0.97, accelerator.ECCCorrected: 54731746511, accelerator.RemappedRows: 8, accelerator.MemoryUsed: 1000 << 20} {
		if got, ok := d.Samples[m]; !ok || got != want {
			t.Errorf("%s is %v (known: %v), want %v", m, got, ok, want)
		}
	}
	for _, m := range []string{accelerator.ECCUncorrected, accelerator.Power, accelerator.TemperatureMemory} {
		if v, ok := d.Samples[m]; ok {
			t.Errorf("%s is %v; it is not known", m, v)
		}
	}
	if !slices.Equal(d.NotApplicable, []string{accelerator.TemperatureMemory}) {
		t.Errorf("not applicable: %v", d.NotApplicable)
	}
}

// Case 8 of the cases on health: three hours of a gauge that stays at 31 are one observation, whose moment isn't known; another
// code in it is another.
func TestAGaugeThatStaysIsOneObservation(t *testing.T) {
	t.Parallel()
	text := dcgmPage("DCGM_FI_DEV_XID_ERRORS 0 31", "DCGM_FI_DEV_XID_ERRORS 1 0")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
	defer s.Close()
	r := New(s.URL)
	defer r.http.CloseIdleConnections()
	var told []accelerator.Sign
	scrapes := func(n int) {
		t.Helper()
		for range n {
			if list, err := r.Read(t.Context()); err != nil || len(list) != 2 {
				t.Fatalf("%+v, %v", list, err)
			}
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		told, r.fresh = append(told, r.fresh...), nil
	}
	scrapes(3 * 60 * 2)
	if len(told) != 1 || told[0].Kind != "xid-seen" || told[0].Code != "31" || told[0].Device != "GPU-0" || told[0].Severity != schema.SeverityInfo {
		t.Fatalf("told %+v", told)
	}
	text = dcgmPage("DCGM_FI_DEV_XID_ERRORS 0 45", "DCGM_FI_DEV_XID_ERRORS 1 0")
	scrapes(10)
	text = dcgmPage("DCGM_FI_DEV_XID_ERRORS 0 31", "DCGM_FI_DEV_XID_ERRORS 1 0") // it moved back: that is no second 31
	scrapes(10)
	if len(told) != 2 || told[1].Code != "45" {
		t.Fatalf("told %+v", told)
	}
}

func TestWatchTellsWhatAReadingFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New("http://127.0.0.1:1/metrics")
		got := make(chan accelerator.Sign, 1)
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- r.Watch(ctx, func(s accelerator.Sign) { got <- s }) }()
		r.mu.Lock()
		r.fresh = []accelerator.Sign{{Code: "31"}}
		r.mu.Unlock()
		r.wake <- struct{}{}
		if s := <-got; s.Code != "31" {
			t.Errorf("told %+v", s)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestAMDsPage(t *testing.T) {
	t.Parallel()
	label := `{gpu_id="3",serial_number="692401000123",card_model="MI300X",hostname="n1",pcie_bus_id="0000:0C:00.0"}`
	p := read(t, "gpu_junction_temperature"+label+" 71\ngpu_gfx_activity"+label+" 12\ngpu_total_vram"+label+" 196592\ngpu_used_vram"+label+" 283\ngpu_ecc_uncorrect_total"+label+" 2\ngpu_health"+label+" 0\ngpu_package_power"+label+" NaN\nnode_load1 3\n")
	if len(p.devices) != 1 {
		t.Fatalf("%+v", p)
	}
	d := p.devices[0]
	if d.Serial != "692401000123" || d.Index != 3 || d.PCI != "0000:0c:00.0" || d.Samples[accelerator.VendorHealth] != accelerator.VendorFailed || d.Samples[accelerator.ECCUncorrected] != 2 || d.MemoryBytes != 196592<<20 {
		t.Errorf("%+v", d)
	}
	if v, ok := d.Samples[accelerator.Power]; ok {
		t.Errorf("power is %v", v)
	}
}

func TestAnExporterThatIsNotThereOrSaysNothingReadable(t *testing.T) {
	t.Parallel()
	text, code := "{not a page", http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); _, _ = io.WriteString(w, text) }))
	defer s.Close()
	r := New(s.URL)
	defer r.http.CloseIdleConnections()
	before := accelerator.UnreadableCounts()["exporter"]
	if _, err := r.Read(t.Context()); err == nil || accelerator.UnreadableCounts()["exporter"] <= before {
		t.Errorf("garbage: %v", err)
	}
	code = http.StatusInternalServerError
	if _, err := r.Read(t.Context()); err == nil {
		t.Error("a failure was taken")
	}
	if _, err := New("http://127.0.0.1:1/metrics").Read(t.Context()); err == nil {
		t.Error("nobody was taken for an exporter")
	}
}

func FuzzPage(f *testing.F) {
	f.Add(dcgmPage("DCGM_FI_DEV_GPU_TEMP 0 41", "DCGM_FI_DEV_XID_ERRORS 0 31"))
	f.Add("gpu_health{gpu_id=\"-1\"} -1\nDCGM_FI_DEV_FB_FREE{gpu=\"x\",UUID=\"u\"} 1e300\n")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parse(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, d := range p.devices {
			for k, v := range d.Samples {
				if v < 0 || v != v {
					t.Errorf("%s is %v", k, v)
				}
			}
		}
	})
}
