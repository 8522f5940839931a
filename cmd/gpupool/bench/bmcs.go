package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"gpupool/cmd/gpupool/bench/bmcbench"
	"gpupool/schema"
)

// labOfBMCs says that this process is the BMCs, and how many.
const labOfBMCs = "GPUPOOL_BENCH_BMCS"

// watched is a site of the size that one worker is meant for, read twelve times as often as in production, so that a hundred
// rounds end within ten minutes.
var watched = bmcbench.Config{BMCs: 2000, Hung: 20, Rounds: 100, Block: 10, Interval: 5 * time.Second, Deep: 5}

// production is the watch's own interval.
const production = time.Minute

// bmcs watches 2,000 lab BMCs.
func bmcs(ctx context.Context, say func(string)) ([]Figure, error) {
	if text := os.Getenv(labOfBMCs); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return nil, schema.Invalid(labOfBMCs, text, "how many BMCs to be")
		}
		return nil, bmcbench.Lab(ctx, n, os.Stdin, os.Stdout)
	}
	r, err := bmcbench.Run(ctx, watched, say, func(ctx context.Context, n int) (io.WriteCloser, io.Reader, func() error, error) {
		c := exec.CommandContext(ctx, os.Args[0], "bench", "--only", "bmc")
		c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", labOfBMCs, n))
		c.Stderr = os.Stderr
		in, err := c.StdinPipe()
		if err != nil {
			return nil, nil, nil, err
		}
		out, err := c.StdoutPipe()
		if err != nil {
			return nil, nil, nil, err
		}
		return in, out, c.Wait, c.Start()
	})
	if err != nil {
		return nil, err
	}
	return bmcFigures(watched, r), nil
}

func bmcFigures(cfg bmcbench.Config, r bmcbench.Result) []Figure {
	var out []Figure
	atMost := func(name string, value float64, unit string, goal float64) {
		holds := value <= goal
		out = append(out, Figure{Group: "bmc", Name: name, Value: value, Unit: unit, Goal: &goal, Holds: &holds})
	}
	// beside compares with what it was otherwise in the same run; the ratio may be at most most.
	beside := func(name string, value float64, unit, peer string, other, most float64) {
		f := Figure{Group: "bmc", Name: name, Value: value, Unit: unit, Peer: peer, PeerValue: &other}
		if other > 0 {
			ratio := value / other
			holds := ratio <= most
			f.Ratio, f.Goal, f.Holds = &ratio, &most, &holds
		}
		out = append(out, f)
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	reads := float64(max(1, r.Reads+cfg.BMCs))
	perRead := ms(r.Processor) / reads
	out = append(out,
		Figure{Group: "bmc", Name: "BMCs watched by one worker", Value: float64(cfg.BMCs), Unit: "BMCs"},
		Figure{Group: "bmc", Name: fmt.Sprintf("reads, each BMC's every %s", cfg.Interval), Value: float64(r.Reads) / r.Wall.Seconds(), Unit: "reads/s"},
		Figure{Group: "bmc", Name: "requests of a read, deep ones included", Value: float64(r.Requests) / reads, Unit: "requests"},
		Figure{Group: "bmc", Name: "processor time of a read, deep ones and the record included", Value: perRead, Unit: "ms"})
	atMost("share of one core at production's interval", 100*perRead*float64(cfg.BMCs)/ms(production), "%", 50)
	atMost("resident memory a BMC", float64(r.Resident)/1024/float64(cfg.BMCs), "KiB", 256)
	out = append(out,
		Figure{Group: "bmc", Name: "read of the state, p50", Value: ms(r.Quick.P50), Unit: "ms"},
		Figure{Group: "bmc", Name: "read of everything, p50", Value: ms(r.Whole.P50), Unit: "ms"})
	beside("read of the state while 1 % hang, p99", ms(r.QuickHung.P99), "ms", "none hang", ms(r.Quick.P99), 1.25)
	beside("read of everything while 1 % hang, p99", ms(r.WholeHung.P99), "ms", "none hang", ms(r.Whole.P99), 1.25)
	beside("a read begins late by, while 1 % hang, p99", ms(r.LateHung.P99), "ms", "none hang", ms(r.Late.P99), 1.25)
	for _, c := range []struct {
		name string
		of   func(bmcbench.Counts) int
	}{{"sessions at BMCs", func(c bmcbench.Counts) int { return c.Sessions }}, {"sockets", func(c bmcbench.Counts) int { return c.Sockets }}, {"goroutines", func(c bmcbench.Counts) int { return c.Goroutines }}} {
		beside(fmt.Sprintf("%s after %d rounds", c.name, cfg.Rounds), float64(c.of(r.End)), "", fmt.Sprintf("after %d", 3*cfg.Block), float64(c.of(r.Early)), 1.02)
		atMost(c.name+" left when the watch has stopped", float64(c.of(r.After)-c.of(r.Before)), "", 0)
	}
	atMost("refused logins", float64(r.Failed), "", 0)
	return out
}
