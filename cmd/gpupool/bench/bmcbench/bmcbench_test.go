package bmcbench_test

import (
	"context"
	"io"
	"testing"
	"time"

	"gpupool/activities/bmc"
	"gpupool/cmd/gpupool/bench/bmcbench"
)

// A small site, watched for a hundred rounds with two BMCs that hang in every other ten: nobody waits for them, and nothing
// is left over, neither between the rounds nor when the watch has stopped.
func TestAHundredRoundsLeaveNothingAndWaitForNobody(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	cfg := bmcbench.Config{BMCs: 28, Hung: 2, Rounds: 100, Block: 10, Interval: 200 * time.Millisecond, Deep: 5,
		Timing: bmc.Timing{Dial: 10 * time.Second, Call: 10 * time.Second, BulkCall: 10 * time.Second}}
	r, err := bmcbench.Run(t.Context(), cfg, func(s string) { t.Log(s) }, func(ctx context.Context, n int) (io.WriteCloser, io.Reader, func() error, error) {
		in, commands := io.Pipe()
		answers, out := io.Pipe()
		ended := make(chan error, 1)
		go func() {
			err := bmcbench.Lab(ctx, n, in, out)
			out.CloseWithError(err)
			ended <- err
		}()
		return commands, answers, func() error { return <-ended }, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	if want := (cfg.BMCs - cfg.Hung) * (cfg.Rounds - 1); r.Reads < want || r.DeepReads < want/cfg.Deep/2 {
		t.Errorf("%d reads, %d of them deep; want %d", r.Reads, r.DeepReads, want)
	}
	if r.After != r.Before {
		t.Errorf("before the watch %+v, after it %+v", r.Before, r.After)
	}
	if r.Before.Sessions != 0 || r.End.Sessions != cfg.BMCs || r.Early.Sessions > cfg.BMCs {
		t.Errorf("sessions before %d, after thirty rounds %d, after a hundred %d; want one for each of %d BMCs", r.Before.Sessions, r.Early.Sessions, r.End.Sessions, cfg.BMCs)
	}
	// What is under way at the moment of the count is not a leak: a read has up to four sockets, each with two goroutines here
	// and as many in the lab.
	if slack := 8 * 4; r.End.Sockets > r.Early.Sockets+slack || r.End.Goroutines > r.Early.Goroutines+2*slack {
		t.Errorf("after thirty rounds %+v, after a hundred %+v", r.Early, r.End)
	}
	if r.QuickHung.P99 > cfg.Timing.Call || r.WholeHung.P99 > cfg.Timing.Call || r.LateHung.P99 > cfg.Timing.Call {
		t.Errorf("reads waited for BMCs that hang: %+v", r)
	}
	if r.Failed != 0 {
		t.Errorf("%d refused logins", r.Failed)
	}
}
