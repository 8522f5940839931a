package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gpupool/api/contract"
	"gpupool/schema"
)

// API is the generated client with a credential, and what the generator has no word for: streams.
type API struct {
	*ClientWithResponses
	base  string
	token string
	http  *http.Client
}

// New makes a client of the API at url. hc nil = one without a timeout of its own: long-polls and streams are ended
// by their context.
func New(url, token string, hc *http.Client) (*API, error) {
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return nil, schema.Invalid("url", url, "an address that begins with http:// or https://")
	}
	if hc == nil {
		hc = &http.Client{}
	}
	a := &API{base: strings.TrimRight(url, "/"), token: token, http: hc}
	c, err := NewClientWithResponses(a.base, WithHTTPClient(hc), WithRequestEditorFn(func(_ context.Context, r *http.Request) error {
		a.authorise(r)
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("making the API client: %w", err)
	}
	a.ClientWithResponses = c
	return a, nil
}

func (a *API) authorise(r *http.Request) {
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
}

// Response is what every generated ...WithResponse method answers.
type Response interface{ StatusCode() int }

// Check is nil where the call succeeded, and else the server's problem as a *schema.Error. err is the call's own error,
// which becomes CodeUnavailable; body is the answer's Body field.
//
//	r, err := api.GetJobWithResponse(ctx, id, nil)
//	if err := client.Check(r, err, func() []byte { return r.Body }); err != nil { ... }
func Check(r Response, err error, body func() []byte) error {
	if err != nil {
		return unreachable(err)
	}
	if r.StatusCode() < 300 || r.StatusCode() == http.StatusNotModified {
		return nil
	}
	return problem(r.StatusCode(), body())
}

func unreachable(err error) error {
	return &schema.Error{Code: schema.CodeUnavailable, Message: "the API does not answer", Hint: "is its address right, and does it run?", Err: err}
}

// problem reads problem+json; an answer that is something else (a proxy's page) keeps its status.
func problem(status int, body []byte) error {
	var p contract.Problem
	if json.Unmarshal(body, &p) != nil || p.Code == "" {
		return &schema.Error{Code: codeOf(status), Message: fmt.Sprintf("the API answered %d %s", status, http.StatusText(status)), Hint: "is this the address of a gpupool API?"}
	}
	return &schema.Error{Code: p.Code, Field: p.Field, Message: p.Detail, Hint: p.Hint}
}

func codeOf(status int) schema.ErrorCode {
	switch {
	case status == http.StatusUnauthorized:
		return schema.CodeUnauthenticated
	case status == http.StatusForbidden:
		return schema.CodeForbidden
	case status == http.StatusNotFound:
		return schema.CodeNotFound
	case status == http.StatusTooManyRequests:
		return schema.CodeLimited
	case status >= 500:
		return schema.CodeUnavailable
	default:
		return schema.CodeInvalid
	}
}

// StreamEvents calls each for every event of path (/v1/events?..., /v1/jobs/<id>/events) after the number after. A
// connection that breaks is made again from where it stood. It returns when the server ends the stream (nil), when
// each returns an error (that error), when ctx ends (its error), or when the server refuses (a *schema.Error).
func (a *API) StreamEvents(ctx context.Context, path string, after int64, each func(schema.Event) error) error {
	for wait := time.Duration(0); ; wait = min(wait*2+100*time.Millisecond, 5*time.Second) {
		if wait > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(wait):
			}
		}
		ended, err := a.streamOnce(ctx, path, &after, func(e schema.Event) error { wait = 0; return each(e) })
		if ended || ctx.Err() != nil {
			if err == nil {
				err = ctx.Err()
			}
			return err
		}
	}
}

// streamOnce reads one connection. ended says that there is no sense in another.
func (a *API) streamOnce(ctx context.Context, path string, after *int64, each func(schema.Event) error) (ended bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+path, nil)
	if err != nil {
		return true, err
	}
	a.authorise(req)
	req.Header.Set("Accept", "text/event-stream")
	if *after > 0 {
		req.Header.Set("Last-Event-ID", strconv.FormatInt(*after, 10))
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return false, unreachable(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return !schema.Outcomes[codeOf(resp.StatusCode)].Retryable, problem(resp.StatusCode, b)
	}
	in := bufio.NewReader(resp.Body)
	var name string
	var data bytes.Buffer
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return false, unreachable(err)
		}
		switch field, value, _ := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); field {
		case "event":
			name = strings.TrimPrefix(value, " ")
		case "data":
			data.WriteString(strings.TrimPrefix(value, " "))
		case "id":
			if n, err := strconv.ParseInt(strings.TrimPrefix(value, " "), 10, 64); err == nil {
				*after = n
			}
		case "":
			if line != "\n" && line != "\r\n" {
				continue // a comment: the server's sign of life
			}
			if name == "end" {
				return true, nil
			}
			if data.Len() > 0 {
				var e schema.Event
				if err := json.Unmarshal(data.Bytes(), &e); err != nil {
					return true, fmt.Errorf("reading event %d: %w", *after, err)
				}
				if err := each(e); err != nil {
					return true, err
				}
			}
			name = ""
			data.Reset()
		}
	}
}

// Logs copies the output of one node of a job's attempt (0 = the latest) to w; with follow until the attempt ends.
func (a *API) Logs(ctx context.Context, job string, attempt, rank int, follow bool, w io.Writer) error {
	resp, err := a.GetLogs(ctx, job, &contract.GetLogsParams{Attempt: &attempt, Rank: &rank, Follow: &follow}, func(_ context.Context, r *http.Request) error {
		r.Header.Set("Accept", "text/plain")
		return nil
	})
	if err != nil {
		return unreachable(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return problem(resp.StatusCode, b)
	}
	_, err = io.Copy(w, resp.Body)
	return err
}
