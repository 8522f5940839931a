package installer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// patience is how long one thing is asked for again before the install fails.
const patience = 2 * time.Minute

// StatusError is an HTTP answer that is not the one hoped for.
type statusError struct{ code int }

func (e *statusError) Error() string {
	return fmt.Sprintf("HTTP %d %s", e.code, http.StatusText(e.code))
}

// permanent reports whether asking again won't change the answer.
func permanent(err error) bool {
	var s *statusError
	return errors.As(err, &s) && s.code >= 400 && s.code < 500 && s.code != http.StatusTooManyRequests && s.code != http.StatusRequestTimeout
}

// beside resolves a name against the URL of what named it.
func beside(of, name string) (string, error) {
	u, err := url.Parse(of)
	if err != nil {
		return "", err
	}
	r, err := u.Parse(name)
	if err != nil {
		return "", fmt.Errorf("image manifest: %q: %w", name, err)
	}
	return r.String(), nil
}

// again tries f until it succeeds, fails for good, or patience has run out.
func again(ctx context.Context, f func() error) error {
	end := time.Now().Add(patience)
	for wait := 200 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		err := f()
		if err == nil || permanent(err) || ctx.Err() != nil || time.Now().Add(wait).After(end) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fetch is a small document of at most limit bytes.
func (s *session) fetch(ctx context.Context, url string, limit int64) (body []byte, err error) {
	err = again(ctx, func() error {
		body, err = s.fetchOnce(ctx, url, limit)
		return err
	})
	return body, err
}

func (s *session) fetchOnce(ctx context.Context, url string, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %w", redact(url), &statusError{resp.StatusCode})
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s: more than %d bytes", redact(url), limit)
	}
	return b, err
}

// stalled is how long a stream may bring nothing before its connection is given up.
const stalled = 30 * time.Second

// stream is a large file by HTTP. A connection that breaks or stalls is opened again where it was (RFC 9110 section 14),
// as long as the file is still the same.
type stream struct {
	s      *session
	ctx    context.Context
	url    string
	at     int64
	tag    string // of the file when it was first opened
	body   io.ReadCloser
	cancel context.CancelFunc
	timer  *time.Timer
}

func (s *session) open(ctx context.Context, url string) *stream {
	return &stream{s: s, ctx: ctx, url: url}
}

// Read implements io.Reader.
func (r *stream) Read(p []byte) (n int, err error) {
	err = again(r.ctx, func() error {
		if r.body == nil {
			if err := r.connect(); err != nil {
				return err
			}
		}
		r.timer.Reset(stalled)
		n, err = r.body.Read(p)
		r.at += int64(n)
		if n > 0 || err == io.EOF { //nolint:errorlint // a Reader returns io.EOF itself
			return nil
		}
		r.Close()
		return err
	})
	if n > 0 {
		return n, nil
	}
	if err == nil {
		err = io.EOF
	}
	return n, err
}

func (r *stream) connect() error {
	ctx, cancel := context.WithCancel(r.ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		cancel()
		return err
	}
	if r.at > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", r.at))
	}
	timer := time.AfterFunc(stalled, cancel)
	resp, err := r.s.http.Do(req)
	if err != nil {
		cancel()
		return err
	}
	want := http.StatusOK
	if r.at > 0 {
		want = http.StatusPartialContent
	}
	tag := resp.Header.Get("ETag") + resp.Header.Get("Last-Modified")
	switch {
	case resp.StatusCode != want:
		err = fmt.Errorf("%s: %w", redact(r.url), &statusError{resp.StatusCode})
	case r.at > 0 && tag != r.tag:
		err = fmt.Errorf("%s was replaced while it was being read: %w", redact(r.url), &statusError{http.StatusPreconditionFailed})
	}
	if err != nil {
		cancel()
		return errors.Join(err, resp.Body.Close())
	}
	r.tag, r.body, r.cancel, r.timer = tag, resp.Body, cancel, timer
	return nil
}

// Close gives the connection up; a Read opens another.
func (r *stream) Close() error {
	if r.body == nil {
		return nil
	}
	r.timer.Stop()
	r.cancel()
	err := r.body.Close()
	r.body = nil
	return err
}
