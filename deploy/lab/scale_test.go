package lab_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"gpupool/deploy/lab"
)

// BenchmarkServersAtRest builds a lab of 1,000 servers that are off, and says what memory and goroutines one costs.
func BenchmarkServersAtRest(b *testing.B) {
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		routines := runtime.NumGoroutine()
		cfg := lab.Config{Dir: filepath.Join(b.TempDir(), "lab"), BMCNet: "127.191.0.0/16", Log: slog.New(slog.DiscardHandler)}
		for i := range 1000 {
			cfg.Servers = append(cfg.Servers, h100(fmt.Sprintf("s%04d", i)))
		}
		begun := time.Now()
		l, err := lab.New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		took := time.Since(begun)
		run(b, l, func() {
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1000/1024, "KiB/server")
			b.ReportMetric(float64(runtime.NumGoroutine()-routines)/1000, "goroutines/server")
			b.ReportMetric(took.Seconds(), "s-to-build-1000")
		})
	}
}
