package call

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpupool/api/contract"
	"gpupool/schema"
)

// answering is a server with one answer for everything.
func answering(t *testing.T, status int, kind, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		if _, err := w.Write([]byte(body)); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestAnAnswerIsItsValueOrItsError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status     int
		kind, body string
		want       *schema.Error
	}{
		"a success is its value": {200, "application/json", `{"name": "alice"}`, nil},
		"a problem is the error that the handler had": {400, "application/problem+json", `{"code":"invalid","detail":"\"x\" is not valid","field":"servers[3].macs","hint":"six pairs","status":400}`,
			&schema.Error{Code: schema.CodeInvalid, Field: "servers[3].macs", Message: `"x" is not valid`, Hint: "six pairs"}},
		"a fault names its request": {500, "application/problem+json", `{"code":"internal","detail":"something went wrong inside","hint":"try again","request_id":"req_1"}`,
			&schema.Error{Code: schema.CodeInternal, Message: "something went wrong inside", Hint: "try again; the pool's log has it under request req_1"}},
		"a proxy's page counts by its status": {502, "text/html", `<h1>Bad gateway</h1>`,
			&schema.Error{Code: schema.CodeUnavailable, Message: "the answer is not the pool's: 502 Bad Gateway", Hint: "does the address lead to gpupool? a proxy may stand between"}},
		"another program's success is no value": {200, "text/html", `<h1>It works</h1>`,
			&schema.Error{Code: schema.CodeInternal, Message: "its answer can't be read: invalid character '<' looking for beginning of value", Hint: "does the address lead to gpupool? a proxy may stand between"}},
		"a problem without a code is not the pool's": {404, "application/problem+json", `{}`,
			&schema.Error{Code: schema.CodeNotFound, Message: "the answer is not the pool's: 404 Not Found", Hint: "does the address lead to gpupool? a proxy may stand between"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Do[contract.Identity](http.Get(answering(t, c.status, c.kind, c.body)))
			if c.want == nil {
				if err != nil || got.Name != "alice" {
					t.Fatalf("%+v, %v", got, err)
				}
				return
			}
			e, _ := errors.AsType[*schema.Error](err)
			if d := cmp.Diff(c.want, e); d != "" {
				t.Fatal(d)
			}
		})
	}
}

func TestAPoolThatDoesNotAnswerIsUnavailable(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	url := s.URL
	s.Close()
	_, err := Do[contract.Identity](http.Get(url))
	if !schema.Is(err, schema.CodeUnavailable) || !strings.Contains(err.Error(), "connection refused") || strings.Contains(err.Error(), "Get \"") {
		t.Fatal(err)
	}
}

func TestAReadIsRepeatedWhileThePoolIsAwayAndNoLonger(t *testing.T) {
	t.Parallel()
	away := &schema.Error{Code: schema.CodeUnavailable}
	calls, told := 0, 0
	got, err := Again(t.Context(), time.Minute, func(error) { told++ }, func() (int, error) {
		if calls++; calls < 3 {
			return 0, away
		}
		return calls, nil
	})
	if got != 3 || err != nil || told != 1 {
		t.Fatalf("%d, %v, told %d times", got, err, told)
	}
	calls = 0
	if _, err = Again(t.Context(), time.Minute, nil, func() (int, error) { calls++; return 0, schema.NotFound("job", "x") }); !schema.Is(err, schema.CodeNotFound) || calls != 1 {
		t.Fatalf("what can't change is asked %d times: %v", calls, err)
	}
	if _, err = Again(t.Context(), 0, nil, func() (int, error) { return 0, away }); !schema.Is(err, schema.CodeUnavailable) {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	if _, err = Again(ctx, time.Minute, func(error) { stop() }, func() (int, error) { return 0, away }); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
