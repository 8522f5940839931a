package agent_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"gpupool/schema/agentproto"
	"gpupool/worker/agent"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/agenttest"
)

// BenchmarkTrivialJob runs jobs that do nothing, 50 given out at once, through a whole agent and a real API on
// loopback, and says what processor time one costs here, its own processes and the API included.
func BenchmarkTrivialJob(b *testing.B) {
	api := agenttest.New()
	defer api.Close()
	api.Token("s", "t")
	cfg := config(agent.PhoneHome{Server: "s", API: api.URL, Token: "t"}, b.TempDir())
	cfg.Readers = []accelerator.Reader{newReader(8)}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- agent.New(cfg).Run(ctx) }()
	defer func() { cancel(); <-done }()
	cpu := func() time.Duration {
		var total time.Duration
		for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
			var ru syscall.Rusage
			if err := syscall.Getrusage(who, &ru); err != nil {
				b.Fatal(err)
			}
			total += time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
		}
		return total
	}
	if err := api.Until(b.Context(), func() bool { return len(api.Heartbeats("s")) > 0 }); err != nil {
		b.Fatal(err)
	}
	before := cpu()
	b.ResetTimer()
	for i := 0; i < b.N; i += 50 {
		var batch []agentproto.Task
		for k := i; k < min(i+50, b.N); k++ {
			batch = append(batch, agenttest.Run(fmt.Sprintf("job/%d", k), 1, agentproto.Run{Job: "j", Command: []string{"true"}}))
		}
		api.Give("s", batch...)
		for _, t := range batch {
			if _, err := api.End(b.Context(), t.ID); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.StopTimer()
	b.ReportMetric(float64((cpu()-before).Microseconds())/float64(b.N), "cpu-us/job")
}
