package bmc

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/stmcginnis/gofish/schemas"
)

// Task is a request that the BMC carries on with after it has answered.
type Task struct {
	URI string `json:"uri"` // of the task or its monitor; "" when the answer named none
}

// taskOf reads where an accepted request can be followed: Location (a monitor or the task itself), or the body.
func taskOf(a *answer) Task {
	if u, err := url.Parse(a.header.Get("Location")); err == nil && u.Path != "" {
		return Task{URI: u.RequestURI()}
	}
	var d struct {
		ID   string `json:"@odata.id"`
		Type string `json:"@odata.type"`
	}
	if json.Unmarshal(a.body, &d) == nil && strings.Contains(d.Type, "Task") {
		return Task{URI: d.ID}
	}
	return Task{}
}

// WaitTask follows a task to its end: nil is success. It has failed when its state says so, whatever its status (a task
// may end in Exception with TaskStatus OK) and when its status does. A task that is nowhere, because the answer had no
// Location or because the BMC was reset and forgot it, or that can't be asked for because the BMC is gone for longer than
// Timing.TaskLost, proves nothing: then verify decides, which reads the effect itself (a firmware's version), until
// Timing.TaskLost is up. Nobody may start the work again before this returned.
func (c *Client) WaitTask(ctx context.Context, t Task, verify func(context.Context) (bool, error)) (err error) {
	defer c.conn.named("wait for a task of", &err)
	lost, heard := t.URI == "", now()
	for !lost {
		a, err := c.conn.do(ctx, http.MethodGet, t.URI, nil, nil)
		switch {
		case err != nil && (ctx.Err() != nil || !isKind(err, ErrUnreachable) && !isKind(err, ErrBusy)):
			return err
		case err != nil, a.status == http.StatusServiceUnavailable: // the BMC may be restarting as part of it
			lost = now().Sub(heard) > c.conn.pool.cfg.Timing.TaskLost
		case a.status == http.StatusNoContent:
			return nil // a monitor that is done (DSP0266 12.2)
		case a.status == http.StatusNotFound || a.status == http.StatusGone:
			lost = true
			continue
		case a.status == http.StatusAccepted, a.status == http.StatusOK:
			r, err := c.conn.decode(t.URI, a)
			if err != nil && a.status == http.StatusAccepted {
				break // a monitor may answer 202 with nothing
			}
			if err != nil {
				return err
			}
			done, err := c.conn.judge(t, r)
			if done || err != nil {
				return err
			}
			if r.str("TaskState") == "" && a.status == http.StatusOK {
				return nil // a monitor that answers with the operation's own result
			}
		default:
			return c.conn.refusal("", t.URI, asGofish(a))
		}
		wait := c.conn.pool.cfg.Timing.Poll
		if err == nil && a.status != http.StatusServiceUnavailable {
			heard = now()
		}
		if err == nil && retryAfter(a.header) > 0 {
			wait = min(retryAfter(a.header), c.conn.pool.cfg.Timing.Busy)
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
	if verify == nil {
		return &Error{Kind: ErrNotProven, Address: c.conn.address, URI: t.URI, Detail: "the task can't be followed and its effect can't be read"}
	}
	ok, err := c.until(ctx, c.conn.pool.cfg.Timing.TaskLost, verify)
	if err == nil && !ok {
		err = &Error{Kind: ErrNotProven, Address: c.conn.address, URI: t.URI,
			Detail: fmt.Sprintf("the task vanished and its effect did not show in %s", c.conn.pool.cfg.Timing.TaskLost)}
	}
	return err
}

// judge reads a task's state: done with nil is success.
func (c *conn) judge(t Task, r *resource) (done bool, err error) {
	state := schemas.TaskState(r.str("TaskState"))
	status := schemas.Health(r.str("TaskStatus"))
	failed := false
	switch state {
	case schemas.CompletedTaskState:
		failed = status == schemas.CriticalHealth
	case schemas.ExceptionTaskState, schemas.KilledTaskState, schemas.CancelledTaskState, schemas.InterruptedTaskState:
		failed = true
	default:
		return false, nil
	}
	if !failed {
		return true, nil
	}
	var words []string
	list, _ := r.at("Messages").([]any)
	for _, m := range list {
		if s := text(at(m, "Message")); s != "" {
			words = append(words, s)
		}
	}
	e := &Error{Kind: ErrTaskFailed, Address: c.address, URI: t.URI, Detail: fmt.Sprintf("ended as %s, status %s", state, orDefault(string(status), "not shown"))}
	if len(words) > 0 {
		e.Detail += ": " + words[len(words)-1]
	}
	if p, ok := r.num("PercentComplete"); ok {
		e.Detail += fmt.Sprintf(" (at %.0f %%)", p)
	}
	return true, e
}
