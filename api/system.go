package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
)

func (s *Server) healthz(c *gin.Context) { c.String(http.StatusOK, "ok\n") }

func (s *Server) readyz(c *gin.Context) {
	ctx := c.Request.Context()
	_, err := s.c.Store.Head(ctx)
	if err == nil && s.c.Ready != nil {
		err = s.c.Ready(ctx)
	}
	if err != nil {
		s.c.Log.WarnContext(ctx, "api: not ready", "error", err)
		s.fail(c, &schema.Error{Code: schema.CodeUnavailable, Message: "not ready", Hint: "the log says what is missing"})
		return
	}
	c.String(http.StatusOK, "ready\n")
}

func (s *Server) serveContract(c *gin.Context) {
	c.Data(http.StatusOK, "application/yaml", contractFile)
}

// Whoami says who the credential is.
func (s *Server) Whoami(c *gin.Context) {
	id := me(c)
	s.reply(c, http.StatusOK, contract.Identity{Name: id.Name, Role: id.Role, Tenant: id.Tenant, Project: id.Project, ExpiresAt: id.ExpiresAt})
}

// GetOverview is the pool at one look.
func (s *Server) GetOverview(c *gin.Context) {
	o, err := s.c.Store.PoolOverview(c.Request.Context())
	if err != nil {
		s.fail(c, err)
		return
	}
	s.reply(c, http.StatusOK, toOverview(o))
}
