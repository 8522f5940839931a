package store_test

import (
	"fmt"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/usage"
)

// TestAnyPeriodBalancesByAnyClock: whatever period is asked for, at whatever the process's clock says at that moment (also when
// it was set back behind what is recorded), the audit balances, the states sum to what was installed, and what runs has
// used nothing below zero.
func TestAnyPeriodBalancesByAnyClock(t *testing.T) {
	t.Parallel()
	base := uint64(time.Now().UnixNano())
	for k := range uint64(3) {
		seed := base + k
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			b := newBooks(t, seed)
			defer func() { b.must(b.Close()) }()
			ctx := t.Context()
			for n := range 300 {
				b.step()
				if n%10 != 0 {
					continue
				}
				now := schema.Instant(b.now.Load())
				for _, w := range []usage.Interval{
					{Start: now - 30*24*usage.Hour, End: now}, // what is asked for by default
					{Start: now - schema.Instant(b.rnd.Int64N(40*usage.Hour)) - 1, End: now},
					{Start: 0, End: now + usage.Hour},
					{Start: schema.Instant(b.newest) - schema.Instant(b.rnd.Int64N(3*usage.Hour)) - 1, End: schema.Instant(b.newest)},
				} {
					a, err := b.AuditUsage(ctx, w)
					b.must(err)
					if len(a.Findings) > 0 || a.Balance.Parts() != a.Balance.Installed || a.Balance.Allocated != a.Ledger+a.Live || a.Events != a.Balance.Allocated || a.Ledger < 0 || a.Live < 0 {
						t.Fatalf("step %d, the clock is %s and the newest event of %s: the audit of %v found %+v", n, now, schema.Instant(b.newest), w, a)
					}
				}
				live, err := b.LiveUsage(ctx, "", "", "")
				b.must(err)
				for _, j := range live {
					if j.Used() < 0 || j.Charged() < 0 {
						t.Fatalf("step %d, the clock is %s: a job that runs has used %d and is charged %d", n, now, j.Used(), j.Charged())
					}
				}
			}
		})
	}
}
