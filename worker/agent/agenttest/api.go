// Package agenttest is a small API server that speaks agentproto, for tests of the agent and of the lab: it checks
// every signature, gives out tasks by long poll, keeps reports and heartbeats in memory, and can be made to fail.
package agenttest

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// API is the server. mu guards all that follows it; changed is closed and made anew with each change.
type API struct {
	URL string
	srv *httptest.Server

	mu         sync.Mutex
	changed    chan struct{}
	tokens     map[string]string // token -> server
	keys       map[string]ed25519.PublicKey
	registered []agentproto.Register
	queue      map[string][]agentproto.Task // server -> not yet given out
	given      map[string][]agentproto.Task // server -> given out
	reports    map[string][]agentproto.TaskReport
	ended      map[string]bool
	beats      map[string][]agentproto.Heartbeat
	evidence   map[string]agentproto.Evidence
	unknown    []string
	fail       map[string]int // path -> status that it answers now
	lose       map[string]int // path -> answers to lose after the work was done
	calls      map[string]int
	heartbeat  time.Duration
	faults     []string // what an agent did wrong
}

// New starts the API. Close ends it.
func New() *API {
	a := &API{
		changed: make(chan struct{}), tokens: map[string]string{}, keys: map[string]ed25519.PublicKey{},
		queue: map[string][]agentproto.Task{}, given: map[string][]agentproto.Task{}, reports: map[string][]agentproto.TaskReport{},
		ended: map[string]bool{}, beats: map[string][]agentproto.Heartbeat{}, evidence: map[string]agentproto.Evidence{},
		fail: map[string]int{}, lose: map[string]int{}, calls: map[string]int{}, heartbeat: 200 * time.Millisecond,
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+agentproto.PathRegister, a.register)
	mux.HandleFunc("POST "+agentproto.PathHeartbeat, signed(a, a.beat))
	mux.HandleFunc("POST "+agentproto.PathReport, signed(a, a.report))
	mux.HandleFunc("GET "+agentproto.PathTasks, a.poll)
	a.srv = httptest.NewServer(mux)
	a.URL = a.srv.URL
	return a
}

// Close ends the server and its polls.
func (a *API) Close() {
	a.srv.CloseClientConnections()
	a.srv.Close()
}

// Token lets a server register with it once.
func (a *API) Token(server, token string) {
	a.do(func() { a.tokens[token] = server })
}

// Give queues a task for a server.
func (a *API) Give(server string, tasks ...agentproto.Task) {
	a.do(func() { a.queue[server] = append(a.queue[server], tasks...) })
}

// Unknown makes heartbeats answer that these tasks are unknown.
func (a *API) Unknown(ids ...string) { a.do(func() { a.unknown = ids }) }

// Fail makes a path answer with status until it is called with 0.
func (a *API) Fail(path string, status int) { a.do(func() { a.fail[path] = status }) }

// Lose does the work of the next n calls of a path, and loses the answers.
func (a *API) Lose(path string, n int) { a.do(func() { a.lose[path] = n }) }

// Calls is how often a path was called.
func (a *API) Calls(path string) (n int) {
	a.do(func() { n = a.calls[path] })
	return n
}

// Faults are the protocol errors that agents made.
func (a *API) Faults() (f []string) {
	a.do(func() { f = slices.Clone(a.faults) })
	return f
}

// Registered lists the registrations that were accepted.
func (a *API) Registered() (r []agentproto.Register) {
	a.do(func() { r = slices.Clone(a.registered) })
	return r
}

// Reports are those of a task, in order of arrival, without repeats.
func (a *API) Reports(task string) (r []agentproto.TaskReport) {
	a.do(func() { r = slices.Clone(a.reports[task]) })
	return r
}

// Heartbeats are those of a server.
func (a *API) Heartbeats(server string) (h []agentproto.Heartbeat) {
	a.do(func() { h = slices.Clone(a.beats[server]) })
	return h
}

// Evidence is all that was acknowledged.
func (a *API) Evidence() (e []agentproto.Evidence) {
	a.do(func() {
		for _, v := range a.evidence {
			e = append(e, v)
		}
	})
	slices.SortFunc(e, func(x, y agentproto.Evidence) int { return int(x.At - y.At) })
	return e
}

// End waits for a task's end and returns that report, with the output of all its reports.
func (a *API) End(ctx context.Context, task string) (agentproto.TaskReport, error) {
	var end agentproto.TaskReport
	err := a.Wait(ctx, func() bool {
		out := ""
		for _, r := range a.reports[task] {
			out += r.Output
			if r.State.Ended() {
				end = r
				end.Output = out
				return true
			}
		}
		return false
	})
	if err != nil {
		return end, fmt.Errorf("task %s has not ended: %w; it said %+v", task, err, a.Reports(task))
	}
	return end, nil
}

