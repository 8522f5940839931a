package api

import (
	"encoding/binary"
	"testing"
	"time"

	"gpupool/schema/agentproto"
)

func TestARequestIsTakenOnceForAsLongAsItsSignatureIsGood(t *testing.T) {
	t.Parallel()
	var r replays
	now := time.UnixMilli(1_700_000_000_000)
	n := uint64(0)
	sig := func(k uint64) []byte { return binary.BigEndian.AppendUint64(nil, k) }
	fresh := func(server string, at time.Time) (again func() bool) {
		t.Helper()
		n++
		k := n
		if !r.first(server, at, sig(k), now) {
			t.Fatalf("request %d of %s, signed %s before now, was refused", k, server, now.Sub(at))
		}
		return func() bool { return r.first(server, at, sig(k), now) }
	}
	ahead := fresh("a", now.Add(agentproto.MaxSkew)) // its clock is fast: good for twice as long
	if ahead() || fresh("b", now)() {
		t.Fatal("a request was taken twice")
	}
	now = now.Add(2*agentproto.MaxSkew - time.Millisecond)
	if ahead() {
		t.Fatal("a request was taken again while its signature is good")
	}
	// One that sends without end is remembered in bounded space, and nothing of it is taken twice.
	var all []func() bool
	for range 3 * heardMost {
		now = now.Add(time.Millisecond)
		all = append(all, fresh("c", now))
	}
	for i, again := range all {
		if again() {
			t.Fatalf("request %d of %d was taken twice", i, len(all))
		}
	}
	if got := len(r.agents["c"].seen); got > heardMost {
		t.Errorf("%d requests of one agent are remembered", got)
	}
	now = now.Add(3 * agentproto.MaxSkew)
	fresh("d", now)
	if len(r.agents) != 1 || len(r.agents["d"].seen) != 1 {
		t.Errorf("%d agents are remembered, of whom three have said nothing for long", len(r.agents))
	}
}
