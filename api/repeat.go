package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"gpupool/schema"
	"gpupool/schema/store"
)

// keyHeader makes a request that changes something safe to repeat.
const keyHeader = "Idempotency-Key"

// repeatEvery is how often a repeat looks whether the first, which another process of the API may do, is answered.
const repeatEvery = 50 * time.Millisecond

// once does a request under an Idempotency-Key: its repeat by the same caller is answered as the first was, and nothing
// is done again. An answer that says "try again later" is not kept. Jobs keep their keys themselves, in the transaction
// that makes the job or array, for ever (see SubmitJob).
func (s *Server) once(c *gin.Context) {
	key, route := c.GetHeader(keyHeader), c.Request.Method+" "+c.FullPath()
	if key == "" && len(c.Request.Header.Values(keyHeader)) == 0 || route == "POST /v1/jobs" || route == "POST /v1/arrays" {
		c.Next()
		return
	}
	if err := checkKey(key); err != nil {
		s.fail(c, err)
		return
	}
	if route == "POST /v1/tokens" || route == "POST /v1/webhooks" {
		s.fail(c, schema.Invalid(keyHeader, key, "no key here: a secret is shown once, and a kept answer would hold it"))
		return
	}
	limit, read := int64(maxBody), readBody
	switch route {
	case "POST /v1/servers/bulk":
		limit = maxBulk
	case "POST /v1/repairs/:repair/photos":
		bounded(c, photoWithin)
		limit, read = schema.MaxPhotoBytes, readBytes
	}
	body, err := read(c, limit)
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Request.Body = io.NopCloser(bytes.NewReader(body))
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s", c.Request.Method, c.Request.URL.RequestURI(), mediaType(c), body))
	kept, err := s.first(c.Request.Context(), me(c).Token, key, hex.EncodeToString(sum[:]))
	switch {
	case err != nil:
		s.fail(c, err)
	case kept != nil:
		c.Abort()
		c.Header("Idempotent-Replayed", "true")
		if kept.Location != "" {
			c.Header("Location", kept.Location)
		}
		c.Data(kept.Status, kept.Type, []byte(kept.Body))
	default:
		s.keeping(c, key)
	}
}

// first is the answer of the same request before, once it is there; nil = this is the first.
func (s *Server) first(ctx context.Context, token, key, hash string) (*store.Answer, error) {
	tick := time.NewTicker(repeatEvery)
	defer tick.Stop()
	late := time.NewTimer(writeWithin)
	defer late.Stop()
	for {
		kept, mine, err := s.c.Store.BeginAnswer(ctx, token, key, hash)
		if err != nil || mine || kept != nil {
			return kept, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.stopping:
			return nil, &schema.Error{Code: schema.CodeUnavailable, Message: "the API is stopping", Hint: "try again with the same key"}
		case <-late.C:
			return nil, &schema.Error{Code: schema.CodeUnavailable, Message: "the first request under this key is not answered yet", Hint: "try again with the same key"}
		}
	}
}

// keeping does the request and keeps its answer.
func (s *Server) keeping(c *gin.Context, key string) {
	w := &copied{ResponseWriter: c.Writer}
	c.Writer = w
	token, ctx := me(c).Token, context.WithoutCancel(c.Request.Context())
	finished := false
	defer func() {
		status := w.Status()
		var err error
		if !finished || status >= http.StatusInternalServerError || status == http.StatusTooManyRequests {
			err = s.c.Store.DropAnswer(ctx, token, key)
		} else {
			err = s.c.Store.KeepAnswer(ctx, token, key, store.Answer{Status: status, Type: w.Header().Get("Content-Type"), Location: w.Header().Get("Location"), Body: w.body.String()})
		}
		if err != nil {
			s.c.Log.WarnContext(ctx, "api: an answer could not be kept for a repeat", "route", c.FullPath(), "error", err)
		}
	}()
	c.Next()
	finished = true
}

// copied writes an answer and remembers it.
type copied struct {
	gin.ResponseWriter
	body bytes.Buffer
}

func (w *copied) Write(b []byte) (int, error) {
	w.body.Write(b)
	return w.ResponseWriter.Write(b)
}

func (w *copied) WriteString(text string) (int, error) {
	w.body.WriteString(text)
	return w.ResponseWriter.WriteString(text)
}
