package console

import (
	"fmt"
	"net/http"
	"time"
)

// changes is a stream that says "something changed", at most once in Calm; it says not what: a page reads itself anew,
// by the reader's own rights. A comment now and then keeps proxies from closing it.
func changes(v *visit) {
	rc := http.NewResponseController(v.w)
	h := v.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	_ = rc.SetWriteDeadline(time.Time{}) // where the server has one; the stream has no end of its own
	say := func(s string) bool {
		if _, err := fmt.Fprint(v.w, s); err != nil {
			return false
		}
		return rc.Flush() == nil
	}
	changed, end := v.Watch() // before the first word: who has read it misses nothing
	defer end()
	if !say(": here\n\n") {
		return
	}
	alive := time.NewTicker(20 * time.Second)
	defer alive.Stop()
	ctx := v.r.Context()
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.Done:
			return
		case <-alive.C:
			if !say(": here\n\n") {
				return
			}
		case <-changed:
			if !say("event: changed\ndata: \n\n") {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-v.Done:
				return
			case <-time.After(v.Calm):
			}
		}
	}
}
