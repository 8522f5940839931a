package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"go.temporal.io/server/common/log"
	"go.temporal.io/server/common/log/tag"
)

// condition is how the server is: coming up or going down, and the first error it called fatal.
type condition struct {
	ch    chan struct{} // closed by set
	built atomic.Bool   // the server is constructed; its goroutines run from here on
	quiet atomic.Bool   // starting or stopping: warnings are about that
	once  sync.Once
	mu    sync.Mutex // guards err
	err   error
}

func newCondition() *condition {
	c := &condition{ch: make(chan struct{})}
	c.quiet.Store(true)
	return c
}

func (c *condition) set(err error) {
	c.once.Do(func() {
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		close(c.ch)
	})
}

func (c *condition) get() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// logger hands the server's log to slog. The server is talkative at info, so that goes to debug, and
// so do the warnings of a start and a stop, where its parts look for each other and don't find them.
//
// Fatal doesn't end the process, as the server expects, yet keeps the promise not to return. While
// the server is built it panics with the error, which startOnce recovers (ending the goroutine
// there would make the server's own sync.OnceValue panic). Afterwards it ends the calling goroutine,
// one of the server's own; the owner sees that through Server.Failed and ends the process in order.
type logger struct {
	to     *slog.Logger
	server *condition
}

var _ log.WithLogger = logger{}

func (l logger) Debug(msg string, tags ...tag.Tag) { l.log(slog.LevelDebug, msg, tags) }
func (l logger) Info(msg string, tags ...tag.Tag)  { l.log(slog.LevelDebug, msg, tags) }
func (l logger) Error(msg string, tags ...tag.Tag) { l.log(slog.LevelError, msg, tags) }

func (l logger) Warn(msg string, tags ...tag.Tag) {
	level := slog.LevelWarn
	if l.server.quiet.Load() {
		level = slog.LevelDebug
	}
	l.log(level, msg, tags)
}

func (l logger) DPanic(msg string, tags ...tag.Tag) { l.log(slog.LevelError, msg, tags) }

func (l logger) Panic(msg string, tags ...tag.Tag) {
	l.log(slog.LevelError, msg, tags)
	panic(describe(msg, tags))
}

func (l logger) Fatal(msg string, tags ...tag.Tag) {
	l.server.set(describe(msg, tags))
	l.log(slog.LevelError, msg, tags)
	if !l.server.built.Load() {
		panic(l.server)
	}
	runtime.Goexit()
}

func (l logger) With(tags ...tag.Tag) log.Logger {
	l.to = slog.New(l.to.Handler().WithAttrs(attrs(tags)))
	return l
}

func (l logger) log(level slog.Level, msg string, tags []tag.Tag) {
	ctx := context.Background()
	if l.to.Enabled(ctx, level) {
		l.to.LogAttrs(ctx, level, msg, attrs(tags)...)
	}
}

func attrs(tags []tag.Tag) []slog.Attr {
	as := make([]slog.Attr, len(tags))
	for i, t := range tags {
		as[i] = slog.Any(t.Key(), t.Value())
	}
	return as
}

// describe makes one error of a message and its tags, keeping a cause that is an error.
func describe(msg string, tags []tag.Tag) error {
	var b strings.Builder
	b.WriteString(msg)
	var cause error
	for _, t := range tags {
		if z, ok := t.(tag.ZapTag); ok {
			if err, ok := z.Field().Interface.(error); ok {
				cause = err
				continue
			}
		}
		fmt.Fprintf(&b, " %s=%v", t.Key(), t.Value())
	}
	if cause == nil {
		return errors.New(b.String())
	}
	return fmt.Errorf("%s: %w", b.String(), cause)
}
