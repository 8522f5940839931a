package demo_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"gpupool/cmd/gpupool/demo"
)

// TestWebhooksMissNothingWhenTheProcessIsKilled kills the process with SIGKILL while events come and messages are under way,
// to a receiver that takes only some of them at first: each event is told, by one id, signed.
func TestWebhooksMissNothingWhenTheProcessIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("starts whole processes")
	}
	const kills, each = 5, 12
	var mu sync.Mutex
	var check *standardwebhooks.Webhook
	ids, told, calls := map[string]string{}, map[string]bool{}, 0
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // killed while it sent
		}
		mu.Lock()
		defer mu.Unlock()
		if err := check.Verify(body, r.Header); err != nil {
			t.Errorf("%v: %s", err, body)
		}
		if calls++; calls%3 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		var m struct{ Data struct{ Subject string } }
		if err := json.Unmarshal(body, &m); err != nil {
			t.Errorf("%v: %s", err, body)
		}
		id := r.Header.Get("webhook-id")
		if was, again := ids[id]; again && was != m.Data.Subject {
			t.Errorf("%s is about %s and about %s", id, was, m.Data.Subject)
		}
		ids[id], told[m.Data.Subject] = m.Data.Subject, true
	}))
	defer receiver.Close()
	dir := t.TempDir()
	args := []string{"--set", "webhooks.allow_networks=127.0.0.0/8", "--set", "webhooks.allow_http=true"}
	up, err := demo.Start(t.Context(), os.Args[0], dir, 0, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { up.Stop() }()
	at, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	post := func(path string, in, out any) {
		t.Helper()
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, up.URL+path, bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Authorization", "Bearer "+up.Token)
		q.Header.Set("Content-Type", "application/json")
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		if r.StatusCode != http.StatusCreated {
			t.Fatalf("%s: %d %s", path, r.StatusCode, body)
		}
		if out != nil {
			if err := json.Unmarshal(body, out); err != nil {
				t.Fatal(err)
			}
		}
	}
	var made struct{ Secret string }
	mu.Lock()
	post("/v1/webhooks", map[string]any{"name": "all", "url": receiver.URL, "events": []string{"policy.changed"}}, &made)
	check, err = standardwebhooks.NewWebhook(made.Secret)
	mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	token := up.Token
	want := []string{}
	for n := range kills + 1 {
		for i := range each {
			name := fmt.Sprintf("t%d-%d", n, i)
			post("/v1/tenants", map[string]any{"name": name}, nil)
			want = append(want, name)
		}
		if n == kills {
			break
		}
		up.Kill()
		if up, err = demo.Start(t.Context(), os.Args[0], dir, port, args...); err != nil {
			t.Fatal(err)
		}
		up.Token = token
	}
	missing := func() (out []string) {
		mu.Lock()
		defer mu.Unlock()
		for _, name := range want {
			if !told[name] {
				out = append(out, name)
			}
		}
		return out
	}
	end := time.After(2 * time.Minute)
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for len(missing()) > 0 {
		select {
		case <-look.C:
		case <-end:
			t.Fatalf("not told of %v", missing())
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(ids) != len(want) {
		t.Errorf("%d ids for %d events", len(ids), len(want))
	}
	t.Logf("%d events, %d requests, %d kills", len(want), calls, kills)
}
