package bmc_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema"
)

// A server's power is taken away so often a day and no more, by all processes together; a person is not held back, and what
// needs no cut is not counted.
func TestAServersPowerIsTakenAwaySoOftenADay(t *testing.T) {
	p := profile(t, lab.Dell)
	synctest.Test(t, func(t *testing.T) {
		var n memoryNet
		s := n.serve(t, "idrac", p, lab.Hooks{})
		site := bmc.NewShared()
		var processes []*bmc.Client
		for range 2 {
			processes = append(processes, client(t, pool(t, bmc.Config{Timing: bmc.DefaultTiming, Dial: n.dial, Shared: site, ResetsPerDay: 5}), s.URL(), bmc.Static(s.Credential())))
		}
		cycle := func(i int, opts ...bmc.PowerOption) error {
			return processes[i%2].SetPower(t.Context(), bmc.Cycle, append(opts, bmc.Hard())...)
		}
		for i := range 5 {
			if err := cycle(i); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Hour)
		}
		s.ClearRequests()
		for i := range 2 {
			for _, want := range []bmc.Want{bmc.Cycle, bmc.Off} {
				err := processes[i].SetPower(t.Context(), want)
				if !errors.Is(err, bmc.ErrTooOften) || schema.CodeOf(err) != schema.CodeConflict || !strings.Contains(err.Error(), "5 times within a day") {
					t.Fatalf("%s the sixth time: %v", want, err)
				}
			}
		}
		if err := processes[0].SetPower(t.Context(), bmc.On); err != nil {
			t.Fatalf("on, which it is: %v", err)
		}
		if got := sent(s); len(got) != 0 || !s.PowerOn() {
			t.Fatalf("sent %v, power %v", got, s.PowerOn())
		}
		if err := cycle(0, bmc.Regardless()); err != nil {
			t.Fatalf("a person: %v", err)
		}
		<-time.After(18 * time.Hour) // the first is 23 hours ago
		if err := cycle(1); !errors.Is(err, bmc.ErrTooOften) {
			t.Fatalf("within the day: %v", err)
		}
		<-time.After(3 * time.Hour) // the first two are a day ago, and the person's is counted
		if err := cycle(1); err != nil {
			t.Fatal(err)
		}
	})
}
