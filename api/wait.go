package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

// waitOf reads ?wait=; longer than maxWait is maxWait.
func waitOf(p *string) (time.Duration, error) {
	if p == nil || *p == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(*p)
	if err != nil || d < 0 {
		return 0, schema.Invalid("wait", *p, "a time like 30s or 500ms, at most 60s")
	}
	return min(d, maxWait), nil
}

func limitOf(p *int) (int, error) {
	if p == nil {
		return 100, nil
	}
	if *p < 1 || *p > 1000 {
		return 0, schema.Invalid("limit", *p, "1 to 1000")
	}
	return *p, nil
}

// watch is a store's watch that is counted. What happens after it begins is never missed, so it begins before the first read.
func (s *Server) watch(topic string) *watch {
	s.waiting.Add(1)
	return &watch{s.c.Store.Watch(topic), s}
}

type watch struct {
	*store.Watch
	s *Server
}

func (w *watch) leave() {
	w.Close()
	w.s.waiting.Add(-1)
}

// inTurn is how all that waits reads what is new: a few at a time. One event wakes thousands of watchers, and a stream from the
// beginning reads all there is; who asks for something else meanwhile is answered beside them, not behind them.
func (s *Server) inTurn(ctx context.Context, read func() error) error {
	select {
	case s.turns <- struct{}{}:
		defer func() { <-s.turns }()
	case <-s.stopping: // what waits ends now, each with one last look
	case <-ctx.Done():
		return ctx.Err()
	}
	return read()
}

// until calls look, at once and after each event of topic, until it is done or wait has passed. It ends early, without
// an error, where the caller goes or the server stops: what there is then is the answer.
func (s *Server) until(ctx context.Context, topic string, wait time.Duration, look func() (done bool, err error)) error {
	if wait <= 0 {
		_, err := look()
		return err
	}
	w := s.watch(topic)
	defer w.leave()
	end := time.NewTimer(wait)
	defer end.Stop()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-w.C:
		case <-end.C:
			return nil
		case <-ctx.Done():
			return nil
		case <-s.stopping:
			return nil
		}
	}
}

// changed long-polls one thing: look reads it and says its version, and whether it never changes again. since nil =
// the version that it has now.
func (s *Server) changed(ctx context.Context, topic string, waitFor *string, since *int64, look func() (version int64, final bool, err error)) error {
	wait, err := waitOf(waitFor)
	if err != nil {
		return err
	}
	return s.until(ctx, topic, wait, func() (done bool, err error) {
		err = s.inTurn(ctx, func() error {
			version, final, err := look()
			switch {
			case err != nil:
			case final:
				done = true
			case since == nil:
				since = &version
			default:
				done = version > *since
			}
			return err
		})
		return done, err
	})
}

// eventsOf answers events as a page, a long-poll or a stream.
type eventsOf struct {
	topic  string
	filter store.EventFilter
	after  *int64
	tail   bool
	wait   *string
	limit  *int
	// ended says, once there is no event left to send, that there will be none; nil = never.
	ended func(ctx context.Context) (bool, error)
}

func (s *Server) events(c *gin.Context, q eventsOf) {
	ctx := c.Request.Context()
	after := val(q.after)
	if h := c.GetHeader("Last-Event-ID"); h != "" { // a stream that was cut goes on where it stood
		n, err := strconv.ParseInt(h, 10, 64)
		if err != nil {
			s.fail(c, schema.Invalid("Last-Event-ID", h, "the id of an event"))
			return
		}
		after, q.tail = n, false
	}
	if after < 0 {
		s.fail(c, schema.Invalid("after", after, "the number of an event, or 0 for the first"))
		return
	}
	limit, err := limitOf(q.limit)
	if err != nil {
		s.fail(c, err)
		return
	}
	if q.tail {
		if after, err = s.c.Store.Head(ctx); err != nil {
			s.fail(c, err)
			return
		}
	}
	if c.NegotiateFormat("application/json", "text/event-stream") == "text/event-stream" {
		s.stream(c, q, after)
		return
	}
	wait, err := waitOf(q.wait)
	if err != nil {
		s.fail(c, err)
		return
	}
	var page []schema.Event
	err = s.until(ctx, q.topic, wait, func() (bool, error) {
		err := s.inTurn(ctx, func() (err error) {
			page, after, err = s.c.Store.Events(ctx, after, limit, q.filter)
			return err
		})
		return len(page) > 0, err
	})
	if err != nil {
		s.fail(c, err)
		return
	}
	s.reply(c, http.StatusOK, contract.EventList{Items: some(s.shown(c, page)), Next: after})
}

