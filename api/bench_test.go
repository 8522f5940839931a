package api_test

import (
	"net/http/httptest"
	"testing"

	"gpupool/api"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// BenchmarkGuard is what every request pays before its handler: id, credential, role, rate, metrics, and a small answer.
func BenchmarkGuard(b *testing.B) {
	s := storetest.Open(b)
	_, secret, err := s.CreateToken(b.Context(), "test", store.NewToken{Name: "op", Role: schema.RoleOperator})
	if err != nil {
		b.Fatal(err)
	}
	server, err := api.New(api.Config{Store: s, Ring: storetest.Ring(b), RatePerToken: 1_000_000_000})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	b.ReportAllocs()
	for b.Loop() {
		req := httptest.NewRequest("GET", "/v1/whoami", nil)
		req.Header.Set("Authorization", "Bearer "+secret)
		w := httptest.NewRecorder()
		server.Handler().ServeHTTP(w, req)
		if w.Code != 200 {
			b.Fatal(w.Code)
		}
	}
}
