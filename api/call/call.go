// Package call reads what the API answers: Do turns a generated client's raw response into its value, or into the
// *schema.Error that the problem+json tells of, so that both ends of the wire speak of errors in the same type.
//
// Invariant: every error it returns is a *schema.Error or the caller's own cancellation. Not here: which call to make.
package call

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"gpupool/api/contract"
	"gpupool/schema"
)

// maxAnswer bounds what is read of one answer, so that a foreign server can't fill the memory.
const maxAnswer = 256 << 20

// Do takes what a generated client's method returned and decodes the answer. Use struct{} for answers without a body.
func Do[T any](resp *http.Response, err error) (T, error) {
	var v T
	if err := Check(resp, err); err != nil {
		return v, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified {
		return v, nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&v); err != nil {
		if cause := context.Cause(resp.Request.Context()); cause != nil {
			return v, cause
		}
		return v, foreign(resp, fmt.Sprintf("its answer can't be read: %v", err))
	}
	return v, nil
}

// Check is nil where the answer is a success, whose body is then the caller's to read and close.
func Check(resp *http.Response, err error) error {
	if err != nil {
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return &schema.Error{Code: schema.CodeUnavailable, Message: "the pool does not answer: " + reason(err), Hint: "is the address right (--url, GPUPOOL_URL), and is gpupool running there?"}
	}
	if resp.StatusCode < 300 || resp.StatusCode == http.StatusNotModified {
		return nil
	}
	defer resp.Body.Close()
	return problem(resp)
}

// reason is the transport's error without the method and URL that net/http puts before it.
func reason(err error) string {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		return ue.Err.Error()
	}
	return err.Error()
}

func problem(resp *http.Response) error {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	var p contract.Problem
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || kind != "application/problem+json" || json.Unmarshal(body, &p) != nil || p.Code == "" {
		return foreign(resp, "")
	}
	e := &schema.Error{Code: p.Code, Field: p.Field, Message: p.Detail, Hint: p.Hint}
	if p.Code == schema.CodeInternal && p.RequestId != "" {
		e.Hint = strings.TrimPrefix(e.Hint+"; the pool's log has it under request "+p.RequestId, "; ")
	}
	return e
}

// foreign is an answer that the API did not write: a proxy's, or another program's. What its status says still counts.
func foreign(resp *http.Response, what string) error {
	e := &schema.Error{Code: schema.CodeInternal, Message: "the answer is not the pool's: " + resp.Status, Hint: "does the address lead to gpupool? a proxy may stand between"}
	if what != "" {
		e.Message = what
	}
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		e.Code = schema.CodeUnauthenticated
	case http.StatusForbidden:
		e.Code = schema.CodeForbidden
	case http.StatusNotFound:
		e.Code = schema.CodeNotFound
	case http.StatusTooManyRequests:
		e.Code = schema.CodeLimited
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		e.Code = schema.CodeUnavailable
	}
	return e
}

// Again repeats f while the pool does not answer, for at most patience in one stretch: a watch must outlive a restart
// of the API. f must be safe to repeat. Each new outage is told to lost once.
func Again[T any](ctx context.Context, patience time.Duration, lost func(error), f func() (T, error)) (T, error) {
	var since time.Time
	for wait := 200 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		v, err := f()
		code := schema.CodeOf(err)
		if err == nil || ctx.Err() != nil || (code != schema.CodeUnavailable && code != schema.CodeLimited) {
			return v, err
		}
		if since.IsZero() {
			since = time.Now()
			if lost != nil {
				lost(err)
			}
		}
		if time.Since(since) > patience {
			return v, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return v, ctx.Err()
		}
	}
}
