package hosted

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestALongTurnIsNoDeathAndAHangIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, beats, last := time.Now(), 0, time.Duration(0)
		beat := func() { beats++; last = time.Since(begun) }
		_ = run(t.Context(), nil, beat, func(ctx context.Context, turn func()) error {
			pass(HangsAfter - Every) // one turn
			if beats < int(HangsAfter/Every)-2 {
				t.Errorf("%d words were given in a turn of %s", beats, HangsAfter-Every)
			}
			turn()
			pass(10 * HangsAfter) // this one hangs
			return nil
		})
		if most := 2*HangsAfter - Every; last < HangsAfter || last > most {
			t.Errorf("the last word was given %s after the begin, want it to end with the hang, by %s", last, most)
		}
	})
}

// pass lets time go by on the test's own clock.
func pass(d time.Duration) { <-time.After(d) }

func TestTheWorkEndsWithItsWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(stop) })
		err := run(t.Context(), stop, func() {}, func(ctx context.Context, _ func()) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("the work ended with %v", err)
		}
	})
}
