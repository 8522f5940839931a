package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/server/temporal"

	"gpupool/worker/namespace"
)

// startAttempts is how often Start picks new ports. One attempt in thousands meets a port that was
// free when it was chosen and taken when it was bound; five in a row mean something else is wrong.
const startAttempts = 5

// Options says where the server keeps its file and how it behaves. Only Dir is required.
type Options struct {
	// Dir is the folder that holds the server's file and lock; it is made if absent (mode 0700).
	// Never share it with a second process, and never put it on a network file system.
	Dir string

	// Namespace is registered at the first start. Empty means namespace.Default.
	Namespace string

	// Retention is how long a closed workflow's history is kept. Zero means namespace.Retention;
	// it only matters when the namespace is registered. At least an hour.
	Retention time.Duration

	// SearchAttributes are keyword attributes of the namespace, at most ten, in the order of how often
	// they are searched: the first two are indexed. Nil means namespace.Attributes.
	SearchAttributes []string

	// Sync is how hard a commit is pushed to the disk. Empty means SyncFull.
	Sync Sync

	// Port is the frontend's TCP port on 127.0.0.1. Zero takes a free one. A fixed port that is taken
	// is an error, never replaced by another.
	Port int

	// Logger receives the server's own log: its warnings and errors as they are, the rest at debug.
	// Nil means slog.Default().
	Logger *slog.Logger

	// reserve picks ports; tests replace it to make two servers meet on one port.
	reserve func(frontend int) (ports, error)
}

// Sync is SQLite's "synchronous" setting under a write-ahead log.
//
// Neither loses anything when the process is killed; they differ when the machine loses power. Full
// costs about a sixth: 82 to 87 workflows/s (start, activity, signal, activity, done; 16 at once)
// against 95 to 115 for normal, on two shared cores and a virtual disk, by BenchmarkSync.
type Sync string

const (
	// SyncFull flushes the log at every commit: what was acknowledged survives a power cut. Default,
	// because gpupool's own database makes the same promise and the two must agree after one.
	SyncFull Sync = "full"
	// SyncNormal flushes at checkpoints: after a power cut (not after a kill) the last moments may
	// be gone, though never the file's consistency. For demos, tests and machines with a battery.
	SyncNormal Sync = "normal"
)

// Valid says whether s is a known setting; the empty one is not, though Options accepts it.
func (s Sync) Valid() bool { return s == SyncFull || s == SyncNormal }

// Server is a running Temporal server. Its methods may be called from any goroutine.
type Server struct {
	hostPort  string
	lock      *folderLock
	inner     temporal.Server
	condition *condition
	stop      sync.Once
	stopErr   error
}

// Start opens Dir, starts the server and returns once it serves the namespace (0.4 s on an
// idle machine, also after a kill). ctx bounds the start only; the server runs until Stop.
//
// Errors: [*LockedError] where another process has the folder, [*SchemaError] where the file can't
// be read by this version, otherwise a plain error that names the option or the step.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	if err := o.defaults(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded temporal: make folder: %w", err)
	}
	lock, err := lockFolder(o.Dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.release())
		}
	}()
	store, err := openStore(ctx, filepath.Join(o.Dir, fileName), o.Sync)
	if err != nil {
		return nil, err
	}
	if err := store.register(o.Namespace, o.Retention, o.SearchAttributes); err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		s, err := startOnce(ctx, o, store)
		if err == nil {
			s.lock = lock
			return s, nil
		}
		var inUse *portError
		if !errors.As(err, &inUse) || o.Port != 0 && inUse.frontend || attempt == startAttempts || ctx.Err() != nil {
			return nil, fmt.Errorf("embedded temporal: start: %w", err)
		}
		o.Logger.Info("embedded temporal: a port was taken between choice and use; choosing others", "attempt", attempt, "error", err)
	}
}

