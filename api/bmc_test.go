package api_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

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
