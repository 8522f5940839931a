package agent

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
)

// answers is a reader that answers as it is told.
type answers struct {
	read func(ctx context.Context) error
}

func (a *answers) Vendor() schema.Vendor                                 { return schema.VendorHuawei }
func (a *answers) Driver(context.Context) (string, error)                { return "", nil }
func (a *answers) Watch(context.Context, func(accelerator.Sign)) error   { return nil }
func (a *answers) Read(ctx context.Context) ([]agentproto.Device, error) { return nil, a.read(ctx) }

// A tool that is killed at its deadline, time after time, is as hung as a library that never comes back; one that fails is not.
func TestADriverIsHungThatIsGivenUpEachTime(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	late := func(ctx context.Context) error { <-ctx.Done(); return errors.New("signal: killed") }
	fails := func(context.Context) error { return errors.New("no such device") }
	well := func(context.Context) error { return nil }
	a := &answers{}
	d := newDevices(Config{Readers: []accelerator.Reader{a}, ReadTimeout: 5 * time.Millisecond, Now: func() time.Time { return now }})
	for i, step := range []struct {
		read func(context.Context) error
		hung bool
	}{{late, false}, {late, false}, {late, true}, {well, false}, {fails, false}, {fails, false}, {fails, false}, {late, false}, {well, false}, {late, false}, {late, false}, {late, true}} {
		a.read = step.read
		f := d.begin(t.Context(), 0)
		<-f.done
		if got := len(d.hung(45*time.Second)) == 1; got != step.hung {
			t.Errorf("reading %d: hung is %v", i+1, got)
		}
		now = now.Add(30 * time.Second)
	}
}

func TestASampleThatIsNoNumberIsUnknown(t *testing.T) {
	t.Parallel()
	samples := map[string]float64{"a": 1, "b": math.NaN(), "c": math.Inf(1)}
	before := accelerator.UnreadableCounts()["test"]
	if onlyNumbers("test", samples); len(samples) != 1 || samples["a"] != 1 || accelerator.UnreadableCounts()["test"] != before+2 {
		t.Errorf("left are %v, counted %v", samples, accelerator.UnreadableCounts())
	}
}
