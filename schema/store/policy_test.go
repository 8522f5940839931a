package store_test

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gpupool/schema"
	"gpupool/schema/store"
)

func openPolicy(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{Driver: "sqlite", DSN: filepath.Join(t.TempDir(), "gpupool.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func wantCode(t *testing.T, err error, code schema.ErrorCode, field string) {
	t.Helper()
	if !schema.Is(err, code) {
		t.Fatalf("got %v, want a %s error", err, code)
	}
	if !strings.Contains(err.Error(), field) {
		t.Fatalf("%v does not name %q", err, field)
	}
}

func TestTheFirstTokenIsMadeOnce(t *testing.T) {
	t.Parallel()
	s := openPolicy(t)
	secrets := make([]string, 8)
	var wg sync.WaitGroup
	for i := range secrets {
		wg.Go(func() {
			var err error
			if secrets[i], err = s.EnsureFirstToken(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	secret := strings.Join(secrets, "")
	if !store.LooksLikeToken(secret) {
		t.Fatalf("eight that start at once got %q; want one secret in all", secrets)
	}
	tok, err := s.TokenByHash(t.Context(), store.HashToken(secret))
	if err != nil || tok.Role != schema.RoleOperator {
		t.Fatalf("the first token is %+v, %v; want an operator's", tok, err)
	}
	_, err = s.RevokeToken(t.Context(), "test", tok.Name, "")
	wantCode(t, err, schema.CodeConflict, "last operator")
}

func TestATokenOfAnotherTenantCanNotBeRevoked(t *testing.T) {
	t.Parallel()
	s := openPolicy(t)
	for _, name := range []string{"acme", "globex"} {
		if _, err := s.CreateTenant(t.Context(), "test", name, 100); err != nil {
			t.Fatal(err)
		}
	}
	tok, _, err := s.CreateToken(t.Context(), "test", store.NewToken{Name: "m", Role: schema.RoleTenantMember, Tenant: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.RevokeToken(t.Context(), "test", "m", "globex")
	wantCode(t, err, schema.CodeNotFound, "m")
	if got, err := s.TokenByHash(t.Context(), tok.Hash); err != nil || got.RevokedAt != 0 {
		t.Fatalf("the token is %+v, %v; want it untouched", got, err)
	}
	for range 2 { // revoking again is no error and keeps the moment
		if got, err := s.RevokeToken(t.Context(), "test", tok.ID, "acme"); err != nil || got.RevokedAt == 0 {
			t.Fatalf("revoking gave %+v, %v", got, err)
		}
	}
}

func TestPolicyRefusesWhatIsWrongAndWritesNothing(t *testing.T) {
	t.Parallel()
	s := openPolicy(t)
	ctx := t.Context()
	if _, err := s.CreateTenant(ctx, "test", "acme", 100); err != nil {
		t.Fatal(err)
	}
	head, _ := s.Head(ctx)
	spec := func(n int64) error {
		_, err := s.CreateSpec(ctx, "test", store.NewSpec{Name: "h100x8", Model: "nvidia-h100-80gb", Accelerators: n})
		return err
	}
	quota := func(tenant string, guaranteed, limit int64) error {
		_, err := s.SetQuota(ctx, "test", tenant, "", "nvidia-h100-80gb", guaranteed, limit)
		return err
	}
	token := func(n store.NewToken) error { _, _, err := s.CreateToken(ctx, "test", n); return err }
	for name, c := range map[string]struct {
		err   error
		code  schema.ErrorCode
		field string
	}{
		"a spec of no accelerators":              {spec(0), schema.CodeInvalid, "accelerators"},
		"a spec of -1":                           {spec(-1), schema.CodeInvalid, "accelerators"},
		"a spec of 2^31":                         {spec(1 << 31), schema.CodeInvalid, "accelerators"},
		"a spec of 2^53+1":                       {spec(1<<53 + 1), schema.CodeInvalid, "9007199254740993"},
		"a spec of 2^63-1":                       {spec(1<<63 - 1), schema.CodeInvalid, "9223372036854775807"},
		"a quota whose limit wraps to 0 in 32 b": {quota("acme", 0, 1<<32), schema.CodeInvalid, "limit"},
		"a guarantee above the limit":            {quota("acme", 9, 8), schema.CodeInvalid, "guaranteed"},
		"a quota of no tenant":                   {quota("nobody", 0, 8), schema.CodeNotFound, "nobody"},
		"a member of no tenant":                  {token(store.NewToken{Name: "x", Role: schema.RoleTenantMember}), schema.CodeInvalid, "tenant"},
		"an operator of a tenant":                {token(store.NewToken{Name: "x", Role: schema.RoleOperator, Tenant: "acme"}), schema.CodeInvalid, "tenant"},
		"a role that is none":                    {token(store.NewToken{Name: "x", Role: "root"}), schema.CodeInvalid, "role"},
		"a member of a project that is none":     {token(store.NewToken{Name: "x", Role: schema.RoleTenantMember, Tenant: "acme", Project: "p"}), schema.CodeNotFound, "p"},
		"a token that has expired":               {token(store.NewToken{Name: "x", Role: schema.RoleViewer, ExpiresAt: 1}), schema.CodeInvalid, "expires_at"},
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, c.err, c.code, c.field) })
	}
	if now, _ := s.Head(ctx); now != head {
		t.Errorf("%d events were written by refused calls", now-head)
	}
}

func TestAQuotaIsSetChangedAndRemoved(t *testing.T) {
	t.Parallel()
	s := openPolicy(t)
	ctx := t.Context()
	if _, err := s.CreateTenant(ctx, "test", "acme", 100); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateProject(ctx, "test", "acme", "vision"); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int64{8, -1} {
		if _, err := s.SetQuota(ctx, "test", "acme", "vision", "nvidia-h100-80gb", 0, limit); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Quotas(ctx, "acme")
	if err != nil || len(got) != 1 || got[0].Limit != -1 || got[0].Project != "vision" {
		t.Fatalf("quotas are %+v, %v; want one, without a limit", got, err)
	}
	if err := s.DeleteQuota(ctx, "test", "acme", "vision", "nvidia-h100-80gb"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.DeleteQuota(ctx, "test", "acme", "vision", "nvidia-h100-80gb"), schema.CodeNotFound, "nvidia-h100-80gb")
}

func TestASpecIsRetiredAndItsNameStaysTaken(t *testing.T) {
	t.Parallel()
	s := openPolicy(t)
	n := store.NewSpec{Name: "h100x8", Model: "nvidia-h100-80gb", Accelerators: 8}
	if _, err := s.CreateSpec(t.Context(), "test", n); err != nil {
		t.Fatal(err)
	}
	first, err := s.RetireSpec(t.Context(), "test", "h100x8")
	if err != nil || first.RetiredAt == 0 {
		t.Fatalf("retired: %+v, %v", first, err)
	}
	if again, err := s.RetireSpec(t.Context(), "test", "h100x8"); err != nil || again.RetiredAt != first.RetiredAt {
		t.Fatalf("retired again: %+v, %v", again, err)
	}
	_, err = s.CreateSpec(t.Context(), "test", n)
	wantCode(t, err, schema.CodeConflict, "h100x8")
}
