package bmc_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

// An event that never ends, in one line or in many, ends the listening instead of being kept.
func TestAnEventWithoutEndIsNotKept(t *testing.T) {
	t.Parallel()
	for name, chunk := range map[string]string{"in one line": strings.Repeat("x", 4096), "in many lines": "data: " + strings.Repeat("x", 4096) + "\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := lab.New(profile(t, lab.DGXH100), lab.Hooks{})
			var sent atomic.Int64
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, "/SSE") {
					l.ServeHTTP(w, r)
					return
				}
				w.Header().Set("Content-Type", "text/event-stream")
				for n, err := w.Write([]byte("data: ")); err == nil; n, err = w.Write([]byte(chunk)) {
					sent.Add(int64(n))
				}
			}))
			defer front.Close()
			c := client(t, pool(t, bmc.Config{}), front.URL, bmc.Static(l.Credential()))
			told := 0
			err := c.Events(t.Context(), func(bmc.Event) { told++ })
			if err == nil || told != 0 || !errors.Is(err, bmc.ErrBody) && !errors.Is(err, bmc.ErrUnreachable) {
				t.Fatalf("%d events, %v", told, err)
			}
			if n := sent.Load(); n > 64<<20 { // what was under way in sockets included
				t.Fatalf("%d bytes were taken", n)
			}
		})
	}
}
