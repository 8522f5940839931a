package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/schema"
)

// patience is how long a pool that does not answer is waited for: it may be starting again after a kill.
const patience = 90 * time.Second

// pool is the API as one person uses it.
type pool struct {
	base, token string
	http        *http.Client
}

func (p pool) as(token string) pool { p.token = token; return p }

// do sends one request and decodes the answer, trying again while the pool does not answer: all that the story sends may
// be sent twice.
func do[T any](ctx context.Context, p pool, method, path string, body any, header ...string) (T, error) {
	return call.Again(ctx, patience, nil, func() (T, error) {
		var b bytes.Buffer
		if body != nil {
			if err := json.NewEncoder(&b).Encode(body); err != nil {
				var none T
				return none, err
			}
		}
		req, err := http.NewRequestWithContext(ctx, method, p.base+path, &b)
		if err != nil {
			var none T
			return none, err
		}
		req.Header.Set("Authorization", "Bearer "+p.token)
		req.Header.Set("Content-Type", "application/json")
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		return call.Do[T](p.http.Do(req))
	})
}

func get[T any](ctx context.Context, p pool, path string, a ...any) (T, error) {
	return do[T](ctx, p, http.MethodGet, fmt.Sprintf(path, a...), nil)
}

// make creates what may be there already from an earlier, interrupted telling.
func (p pool) make(ctx context.Context, method, path string, body any) error {
	_, err := do[json.RawMessage](ctx, p, method, path, body)
	if schema.Is(err, schema.CodeConflict) {
		return nil
	}
	return err
}

func (p pool) servers(ctx context.Context) (map[string]contract.Server, error) {
	l, err := get[contract.ServerList](ctx, p, "/v1/servers")
	out := map[string]contract.Server{}
	for _, s := range l.Items {
		out[s.Name] = s
	}
	return out, err
}

func (p pool) jobs(ctx context.Context) ([]contract.Job, error) {
	var out []contract.Job
	next := ""
	for {
		l, err := get[contract.JobList](ctx, p, "/v1/jobs?limit=500%s", next)
		if err != nil {
			return nil, err
		}
		out = append(out, l.Items...)
		if l.Next == "" {
			return out, nil
		}
		next = "&after=" + url.QueryEscape(l.Next)
	}
}

func (p pool) attempts(ctx context.Context, job string) ([]contract.Attempt, error) {
	l, err := get[contract.AttemptList](ctx, p, "/v1/jobs/%s/attempts", job)
	return l.Items, err
}

// until asks again and again until done says so; what is waited for is named where it doesn't come in time.
func until(ctx context.Context, limit time.Duration, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s did not come within %s", what, limit))
	defer cancel()
	for {
		ok, err := done(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(250 * time.Millisecond):
		}
	}
}
