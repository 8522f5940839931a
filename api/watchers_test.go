package api_test

import (
	"bufio"
	"net/http"
	"testing"
	"time"

	"gpupool/api/auth"
	"gpupool/schema/store"
)

// open begins a stream of all events that goes on until the test's end, and returns its status and first line.
func (p *pool) open(token string) (status int, line string) {
	p.Helper()
	req, err := http.NewRequestWithContext(p.Context(), http.MethodGet, p.url+"/v1/events", http.NoBody)
	p.must(err)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "text/event-stream")
	resp, err := p.http.RoundTrip(req)
	p.must(err)
	p.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode == http.StatusOK {
		line, err = bufio.NewReader(resp.Body).ReadString('\n')
		p.must(err)
	}
	return resp.StatusCode, line
}

func TestOneTokensOpenReadsAreBoundedAndItCanStillAct(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	p.must(p.server.Fill(store.HashToken(p.tokens[auth.TenantMember])))
	if status, _ := p.open(p.tokens[auth.TenantMember]); status != http.StatusTooManyRequests {
		t.Errorf("one stream more is %d, want 429", status)
	}
	if a := p.member("POST", "/v1/jobs/none/actions/cancel", ""); a.status != http.StatusNotFound {
		t.Errorf("an act is %d, want 404", a.status)
	}
	if status, _ := p.open(p.tokens[auth.TenantAdmin]); status != http.StatusOK {
		t.Errorf("another token's stream is %d, want 200", status)
	}
}

// TestWhatWatchesDoesNotKeepOthersWaiting has all turns taken, as thousands of watchers that read from the beginning take
// them: the rest is answered, and a watcher goes on once there is a turn.
func TestWhatWatchesDoesNotKeepOthersWaiting(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	free := p.server.TakeTurns()
	if status, line := p.open(p.tokens[auth.Operator]); status != http.StatusOK || line != ": open\n" {
		t.Fatalf("a stream begins with %d %q", status, line)
	}
	page := make(chan answer)
	go func() { page <- p.op("GET", "/v1/events?wait=30s", "") }()
	for _, path := range []string{"/v1/servers", "/v1/jobs", "/v1/specs/h100x8"} {
		if a := p.op("GET", path, ""); a.status != http.StatusOK {
			t.Errorf("%s is %d", path, a.status)
		}
	}
	select {
	case a := <-page:
		t.Errorf("a watcher read without a turn: %d", a.status)
	case <-time.After(20 * time.Millisecond):
	}
	free()
	if a := <-page; a.status != http.StatusOK {
		t.Errorf("a watcher with a turn is %d", a.status)
	}
}
