package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
	"unicode/utf8"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

const (
	chunk      = 128 << 10 // output that one task report carries
	maxReports = 256       // task reports that one request carries
	maxBytes   = 1 << 20   // output that one request carries
	lostAfter  = 7 * 24 * time.Hour
)

// reportLoop sends what there is to say until ctx ends. One request is under way at a time, so that the reports of one
// task arrive in order; what comes meanwhile goes with the next.
func (t *tasks) reportLoop(ctx context.Context, c *client) error {
	retry := backoff{min: t.cfg.RetryMin, max: t.cfg.RetryMax}
	for {
		select {
		case <-t.wake:
		case <-ctx.Done():
			return nil
		}
		if t.cfg.Batch > 0 {
			if pause(ctx, t.cfg.Batch) != nil {
				return nil
			}
		}
		for {
			made := t.compose()
			if len(made) == 0 {
				break
			}
			reply, err := c.report(ctx, agentproto.Report{Tasks: made})
			if err == nil && t.accepted(made, reply.Accepted) {
				retry.reset()
				continue
			}
			if err == nil {
				err = errors.New("the API did not keep all reports")
			}
			if ctx.Err() == nil {
				t.cfg.Log.WarnContext(ctx, "reports are sent again later", "tasks", len(made), "err", err)
			}
			if retry.after(ctx, err) != nil {
				return nil
			}
		}
	}
}

// compose makes the next report of each task that has something to say, and writes down that it did: should the agent
// die now, its next life makes the same ones again.
func (t *tasks) compose() []agentproto.TaskReport {
	t.mu.Lock()
	defer t.mu.Unlock()
	var made []agentproto.TaskReport
	bytes := 0
	for _, id := range sortedKeys(t.dirty) {
		if len(made) == maxReports || bytes > maxBytes {
			break
		}
		r := t.records[id]
		if r == nil || r.Done {
			delete(t.dirty, id)
			continue
		}
		s, output, err := t.next(r)
		if err != nil {
			t.cfg.Log.Error("a task's output could not be read", "task", id, "err", err)
		}
		if s == nil {
			delete(t.dirty, id)
			continue
		}
		if s != r.Sent {
			r.Sent = s
			t.save(r)
		}
		bytes += len(output)
		made = append(made, r.report(s, output))
	}
	return made
}

// next is the report to send for r now, nil where there is none: the last one while it isn't accepted, else one more.
func (t *tasks) next(r *record) (*sent, string, error) {
	if s := r.Sent; s != nil && !s.Accepted {
		out, _, err := t.output(r, s.From, s.To)
		return s, out, err
	}
	s := &sent{Seq: 1, State: schema.TaskRunning, At: t.now()}
	first := true
	if l := r.Sent; l != nil {
		s.Seq, s.From, first = l.Seq+1, l.To, false
	}
	out, size, err := t.output(r, s.From, min(s.From+chunk, t.cfg.Output))
	limit := min(size, t.cfg.Output)
	last := s.From+int64(len(out)) >= limit
	// A rune that is cut in two is sent with the next report, unless that was all there ever will be.
	if !last || r.End == nil || size > t.cfg.Output {
		out = wholeRunes(out)
	}
	s.To = s.From + int64(len(out))
	switch {
	case r.End != nil && (last || err != nil):
		s.Final, s.State, s.Text, s.At = true, r.End.State, r.End.Text, r.End.At
		if size > t.cfg.Output {
			s.Text = joinText(s.Text, fmt.Sprintf("its output was cut after %d bytes", t.cfg.Output))
		}
	case first || len(out) > 0:
		if first {
			s.At = r.Begun
		}
	default:
		return nil, "", err
	}
	return s, out, err
}

// output reads [from, to) of r's output, less where there is less, and says how much there is.
func (t *tasks) output(r *record, from, to int64) (string, int64, error) {
	if r.Dir == "" {
		return "", 0, nil
	}
	f, err := os.Open(filepath.Join(t.cfg.StateDir, r.Dir, "out"))
	if errors.Is(err, os.ErrNotExist) {
		return "", 0, nil // it was never begun
	}
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", 0, err
	}
	to = min(to, st.Size())
	if to <= from {
		return "", st.Size(), nil
	}
	b := make([]byte, to-from)
	n, err := f.ReadAt(b, from)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return string(b[:n]), st.Size(), err
}

// wholeRunes drops the beginning of a rune at the end of s.
func wholeRunes(s string) string {
	for i := 1; i < utf8.UTFMax && i <= len(s); i++ {
		c := s[len(s)-i]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRuneInString(s[len(s)-i:]) {
				return s[:len(s)-i]
			}
			return s
		}
	}
	return s
}

// accepted marks what the API has. It reports whether that was all that was sent.
func (t *tasks) accepted(made []agentproto.TaskReport, ids []string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := true
	for _, m := range made {
		r := t.records[m.Task]
		if r == nil || r.Sent == nil || r.Sent.Seq != m.Seq {
			continue
		}
		if !slices.Contains(ids, m.Task) {
			if r.Sent.Final && t.now().Sub(r.Sent.At) > lostAfter {
				t.cfg.Log.Error("nobody took the end of this task for a week: it is given up", "task", r.ID)
			} else {
				all = false
				continue
			}
		}
		r.Sent.Accepted = true
		if r.Sent.Final {
			t.forget(r)
		} else {
			t.touch(r.ID) // there may be more by now
		}
		t.save(r)
	}
	return all
}

// forget drops what only an end that isn't accepted needs. The caller holds mu, and saves.
func (t *tasks) forget(r *record) {
	delete(t.dirty, r.ID)
	if !r.End.NoneLeft {
		r.Done = true
		return
	}
	dir := r.Dir
	r.Done, r.Payload, r.Dir = true, nil, ""
	if dir == "" {
		return
	}
	// Aside at once; a job may have left a million files, which takes minutes.
	aside := filepath.Join(t.cfg.StateDir, goneDir, filepath.Base(dir))
	if err := os.Rename(filepath.Join(t.cfg.StateDir, dir), aside); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.cfg.Log.Warn("a task's folder could not be put aside", "task", r.ID, "err", err)
		return
	}
	t.wg.Go(func() { t.remove(aside) })
}

// goneDir is where the folders of ended tasks are, until they are removed.
const goneDir = "gone"

func (t *tasks) remove(dir string) {
	if err := os.RemoveAll(dir); err != nil {
		t.cfg.Log.Warn("an ended task's folder could not be removed", "folder", dir, "err", err)
	}
}

// again sends a task's end once more, for one who asks again. The caller holds mu.
func (t *tasks) again(r *record) {
	if r.Sent == nil || !r.Sent.Final {
		t.touch(r.ID)
		return
	}
	s := *r.Sent
	s.Accepted = false
	r.Sent, r.Done = &s, false
	t.touch(r.ID)
}

func sortedKeys(m map[string]bool) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func joinText(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}