func (s *Server) shown(c *gin.Context, page []schema.Event) []schema.Event {
	if me(c).Pool() {
		return page
	}
	return each(page, schema.Event.ForTenant)
}

// pulse is how often a silent stream says that it lives, and asks whether its reader may still read.
const pulse = 15 * time.Second

// stream sends events as server-sent events (WHATWG HTML, 9.2) until the reader goes, its token ends, the server stops,
// or ended says so; the last is told by an event named "end".
func (s *Server) stream(c *gin.Context, q eventsOf, after int64) {
	ctx := c.Request.Context()
	w := s.watch(q.topic)
	defer w.leave()
	c.Header("Content-Type", "text/event-stream")
	c.Header("Cache-Control", "no-store")
	c.Header("X-Accel-Buffering", "no") // nginx would keep events back
	c.Status(http.StatusOK)
	if s.push(c, []byte(": open\n\n")) != nil {
		return
	}
	beat := time.NewTicker(pulse)
	defer beat.Stop()
	for {
		b, next, err := s.nextEvents(c, q, after)
		if err != nil {
			return // the reader comes again with Last-Event-ID
		}
		after = next
		if b.Len() > 0 {
			if s.push(c, b.Bytes()) != nil {
				return
			}
			continue
		}
		if q.ended != nil {
			if over, err := q.ended(ctx); err != nil {
				return
			} else if over {
				// An event may have come between the read and the question: the next read finds it, and then this ends.
				if page, _, err := s.c.Store.Events(ctx, after, 1, q.filter); err != nil {
					return
				} else if len(page) == 0 {
					_ = s.push(c, []byte("event: end\ndata: {}\n\n"))
					return
				}
				continue
			}
		}
		select {
		case <-w.C:
		case <-beat.C:
			if _, err := s.auth.Authenticate(c.Request, c.ClientIP()); err != nil && !schema.Is(err, schema.CodeLimited) {
				return
			}
			if s.push(c, []byte(": alive\n\n")) != nil {
				return
			}
		case <-ctx.Done():
			return
		case <-s.stopping:
			return
		}
	}
}

// nextEvents is what a stream sends next, and the number behind which it then goes on.
func (s *Server) nextEvents(c *gin.Context, q eventsOf, after int64) (b bytes.Buffer, next int64, err error) {
	ctx := c.Request.Context()
	err = s.inTurn(ctx, func() error {
		var page []schema.Event
		if page, next, err = s.c.Store.Events(ctx, after, 500, q.filter); err != nil {
			return err
		}
		for _, e := range s.shown(c, page) {
			data, err := json.Marshal(e)
			if err != nil {
				s.c.Log.ErrorContext(ctx, "api: an event can't be written", "seq", e.Seq, "error", err)
				return err
			}
			fmt.Fprintf(&b, "id: %d\nevent: %s\ndata: %s\n\n", e.Seq, e.Kind, data)
		}
		return nil
	})
	return b, next, err
}

// push writes at once; a reader that takes nothing for writeWithin is given up.
func (s *Server) push(c *gin.Context, b []byte) error {
	rc := http.NewResponseController(c.Writer)
	_ = rc.SetWriteDeadline(time.Now().Add(writeWithin)) // not every writer has one (tests, the console's)
	if _, err := c.Writer.Write(b); err != nil {
		return err
	}
	c.Writer.Flush()
	return nil
}
