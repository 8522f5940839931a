package api

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"gpupool/api/auth"
	"gpupool/schema"
)

const identityKey = "identity"

// guard is the one middleware: request id, credential, role, audit, metrics. A route that is not in the table is refused.
func (s *Server) guard(c *gin.Context) {
	begin := time.Now()
	c.Header("X-Request-Id", requestID())
	c.Header("X-Content-Type-Options", "nosniff")
	defer s.recovered(c)
	bounded(c, s.c.BodyWithin)
	path := c.FullPath()
	if path == "" { // no such route: nobody need know who asks
		c.Next()
		s.metrics.seen("none", c.Writer.Status(), begin)
		return
	}
	who := auth.Allowed(c.Request.Method, path)
	switch {
	case who == auth.Public:
		c.Next()
	case who == auth.Agent: // each agent route proves its caller by the body's signature or the phone-home token
		c.Next()
	default:
		s.guarded(c, who)
	}
	s.metrics.seen(c.Request.Method+" "+path, c.Writer.Status(), begin)
}

func (s *Server) guarded(c *gin.Context, who auth.Who) {
	id, err := s.auth.Authenticate(c.Request, c.ClientIP())
	if err != nil {
		s.fail(c, err)
		return
	}
	mutates := c.Request.Method != http.MethodGet && c.Request.Method != http.MethodHead
	if !mutates { // what watches is bounded; who has too many watchers can still act
		leave, err := s.auth.Enter(id.Token)
		if err != nil {
			s.fail(c, err)
			return
		}
		defer leave()
	}
	c.Set(identityKey, id)
	switch {
	case who&auth.Kind(id.Role, id.Tenant) == 0:
		s.fail(c, &schema.Error{Code: schema.CodeForbidden, Message: "the role " + auth.Kind(id.Role, id.Tenant).String() + " may not do this", Hint: "allowed: " + who.String()})
	case mutates && id.Session && s.csrf.Check(c.Request) != nil:
		s.fail(c, &schema.Error{Code: schema.CodeForbidden, Message: "the request comes from another site's page", Hint: "use the console at the API's own address"})
	default:
		if err := checkAddress(c); err != nil {
			s.fail(c, err)
			break
		}
		if mutates {
			s.once(c)
		} else {
			c.Next()
		}
	}
	if mutates {
		s.audit.add(schema.Event{Kind: schema.EventAudit, Subject: id.Token, Tenant: id.Tenant, By: id.Name}, auditData{
			Method: c.Request.Method, Route: c.FullPath(), Path: c.Request.URL.Path, Status: c.Writer.Status(), Address: c.ClientIP(), Request: c.Writer.Header().Get("X-Request-Id")})
	}
}

// me is who calls; every guarded route has one.
func me(c *gin.Context) auth.Identity {
	id, _ := c.MustGet(identityKey).(auth.Identity)
	return id
}

// recovered turns a panic into a 500, so that one request's bug is that request's.
func (s *Server) recovered(c *gin.Context) {
	p := recover()
	if p == nil {
		return
	}
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(p)
	}
	s.c.Log.ErrorContext(c.Request.Context(), "api: a handler panicked", "route", c.FullPath(), "panic", p, "stack", stack(), "request", c.Writer.Header().Get("X-Request-Id"))
	if !c.Writer.Written() {
		s.fail(c, &schema.Error{Code: schema.CodeInternal})
	}
}

var request = struct {
	prefix string
	n      atomic.Uint64
}{prefix: func() string {
	var b [5]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	return "req_" + hex.EncodeToString(b[:]) + "_"
}()}

// requestID names a request in answers and log: the process's random prefix and a counter.
func requestID() string { return request.prefix + strconv.FormatUint(request.n.Add(1), 36) }