func (o *Options) defaults() error {
	if o.Dir == "" {
		return errors.New("embedded temporal: Dir is empty; name the folder that keeps the server's file")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("embedded temporal: Dir %q: %w", o.Dir, err)
	}
	o.Dir = dir
	if o.Namespace == "" {
		o.Namespace = namespace.Default
	}
	if o.Retention == 0 {
		o.Retention = namespace.Retention
	}
	if o.Retention < time.Hour {
		return fmt.Errorf("embedded temporal: Retention is %s; at least 1h", o.Retention)
	}
	if o.SearchAttributes == nil {
		o.SearchAttributes = namespace.Attributes()
	}
	if n := len(o.SearchAttributes); n > maxKeywords {
		return fmt.Errorf("embedded temporal: SearchAttributes has %d names; SQLite visibility has room for %d keywords", n, maxKeywords)
	}
	if o.Sync == "" {
		o.Sync = SyncFull
	}
	if !o.Sync.Valid() {
		return fmt.Errorf("embedded temporal: Sync is %q; %q or %q", o.Sync, SyncFull, SyncNormal)
	}
	if o.Port < 0 || o.Port > 65535 {
		return fmt.Errorf("embedded temporal: Port is %d; 0 (any free one) to 65535", o.Port)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.reserve == nil {
		o.reserve = reservePorts
	}
	return nil
}

// startOnce starts the server on one choice of ports.
func startOnce(ctx context.Context, o Options, store *store) (*Server, error) {
	p, err := o.reserve(o.Port)
	if err != nil {
		return nil, err
	}
	cond := newCondition()
	inner, err := build(o, store, p, cond)
	if err != nil {
		return nil, p.explain(err)
	}
	err = inner.Start()
	// A fatal error is the cause, what Start returned a consequence.
	if f := cond.get(); f != nil {
		err = f
	}
	if err == nil {
		err = ready(ctx, o, p.hostPort(), cond)
	}
	if err != nil {
		_ = inner.Stop() // what didn't start has nothing to say at its stop
		return nil, p.explain(err)
	}
	cond.quiet.Store(false)
	return &Server{hostPort: p.hostPort(), inner: inner, condition: cond}, nil
}

// build constructs the server, which also binds its ports. The server answers trouble there with
// log.Fatal, of which logger makes a panic.
func build(o Options, store *store, p ports, cond *condition) (_ temporal.Server, err error) {
	defer func() {
		switch r := recover(); r {
		case nil:
		case cond:
			err = cond.get()
		default:
			panic(r)
		}
	}()
	defer cond.built.Store(true)
	return newServer(o, store, p, cond)
}

// ready waits until the frontend answers for the namespace.
func ready(ctx context.Context, o Options, hostPort string, cond *condition) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := client.NewLazyClient(client.Options{HostPort: hostPort, Namespace: o.Namespace, Logger: sdklog.NewStructuredLogger(o.Logger)})
	if err != nil {
		return err
	}
	defer c.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := c.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: o.Namespace})
		if err == nil {
			return nil
		}
		select {
		case <-cond.ch:
			return cond.get()
		case <-ctx.Done():
			return fmt.Errorf("the server doesn't answer for namespace %q: %w", o.Namespace, err)
		case <-tick.C:
		}
	}
}

// HostPort is the frontend's address, as a Temporal client takes it.
func (s *Server) HostPort() string { return s.hostPort }

// Failed is closed when the server met an error it can't go on from; Err says which. The process
// should end then: workflows continue at the next start.
func (s *Server) Failed() <-chan struct{} { return s.condition.ch }

// Err is the error behind Failed, nil while the server is well.
func (s *Server) Err() error { return s.condition.get() }

// Stop ends the server, about a second, and frees the folder. Stop workers and clients first. Later
// calls return the first one's result.
func (s *Server) Stop() error {
	s.stop.Do(func() {
		s.condition.quiet.Store(true)
		err := s.inner.Stop()
		s.stopErr = errors.Join(err, s.lock.release())
	})
	return s.stopErr
}
