package dhcp

import (
	"fmt"
	"testing"
	"time"
)

func TestAFloodOfStrangersLeavesKnownMachinesTheirShare(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	g := newGate(Limits{}.defaults(), now)
	g.learn(now, "known")
	strangers, known := 0, 0
	for ms := range 10_000 { // ten seconds: ten strangers each millisecond, the known machine each second
		at := now.Add(time.Duration(ms) * time.Millisecond)
		for i := range 10 {
			if g.admit(fmt.Sprintf("made-up-%d-%d", ms, i), at) {
				strangers++
			}
		}
		if ms%1000 == 0 && g.admit("known", at) {
			known++
		}
	}
	if known != 10 {
		t.Errorf("the known machine got %d of 10 packets through", known)
	}
	if strangers < 2000 || strangers > 2300 { // 200 a second, and the first burst
		t.Errorf("%d strangers' packets were looked up in 10 s, want about 2200", strangers)
	}
	if len(g.known) != 1 {
		t.Errorf("the gate remembers %d MACs: a flood fills the memory", len(g.known))
	}
}

func TestAKnownMachineThatStormsIsHeldBack(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	g := newGate(Limits{}.defaults(), now)
	g.learn(now, "storm", "calm")
	n := 0
	for ms := range 10_000 {
		if g.admit("storm", now.Add(time.Duration(ms)*time.Millisecond)) {
			n++
		}
	}
	if n < 50 || n > 60 { // a burst of 16, then 4 a second
		t.Errorf("%d packets in 10 s, want about 56", n)
	}
	if !g.admit("calm", now.Add(10*time.Second)) {
		t.Error("another machine was held back with it")
	}
	g.forget("storm")
	if len(g.known) != 1 {
		t.Error("a machine that left the inventory is still known")
	}
}
