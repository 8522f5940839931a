// Package testpool is a pool for tests of what speaks to the API: the real store and the real API on loopback, with
// hands in the place of the workflows, the allocator and the agents. The hands act through the store's own methods, so
// every rule of the record holds here as it does in production.
//
// Invariant: nothing is simulated above the store; what a client sees is what the API answers. Not here: the real
// workflows, protocols and hardware (deploy/lab has those, and takes minutes).
package testpool

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"gpupool/api"
	"gpupool/api/auth"
	"gpupool/api/console"
	"gpupool/schema"
	"gpupool/schema/secret"
	"gpupool/schema/store"
)

// Pool is one running pool. Close ends it and waits for all it started.
type Pool struct {
	URL   string // where the API listens
	Token string // an operator's
	Store *store.Store
	Ring  *secret.Ring

	dir    string
	log    *slog.Logger
	stop   context.CancelFunc
	done   <-chan struct{} // closed when it ends
	wg     sync.WaitGroup
	served chan error

	mu      sync.Mutex
	resumed map[string]chan string // server -> what to do with its stopped step: retry, skip, abort
	epoch   int64
}

// Region is the one there is.
const Region = "eu"

// Start makes a pool in a folder of its own.
func Start() (*Pool, error) {
	dir, err := os.MkdirTemp("", "gpupool-test-")
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &Pool{dir: dir, stop: stop, done: ctx.Done(), served: make(chan error, 1), resumed: map[string]chan string{}, log: slog.New(slog.DiscardHandler)}
	if err := p.start(ctx); err != nil {
		stop()
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return p, nil
}

func (p *Pool) start(ctx context.Context) error {
	var err error
	if p.Ring, err = secret.LoadOrCreate(filepath.Join(p.dir, "keys")); err != nil {
		return err
	}
	if p.Store, err = store.Open(ctx, store.Config{Driver: "sqlite", DSN: filepath.Join(p.dir, "pool.db"), Log: p.log}); err != nil {
		return err
	}
	if p.Token, err = p.Store.EnsureFirstToken(ctx); err != nil {
		return err
	}
	if p.epoch, err = p.Store.TakeEpoch(ctx, Region, "testpool"); err != nil {
		return err
	}
	a, err := api.New(api.Config{Store: p.Store, Ring: p.Ring, Processes: p, Log: p.log, Console: func(h http.Handler, a *auth.Authenticator) http.Handler {
		return console.New(console.Config{API: h, Auth: a, Watch: p.watch, Done: ctx.Done(), Log: p.log})
	}})
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	p.URL = "http://" + ln.Addr().String()
	go func() { p.served <- a.Run(ctx, ln) }()
	p.wg.Go(func() { p.allocate(ctx) })
	return nil
}

func (p *Pool) watch() (<-chan struct{}, func()) {
	w := p.Store.Watch(store.TopicAll)
	return w.C, w.Close
}

// Close ends the pool.
func (p *Pool) Close() error {
	p.stop()
	err := <-p.served
	p.wg.Wait()
	return errors.Join(err, p.Store.Close(), os.RemoveAll(p.dir))
}

// NewToken makes a token of a role and answers its secret.
func (p *Pool) NewToken(ctx context.Context, name string, role schema.Role, tenant, project string) (string, error) {
	_, s, err := p.Store.CreateToken(ctx, "testpool", store.NewToken{Name: name, Role: role, Tenant: tenant, Project: project})
	return s, err
}
