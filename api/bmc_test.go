package api_test

import (
	"net/http"
	"slices"
	"testing"

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
