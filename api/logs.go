package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

// logsEvery is how often a followed log looks for output that came through another process of the API; what comes
// through this one wakes it at once.
const logsEvery = time.Second

// GetLogs gives the output of one node of an attempt.
func (s *Server) GetLogs(c *gin.Context, id contract.TheJob, p contract.GetLogsParams) {
	ctx := c.Request.Context()
	j, err := s.job(ctx, c, id)
	if err != nil {
		s.fail(c, err)
		return
	}
	attempt, rank, after := val(p.Attempt), val(p.Rank), val(p.After)
	switch {
	case attempt < 0 || attempt > j.Attempt:
		err = schema.Invalid("attempt", attempt, fmt.Sprintf("1 to %d, or 0 for the latest", j.Attempt))
	case rank < 0 || rank >= j.Nodes:
		err = schema.Invalid("rank", rank, fmt.Sprintf("0 to %d", j.Nodes-1))
	case after < 0:
		err = schema.Invalid("after", after, "0, or the next of a page before")
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	if attempt == 0 {
		attempt = j.Attempt
	}
	l := &logReader{s: s, job: j.ID, attempt: attempt, rank: rank, after: after}
	if c.NegotiateFormat("text/plain", "application/json") == "application/json" {
		items, ended, err := l.page(ctx)
		s.done(c, http.StatusOK, contract.OutputList{Attempt: attempt, Rank: rank, Next: l.after, Ended: ended, Items: each(items, func(o store.TaskOutput) contract.Output {
			return contract.Output{Seq: o.Seq, At: o.At, Output: o.Output}
		})}, err)
		return
	}
	s.writeLogs(c, l, val(p.Follow))
}

type logReader struct {
	s             *Server
	job           string
	attempt, rank int
	after         int64
}

// page reads what comes next; ended says that nothing comes behind it.
func (l *logReader) page(ctx context.Context) (out []store.TaskOutput, ended bool, err error) {
	err = l.s.inTurn(ctx, func() error {
		out, ended, err = l.read(ctx)
		return err
	})
	return out, ended, err
}

func (l *logReader) read(ctx context.Context) (out []store.TaskOutput, ended bool, err error) {
	if l.attempt == 0 { // it has not started
		j, err := l.s.c.Store.Job(ctx, l.job)
		if err != nil {
			return nil, false, err
		}
		if j.Attempt == 0 {
			return nil, j.State.Ended(), nil
		}
		l.attempt = j.Attempt
	}
	task := store.RunTaskID(l.job, l.attempt, l.rank)
	// Whether it has ended is asked first: output stored before the end is then in what is read.
	t, err := l.s.c.Store.RunTask(ctx, l.job, l.attempt, l.rank)
	switch {
	case err == nil:
		ended = t.State.Ended()
	case !schema.Is(err, schema.CodeNotFound):
		return nil, false, err
	default: // it was never dispatched: it won't be once the attempt is released
		attempts, err := l.s.c.Store.Attempts(ctx, l.job)
		if err != nil {
			return nil, false, err
		}
		for _, a := range attempts {
			ended = ended || a.Attempt == l.attempt && a.ReleasedAt != 0
		}
	}
	out, err = l.s.c.Store.Output(ctx, task, l.after)
	if len(out) > 0 {
		l.after = out[len(out)-1].Seq
		ended = false // there may be more than one page
	}
	return out, ended, err
}

// writeLogs writes plain text; with follow until the attempt ends.
func (s *Server) writeLogs(c *gin.Context, l *logReader, follow bool) {
	ctx := c.Request.Context()
	out, ended, err := l.page(ctx)
	if err != nil {
		s.fail(c, err)
		return
	}
	w := s.watch(store.TopicJob(l.job))
	defer w.leave()
	c.Header("Content-Type", "text/plain; charset=utf-8") // with nosniff: what a job prints is never run by a browser
	c.Header("Cache-Control", "no-store")
	c.Header("X-Accel-Buffering", "no")
	c.Status(http.StatusOK)
	if s.push(c, nil) != nil { // the header, so that a reader knows that it is there
		return
	}
	tick := time.NewTicker(logsEvery)
	defer tick.Stop()
	for {
		for _, o := range out {
			if s.push(c, []byte(o.Output)) != nil {
				return
			}
		}
		if ended || len(out) == 0 && !follow {
			return
		}
		if len(out) == 0 {
			select {
			case <-w.C:
			case <-tick.C:
			case <-ctx.Done():
				return
			case <-s.stopping:
				return
			}
		}
		if out, ended, err = l.page(ctx); err != nil {
			return
		}
	}
}
