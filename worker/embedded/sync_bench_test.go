package embedded

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"gpupool/worker/namespace"
)

// BenchmarkSync times whole workflows (start, activity, signal, activity, done), 16 at once, on each
// Sync. BENCH_DIR names a folder on the disk to be judged; a temporary folder may be memory.
func BenchmarkSync(b *testing.B) {
	for _, sync := range []Sync{SyncNormal, SyncFull} {
		b.Run(string(sync), func(b *testing.B) {
			dir, err := os.MkdirTemp(os.Getenv("BENCH_DIR"), "embedded-*")
			if err != nil {
				b.Fatal(err)
			}
			defer os.RemoveAll(dir)
			s, err := Start(b.Context(), Options{Dir: dir, Sync: sync, Logger: quiet()})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Stop()
			c, err := client.Dial(client.Options{HostPort: s.HostPort(), Namespace: namespace.Default, Logger: quietSDK()})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			stop, err := startWorker(c)
			if err != nil {
				b.Fatal(err)
			}
			defer stop()
			b.ResetTimer()
			runAll(b, c, b.N)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "workflows/s")
		})
	}
}

func runAll(b *testing.B, c client.Client, n int) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range next {
				if err := runOne(b, c, fmt.Sprintf("job/%d", i)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

func runOne(b *testing.B, c client.Client, id string) error {
	o := options(id)
	run, err := c.ExecuteWorkflow(b.Context(), o, "process")
	if err != nil {
		return err
	}
	if err := c.SignalWorkflow(b.Context(), id, "", "go", nil); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); ; {
		r, err := c.WorkflowService().GetWorkflowExecutionHistory(b.Context(), &workflowservice.GetWorkflowExecutionHistoryRequest{
			Namespace:              namespace.Default,
			Execution:              &common.WorkflowExecution{WorkflowId: id, RunId: run.GetRunID()},
			WaitNewEvent:           true,
			HistoryEventFilterType: enums.HISTORY_EVENT_FILTER_TYPE_CLOSE_EVENT,
		})
		if err != nil {
			return err
		}
		if len(r.GetHistory().GetEvents()) > 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s didn't end in a minute", id)
		}
	}
}