// Wait waits until cond holds. cond is called with the API's lock held: it may look at nothing but through closures.
func (a *API) Wait(ctx context.Context, cond func() bool) error {
	for {
		a.mu.Lock()
		ok, ch := cond(), a.changed
		a.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Until waits for a condition over what the API's methods tell.
func (a *API) Until(ctx context.Context, cond func() bool) error {
	for {
		a.mu.Lock()
		ch := a.changed
		a.mu.Unlock()
		if cond() {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *API) do(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *API) register(w http.ResponseWriter, r *http.Request) {
	var in agentproto.Register
	if !a.admit(w, r.URL.Path) || json.NewDecoder(r.Body).Decode(&in) != nil {
		return
	}
	status, text := 200, ""
	a.do(func() {
		key, _ := base64.StdEncoding.DecodeString(in.PublicKey)
		token := r.Header.Get("Authorization")
		server, ok := a.tokens[token[min(len(token), len("Bearer ")):]]
		switch old := a.keys[in.Server]; {
		case !ok || server != in.Server:
			status, text = 403, "this token is not of this server's attempt"
		case old != nil && !old.Equal(ed25519.PublicKey(key)):
			status, text = 409, "the token was used"
		default:
			a.keys[in.Server] = key
			a.registered = append(a.registered, in)
		}
	})
	if status != 200 {
		refuse(w, status, text)
		return
	}
	a.answer(w, r, agentproto.Registered{Server: in.Server, HeartbeatEvery: a.heartbeat.Milliseconds()})
}

func (a *API) beat(server string, in agentproto.Heartbeat) any {
	var out agentproto.HeartbeatReply
	a.do(func() {
		a.beats[server] = append(a.beats[server], in)
		for _, e := range in.Evidence {
			a.evidence[e.ID] = e
			out.Acknowledged = append(out.Acknowledged, e.ID)
		}
		for _, id := range a.unknown {
			if slices.Contains(in.Running, id) {
				out.Unknown = append(out.Unknown, id)
			}
		}
	})
	return out
}

func (a *API) report(_ string, in agentproto.Report) any {
	var out agentproto.ReportReply
	a.do(func() {
		for _, r := range in.Tasks {
			out.Accepted = append(out.Accepted, r.Task)
			kept := a.reports[r.Task]
			if n := len(kept); n > 0 && r.Seq <= kept[n-1].Seq {
				continue // a repeat
			}
			if a.ended[r.Task] && !r.NoneLeft {
				a.faults = append(a.faults, fmt.Sprintf("task %s was reported %s after its end", r.Task, r.State))
			}
			a.reports[r.Task] = append(kept, r)
			a.ended[r.Task] = a.ended[r.Task] || r.State.Ended()
		}
	})
	return out
}

func (a *API) poll(w http.ResponseWriter, r *http.Request) {
	if !a.admit(w, r.URL.Path) {
		return
	}
	server, ok := a.check(w, r, nil)
	if !ok {
		return
	}
	wait, err := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil {
		refuse(w, 400, "wait is not a duration")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	out := []agentproto.Task{}
	_ = a.Wait(ctx, func() bool {
		if r.URL.Query().Get("again") == "true" {
			for _, t := range a.given[server] {
				if !a.ended[t.ID] {
					out = append(out, t)
				}
			}
		}
		out = append(out, a.queue[server]...)
		a.given[server] = append(a.given[server], a.queue[server]...)
		a.queue[server] = nil
		return len(out) > 0
	})
	a.answer(w, r, out)
}

// admit counts a call, and fails it where it shall.
func (a *API) admit(w http.ResponseWriter, path string) bool {
	status := 0
	a.do(func() {
		a.calls[path]++
		status = a.fail[path]
	})
	if status != 0 {
		refuse(w, status, "made to fail")
	}
	return status == 0
}

func (a *API) answer(w http.ResponseWriter, r *http.Request, out any) {
	lost := false
	a.do(func() {
		if a.lose[r.URL.Path] > 0 {
			a.lose[r.URL.Path]--
			lost = true
		}
	})
	if lost {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the client may be gone
}

func (a *API) check(w http.ResponseWriter, r *http.Request, body []byte) (string, bool) {
	server, at, sig, err := agentproto.Parse(r.Header.Get("Authorization"))
	if err == nil {
		a.mu.Lock()
		key := a.keys[server]
		a.mu.Unlock()
		err = agentproto.Verify(key, server, r.Method, r.URL.RequestURI(), body, at, sig, time.Now())
	}
	if err != nil {
		refuse(w, 401, err.Error())
		return "", false
	}
	return server, true
}

func signed[T any](a *API, f func(server string, in T) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !a.admit(w, r.URL.Path) {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		server, ok := a.check(w, r, body)
		if !ok {
			return
		}
		var in T
		if err := json.Unmarshal(body, &in); err != nil {
			refuse(w, 400, err.Error())
			return
		}
		a.answer(w, r, f(server, in))
	}
}

func refuse(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"status": status, "detail": detail})
}

// Run makes a run task.
func Run(id string, epoch int64, r agentproto.Run) agentproto.Task {
	return task(id, schema.TaskRun, epoch, r)
}

// Look makes a task of another kind.
func Look(id string, kind schema.TaskKind, payload any) agentproto.Task {
	return task(id, kind, 0, payload)
}

func task(id string, kind schema.TaskKind, epoch int64, payload any) agentproto.Task {
	b, err := json.Marshal(payload)
	if err != nil {
		panic(err) // the types of agentproto always encode
	}
	return agentproto.Task{ID: id, Kind: kind, Epoch: epoch, Payload: b}
}
