package bmc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/activities/bmc"
)

// hostile is a BMC that answers as it likes, once somebody is in.
func hostile(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.TrimRight(r.URL.Path, "/") == "/redfish/v1":
			fmt.Fprint(w, `{"RedfishVersion": "1.6.0", "Systems": {"@odata.id": "/redfish/v1/Systems"}, "EventService": {"@odata.id": "/redfish/v1/EventService"}}`)
		case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/Sessions"):
			w.Header().Set("X-Auth-Token", "the-token")
			w.Header().Set("Location", "http://192.0.2.1/redfish/v1/SessionService/Sessions/1") // the path counts, not the host
			w.WriteHeader(http.StatusCreated)
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		default:
			answer(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func hurried(t *testing.T, url string, timing bmc.Timing) *bmc.Client {
	t.Helper()
	return client(t, pool(t, bmc.Config{Timing: timing, Rate: 1e6, Burst: 1000}), url, bmc.Static("root", "right-password"))
}

// Neither the token nor the password goes to another host, whether a redirect or a link leads there.
func TestNothingLeadsAwayFromTheBMC(t *testing.T) {
	t.Parallel()
	var strayed atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { strayed.Add(1) }))
	defer elsewhere.Close()
	for name, answer := range map[string]http.HandlerFunc{
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
		},
		"a redirect without a scheme": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", strings.TrimPrefix(elsewhere.URL, "http:")+"/redfish/v1")
			w.WriteHeader(http.StatusFound)
		},
		"a member's link": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"Members": [{"@odata.id": "%s/redfish/v1/Systems/1"}]}`, elsewhere.URL)
		},
		"a next page": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/redfish/v1/Systems" {
				fmt.Fprint(w, `{"Actions": {"#ComputerSystem.Reset": {"target": "/x"}}, "Boot": {}}`)
				return
			}
			fmt.Fprintf(w, `{"Members": [{"@odata.id": "/redfish/v1/Systems/1"}], "Members@odata.nextLink": "%s/redfish/v1/Systems?$skip=1"}`, elsewhere.URL)
		},
		"a reset's target": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/redfish/v1/Systems" {
				fmt.Fprint(w, `{"Members": [{"@odata.id": "/redfish/v1/Systems/1"}]}`)
				return
			}
			fmt.Fprintf(w, `{"PowerState": "On", "Boot": {}, "Actions": {"#ComputerSystem.Reset": {"target": "%s/reset"}}}`, elsewhere.URL)
		},
		"an event stream": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"ServerSentEventUri": "%s/sse", "Subscriptions": {"@odata.id": "%s/subs"}}`, elsewhere.URL, elsewhere.URL)
		},
	} {
		c := hurried(t, hostile(t, answer), quick)
		err := errors.Join(c.SetPower(t.Context(), bmc.Off, bmc.Hard()), c.Events(t.Context(), func(bmc.Event) {}), c.Subscribe(t.Context(), "ours", keeps("http://192.0.2.1/x")))
		if err == nil || strayed.Load() != 0 {
			t.Errorf("%s: %v, %d requests went elsewhere", name, err, strayed.Load())
		}
	}
	// A redirect of the login itself.
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusPermanentRedirect)
			return
		}
		fmt.Fprint(w, `{"RedfishVersion": "1.6.0"}`)
	}))
	defer s.Close()
	if err := hurried(t, s.URL, quick).Login(t.Context()); err == nil || strayed.Load() != 0 {
		t.Errorf("login: %v, %d requests went elsewhere", err, strayed.Load())
	}
}

// Bodies without end cost a bounded part of them, and bodies that trickle a bounded time.
func TestBodiesWithoutEndAreCutOff(t *testing.T) {
	t.Parallel()
	short := quick
	short.Call, short.BulkCall = 300*time.Millisecond, 300*time.Millisecond
	var sent atomic.Int64
	flood := func(head string, chunk []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			n, err := w.Write([]byte(head))
			for ; err == nil && sent.Load() < 200<<20; n, err = w.Write(chunk) {
				sent.Add(int64(n))
			}
		}
	}
	long := quick // enough for what is read of it on a busy machine
	long.Call, long.BulkCall = time.Minute, time.Minute
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		timing bmc.Timing
		want   error
	}{
		"a hundred megabytes of string": {flood(`{"Name": "`, []byte(strings.Repeat("x", 1<<16))), long, bmc.ErrBody},
		"a hundred megabytes of arrays": {flood(`{"Members": `, []byte(strings.Repeat("[", 1<<16))), long, bmc.ErrBody},
		"a byte now and then": {func(w http.ResponseWriter, r *http.Request) {
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					if _, err := w.Write([]byte(" ")); err != nil {
						return
					}
					_ = http.NewResponseController(w).Flush() // one that hung up is seen by the write
				case <-r.Context().Done():
					return
				}
			}
		}, short, bmc.ErrUnreachable},
		"a length that is not kept": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000000")
			_, _ = w.Write([]byte("{")) // then the server hangs up
		}, short, bmc.ErrUnreachable},
		"nesting": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000)))
		}, long, bmc.ErrBody},
		"a million members": {func(w http.ResponseWriter, _ *http.Request) {
			var b strings.Builder
			b.WriteString(`{"Members": [`)
			for i := range 200_000 {
				fmt.Fprintf(&b, `{"@odata.id": "/redfish/v1/Systems/%d"},`, i)
			}
			b.WriteString(`{}]}`)
			_, _ = w.Write([]byte(b.String()))
		}, long, bmc.ErrBody},
		"pages without end": {func(w http.ResponseWriter, r *http.Request) {
			n := 0
			_, _ = fmt.Sscan(r.URL.Query().Get("$skip"), &n) // 0 on the first
			b, _ := json.Marshal(map[string]any{"Members": []any{map[string]any{"@odata.id": fmt.Sprintf("/redfish/v1/Systems/%d", n), "Name": "x"}}, "Members@odata.nextLink": fmt.Sprintf("/redfish/v1/Systems?$skip=%d", n+1)})
			_, _ = w.Write(b)
		}, long, bmc.ErrNoHost},
	} {
		sent.Store(0)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		_, err := hurried(t, hostile(t, tc.answer), tc.timing).Power(ctx)
		cancel()
		if !errors.Is(err, tc.want) || len(err.Error()) > 2000 {
			t.Errorf("%s: %.300v, want %v", name, err, tc.want)
		}
		if n := sent.Load(); n > 32<<20 {
			t.Errorf("%s: %d bytes were taken", name, n)
		}
	}
}
