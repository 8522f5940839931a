package worker

import (
	"context"
	"errors"
	"log/slog"
	"testing"
)

// server is an embedded Temporal server as the process sees it: it may fail.
type server struct {
	failed chan struct{}
	err    error
}

func (s *server) Failed() <-chan struct{} { return s.failed }
func (s *server) Err() error              { return s.err }

func TestTheProcessEndsWithItsTemporalServer(t *testing.T) {
	t.Parallel()
	p := &Process{log: slog.New(slog.DiscardHandler), failed: make(chan error, 1)}
	p.background, p.cancel = context.WithCancel(t.Context())
	srv := &server{make(chan struct{}), errors.New("disk full")}
	p.spawn("temporal", func(ctx context.Context) error { return outlive(ctx, srv) })
	close(srv.failed)
	if err := <-p.Failed(); !errors.Is(err, srv.err) {
		t.Fatalf("the process failed with %v, want %v", err, srv.err)
	}
	p.Stop()
	p.wg.Wait()

	// A server that is stopped with the process is no failure.
	p = &Process{log: slog.New(slog.DiscardHandler), failed: make(chan error, 1)}
	p.background, p.cancel = context.WithCancel(t.Context())
	p.spawn("temporal", func(ctx context.Context) error { return outlive(ctx, &server{failed: make(chan struct{})}) })
	p.Stop()
	p.wg.Wait()
	select {
	case err := <-p.Failed():
		t.Fatalf("a stop is told as a failure: %v", err)
	default:
	}
}
