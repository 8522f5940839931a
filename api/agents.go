package api

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

// agentKeyFor is how long an agent's key is kept in memory. A key that does not fit is read anew at once, so a server
// that was installed again is known at once; one that was retired is refused within this time.
const agentKeyFor = 10 * time.Second

type agentKey struct {
	key   ed25519.PublicKey
	until time.Time
}

type agentKeys struct {
	mu    sync.Mutex
	known map[string]agentKey // by server id; as many as there are servers
}

func (s *Server) agentRoutes(e *gin.Engine) {
	e.POST(agentproto.PathRegister, s.agentRegister)
	e.POST(agentproto.PathHeartbeat, s.agentHeartbeat)
	e.GET(agentproto.PathTasks, s.agentTasks)
	e.POST(agentproto.PathReport, s.agentReport)
}

// agentAddress counts agents' failures apart from people's: many share an address, and a server that was retired asks on.
func agentAddress(c *gin.Context) string { return "agent " + c.ClientIP() }

// agent proves by the signature over method, path and body which server's agent calls.
func (s *Server) agent(c *gin.Context, body []byte) (server string, err error) {
	server, at, sig, err := agentproto.Parse(c.GetHeader("Authorization"))
	if err != nil {
		return "", s.auth.Failed(agentAddress(c), err.Error())
	}
	now := s.c.Clock()
	for _, fresh := range []bool{false, true} {
		key, cached, err := s.agentKey(c.Request.Context(), server, now, fresh)
		if schema.Is(err, schema.CodeUnauthenticated) {
			return "", s.auth.Failed(agentAddress(c), fmt.Sprintf("no agent of server %q has registered", server))
		}
		if err != nil {
			return "", err
		}
		err = agentproto.Verify(key, server, c.Request.Method, c.Request.URL.RequestURI(), body, at, sig, now)
		if err == nil && !s.replays.first(server, at, sig, now) {
			slog.WarnContext(c.Request.Context(), "an agent's request came a second time; it is not taken", "server", server, "address", c.ClientIP(), "signed", at)
			return "", &schema.Error{Code: schema.CodeUnavailable, Message: "this request was made before", Hint: "sign it anew"}
		}
		if err == nil {
			return server, nil
		}
		if !cached {
			return "", s.auth.Failed(agentAddress(c), err.Error())
		}
	}
	return "", errors.New("unreachable: the second key is never from memory")
}

func (s *Server) agentKey(ctx context.Context, server string, now time.Time, fresh bool) (key ed25519.PublicKey, cached bool, err error) {
	s.keys.mu.Lock()
	k, ok := s.keys.known[server]
	s.keys.mu.Unlock()
	if ok && !fresh && now.Before(k.until) {
		return k.key, true, nil
	}
	if key, err = s.c.Store.AgentKey(ctx, server); err != nil {
		return nil, false, err
	}
	s.keys.mu.Lock()
	s.keys.known[server] = agentKey{key: key, until: now.Add(agentKeyFor)}
	s.keys.mu.Unlock()
	return key, false, nil
}

// agentRegister is the phone-home: the attempt's one-time token is its credential.
func (s *Server) agentRegister(c *gin.Context) {
	body, err := readBody(c, maxBody)
	if err != nil {
		s.fail(c, err)
		return
	}
	token, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	if !ok || token == "" {
		s.fail(c, s.auth.Failed(agentAddress(c), "no phone-home token was sent"))
		return
	}
	var in agentproto.Register
	if err := lenient(body, &in); err != nil {
		s.fail(c, err)
		return
	}
	if err := s.c.Store.RegisterAgent(c.Request.Context(), store.HashToken(token), in); err != nil {
		code := schema.CodeOf(err)
		refused := code == schema.CodeForbidden || code == schema.CodeNotFound || code == schema.CodeUnsafe
		if refused {
			if limited := s.auth.Failed(agentAddress(c), ""); schema.Is(limited, schema.CodeLimited) {
				err, refused = limited, false
			}
		}
		s.fail(c, err)
		if refused { // who guesses or replays is on record, as often as he may try
			s.audit.add(schema.Event{Kind: schema.EventAudit, Subject: idOf(in.Server), By: "phone-home"}, auditData{
				Method: c.Request.Method, Route: c.FullPath(), Path: c.Request.URL.Path, Status: c.Writer.Status(), Address: c.ClientIP(), Request: c.Writer.Header().Get("X-Request-Id")})
		}
		return
	}
	s.reply(c, http.StatusOK, agentproto.Registered{Server: in.Server, HeartbeatEvery: s.c.HeartbeatEvery.Milliseconds()})
}

