package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

var titles = map[schema.ErrorCode]string{
	schema.CodeInvalid:         "The request is not valid",
	schema.CodeUnauthenticated: "No valid credential",
	schema.CodeForbidden:       "Not allowed",
	schema.CodeNotFound:        "Not found",
	schema.CodeConflict:        "Not possible in this state",
	schema.CodeReused:          "The idempotency key was used for another request",
	schema.CodeLimited:         "Too many requests",
	schema.CodeUnavailable:     "A needed part does not answer",
	schema.CodeStale:           "The state has moved on",
	schema.CodeUnsafe:          "Refused for safety",
	schema.CodeInternal:        "A fault of the platform",
}

// fail answers err as problem+json (RFC 9457) and ends the request. What is not a *schema.Error is a fault of ours: it
// goes to the log with the request's id, and the answer says only that.
func (s *Server) fail(c *gin.Context, err error) {
	c.Abort()
	code := schema.CodeOf(err)
	if code == schema.CodeInternal {
		if trouble := store.Trouble(err); trouble != nil {
			err, code = trouble, trouble.Code
		}
	}
	out := schema.Outcomes[code]
	p := contract.Problem{Type: "urn:gpupool:problem:" + string(code), Title: titles[code], Status: out.HTTP, Code: code, RequestId: c.Writer.Header().Get("X-Request-Id")}
	if code == schema.CodeNotFound {
		p.RequestId = "" // a missing thing and another tenant's must read the same to the byte; the header has it
	}
	var e *schema.Error
	if errors.As(err, &e) && code != schema.CodeInternal {
		p.Detail, p.Field, p.Hint = e.Message, sendersName(c, e.Field), e.Hint
	}
	switch {
	case c.Request.Context().Err() != nil: // the caller has gone: nobody reads this
	case code == schema.CodeInternal:
		p.Detail, p.Hint = "something went wrong inside", "try again; if it stays, give an operator the request id"
		s.c.Log.ErrorContext(c.Request.Context(), "api: request failed", "route", c.FullPath(), "error", err, "request", p.RequestId)
	case e != nil && e.Err != nil:
		s.c.Log.WarnContext(c.Request.Context(), "api: request failed", "route", c.FullPath(), "error", err, "request", p.RequestId)
	}
	if code == schema.CodeLimited || code == schema.CodeUnavailable {
		c.Header("Retry-After", "1")
	}
	if code == schema.CodeUnauthenticated {
		c.Header("WWW-Authenticate", `Bearer realm="gpupool"`)
	}
	b, err := json.Marshal(p)
	if err != nil {
		b = []byte(`{}`) // plain strings and numbers: can't be
	}
	c.Data(out.HTTP, "application/problem+json", b)
}

func noRoute(c *gin.Context) error {
	return &schema.Error{Code: schema.CodeNotFound, Message: fmt.Sprintf("no operation %s %s", c.Request.Method, c.Request.URL.Path), Hint: "see /openapi.yaml"}
}

// badParameter takes what the generated code says of a query or path parameter that it can't read.
func (s *Server) badParameter(c *gin.Context, err error, _ int) {
	e := &schema.Error{Code: schema.CodeInvalid, Message: "it can't be read", Hint: "see /openapi.yaml"}
	// "Invalid format for parameter limit: ..." is all that the generator tells.
	if _, rest, ok := strings.Cut(err.Error(), "parameter "); ok {
		name, why, _ := strings.Cut(rest, ":")
		name = strings.Fields(name + " ")[0]
		e.Field = name
		if v := c.Query(name); v != "" {
			e.Message = schema.Invalid(name, v, "").Message
		} else if why = strings.TrimSpace(why); why != "" {
			e.Message = "is missing or can't be read"
		}
	}
	s.fail(c, e)
}

// reply answers v as JSON.
func (s *Server) reply(c *gin.Context, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		s.fail(c, fmt.Errorf("writing the answer: %w", err))
		return
	}
	c.Header("Cache-Control", "no-store")
	c.Data(status, "application/json", b)
}

// done answers v, or err where there is one.
func (s *Server) done(c *gin.Context, status int, v any, err error) {
	if err != nil {
		s.fail(c, err)
		return
	}
	s.reply(c, status, v)
}

// tagged answers v, or 304 where the caller has that version already.
func (s *Server) tagged(c *gin.Context, version int64, v any) {
	tag := fmt.Sprintf(`"%d"`, version)
	c.Header("ETag", tag)
	if c.GetHeader("If-None-Match") == tag {
		c.Header("Cache-Control", "no-store")
		c.Status(http.StatusNotModified)
		c.Writer.WriteHeaderNow()
		return
	}
	s.reply(c, http.StatusOK, v)
}

func stack() string { return string(debug.Stack()) }
