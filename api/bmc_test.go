package api_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpupool/api/auth"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func TestABMCPushesEventsToItsOwnAddressAlone(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	_, v := p.agent(1)
	others, err := p.store.EnrollServers(t.Context(), "test", storetest.Ring(t), []store.NewServer{storetest.NewServer(2, model, 8)})
	p.must(err)
	other := others[0]
	p.must(p.store.SetBMCListener(t.Context(), v.ID, "a-secret"))
	post := func(path string, want int) {
		t.Helper()
		if a := p.send("", http.MethodPost, schema.PathBMCEvents+path, `{"Events": [{"MessageId": "ResourceEvent.1.0.ResourceErrorsDetected"}]}`); a.status != want {
			t.Fatalf("%s: %d %s, want %d", path, a.status, a.body, want)
		}
	}
	taken := func(want ...string) {
		t.Helper()
		if got, err := p.store.TakeBMCEvents(t.Context(), v.Site); err != nil || !slices.Equal(got, want) {
			t.Fatalf("taken %v, %v; want %v", got, err, want)
		}
	}
	post("/"+v.ID+"/wrong", http.StatusUnauthorized)
	post("/"+other.ID+"/a-secret", http.StatusUnauthorized)
	post("/srv_none/a-secret", http.StatusUnauthorized)
	taken()
	post("/"+v.ID+"/a-secret", http.StatusNoContent)
	taken(v.ID)
	// Guessing is bounded for each address, and shuts out nobody who knows the secret.
	last := 0
	for range 100 {
		last = p.send("", http.MethodPost, schema.PathBMCEvents+"/"+v.ID+"/guess", "").status
	}
	if last != http.StatusTooManyRequests {
		t.Fatalf("after a hundred guesses: %d", last)
	}
	post("/"+v.ID+"/a-secret", http.StatusNoContent)
	taken(v.ID)
}

// A BMC that floods its address with events, each with a body as large as may be, costs no memory that grows with them and one write
// between two takes; another's single event arrives meanwhile, and what came is counted.
func TestAFloodOfPushedEventsIsBoundedAndHidesNoOther(t *testing.T) { // not parallel: it measures this process
	p := newPool(t)
	both, err := p.store.EnrollServers(t.Context(), "test", storetest.Ring(t), []store.NewServer{storetest.NewServer(1, model, 8), storetest.NewServer(2, model, 8)})
	p.must(err)
	flooding, quiet := both[0], both[1]
	for _, v := range []schema.Server{flooding, quiet} {
		p.must(p.store.SetBMCListener(t.Context(), v.ID, "a-secret"))
	}
	const senders, each = 16, 1250
	body := []byte(`{"Events": [{"Message": "` + strings.Repeat("x", 4<<10) + `"}]}`)
	transport := &http.Transport{MaxIdleConnsPerHost: senders, MaxConnsPerHost: senders}
	defer transport.CloseIdleConnections()
	post := func(server string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+schema.PathBMCEvents+"/"+server+"/a-secret", bytes.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Error(err)
			return 0
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Error(err)
		}
		return resp.StatusCode
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	post(flooding.ID)
	if got, err := p.store.TakeBMCEvents(t.Context(), quiet.Site); err != nil || !slices.Equal(got, []string{flooding.ID}) {
		t.Fatalf("taken %v, %v", got, err)
	}
	before, begun := heap(), time.Now()
	var wg sync.WaitGroup
	for range senders {
		wg.Go(func() {
			for range each {
				if status := post(flooding.ID); status != http.StatusNoContent {
					t.Errorf("an event was answered with %d", status)
					return
				}
			}
		})
	}
	if status := post(quiet.ID); status != http.StatusNoContent {
		t.Errorf("the other BMC's event was answered with %d", status)
	}
	amid, err := p.store.TakeBMCEvents(t.Context(), quiet.Site)
	if err != nil || !slices.Contains(amid, quiet.ID) {
		t.Errorf("amid the flood was taken %v, %v", amid, err)
	}
	wg.Wait()
	took := time.Since(begun)
	if grown := int64(heap()) - int64(before); grown > 32<<20 {
		t.Errorf("%d MiB are kept of the flood", grown>>20)
	}
	if got, err := p.store.TakeBMCEvents(t.Context(), quiet.Site); err != nil || len(got) > 1 || slices.Contains(got, quiet.ID) {
		t.Errorf("after the flood was taken %v, %v", got, err)
	}
	counted := fmt.Sprintf(`gpupool_api_requests_total{route="POST %s/:server/:secret",status="204"} %d`, schema.PathBMCEvents, senders*each+2)
	if a := p.op(http.MethodGet, "/metrics", ""); !strings.Contains(string(a.body), counted) {
		t.Errorf("the metrics don't have %s:\n%s", counted, strings.Join(slices.DeleteFunc(strings.Split(string(a.body), "\n"), func(l string) bool { return !strings.Contains(l, "bmc") }), "\n"))
	}
	t.Logf("%d events in %s: %.0f a second", senders*each, took.Round(time.Millisecond), senders*each/took.Seconds())
}

func TestFoundBMCsAreListedUntilTheyAreEnrolled(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	keep := func(body string, want int) string {
		t.Helper()
		a := p.send(p.tokens[auth.Operator], http.MethodPost, "/v1/found-bmcs", body)
		if a.status != want {
			t.Fatalf("%s: %d %s", body, a.status, a.body)
		}
		return string(a.body)
	}
	mine := storetest.NewServer(1, model, 8)
	body := fmt.Sprintf(`{"site": "s1", "items": [{"address": %q, "vendor": "Dell"}, {"address": "https://10.9.9.9", "vendor": "NVIDIA", "serial": "S-1", "tls_key": "ab"}]}`, mine.BMCAddress)
	for range 2 {
		if got := keep(body, http.StatusOK); !strings.Contains(got, "10.9.9.9") || !strings.Contains(got, mine.BMCAddress) {
			t.Fatalf("kept %s", got)
		}
	}
	_, err := p.store.EnrollServers(t.Context(), "test", storetest.Ring(t), []store.NewServer{mine})
	p.must(err)
	keep(body, http.StatusOK)
	for site, want := range map[string]bool{"": true, "?site=s1": true, "?site=s2": false} {
		a := p.send(p.tokens[auth.Viewer], http.MethodGet, "/v1/found-bmcs"+site, "")
		got := string(a.body)
		if a.status != http.StatusOK || strings.Contains(got, "10.9.9.9") != want || strings.Contains(got, mine.BMCAddress) {
			t.Fatalf("%s: %d %s", site, a.status, got)
		}
	}
	keep(`{"site": "", "items": []}`, http.StatusBadRequest)
	keep(`{"site": "s1", "items": [{"address": ""}]}`, http.StatusBadRequest)
	keep(`{"site": "s1", "items": [{"address": "https://10.0.0.1", "password": "x"}]}`, http.StatusBadRequest)
}