// idOf is what a stranger says a server's id is, where it looks like one: nothing else of it goes into the record.
func idOf(said string) string {
	if len(said) > 64 || strings.Trim(said, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return ""
	}
	return said
}

// lenient decodes what an agent sends: an agent may be newer than the API and say more than it knows.
func lenient(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return &schema.Error{Code: schema.CodeInvalid, Field: "body", Message: "it can't be read: " + err.Error(), Hint: "see the agent protocol"}
	}
	return nil
}

// fromAgent reads and proves an agent's request. False means that it was answered with what is wrong.
func (s *Server) fromAgent(c *gin.Context, v any) (server string, ok bool) {
	body, err := readBody(c, maxBulk)
	if err == nil {
		server, err = s.agent(c, body)
	}
	if err == nil && v != nil {
		err = lenient(body, v)
	}
	if err != nil {
		s.fail(c, err)
		return "", false
	}
	return server, true
}

func (s *Server) agentHeartbeat(c *gin.Context) {
	var in agentproto.Heartbeat
	server, ok := s.fromAgent(c, &in)
	if !ok {
		return
	}
	out, err := s.c.Store.Heartbeat(c.Request.Context(), server, in)
	if err == nil && s.c.Samples != nil && in.Devices != nil {
		s.c.Samples(server, in.Devices)
	}
	s.done(c, http.StatusOK, out, err)
}

// agentTasks hands out work, waiting for some with ?wait=.
func (s *Server) agentTasks(c *gin.Context) {
	server, ok := s.fromAgent(c, nil)
	if !ok {
		return
	}
	ctx := c.Request.Context()
	w := c.Query("wait")
	wait, err := waitOf(&w)
	if err != nil {
		s.fail(c, err)
		return
	}
	var tasks []agentproto.Task
	look := func() (bool, error) {
		var err error
		tasks, err = s.c.Store.ClaimTasks(ctx, server)
		return len(tasks) > 0, err
	}
	// What was handed out and never answered becomes due again by the clock and not by an event: so a wait is made of
	// pieces, the first just long enough for an answer that was lost when the agent's last connection broke.
	piece := store.RedeliverAfter + 100*time.Millisecond
	for end := time.Now().Add(wait); ; piece = 10 * time.Second {
		left := min(time.Until(end), piece)
		if err = s.until(ctx, store.TopicTasks(server), left, look); err != nil || len(tasks) > 0 || left < piece || s.ending(ctx) {
			break
		}
	}
	if tasks == nil {
		tasks = []agentproto.Task{}
	}
	s.done(c, http.StatusOK, tasks, err)
}

// ending reports whether a wait is to end: the caller has gone, or the server stops.
func (s *Server) ending(ctx context.Context) bool {
	select {
	case <-s.stopping:
		return true
	default:
		return ctx.Err() != nil
	}
}

// agentReport keeps what an agent tells of its tasks.
func (s *Server) agentReport(c *gin.Context) {
	var in agentproto.Report
	server, ok := s.fromAgent(c, &in)
	if !ok {
		return
	}
	out, err := s.c.Store.Report(c.Request.Context(), server, in)
	if err == nil {
		for _, t := range in.Tasks { // output makes no event: who follows it here is woken directly
			if t.Output == "" {
				continue
			}
			if job, ok := jobOfTask(t.Task); ok {
				s.c.Store.Nudge(store.TopicJob(job))
			}
		}
	}
	s.done(c, http.StatusOK, out, err)
}

// jobOfTask is the job of a run task's id, job/<id>/<attempt>/<rank>.
func jobOfTask(id string) (string, bool) {
	rest, ok := strings.CutPrefix(id, "job/")
	job, _, _ := strings.Cut(rest, "/")
	return job, ok && job != ""
}
