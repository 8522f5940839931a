package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
)

// ListBuilds lists by name.
func (s *Server) ListBuilds(c *gin.Context) {
	list, err := s.c.Store.Builds(c.Request.Context())
	s.done(c, http.StatusOK, contract.BuildList{Items: some(list)}, err)
}

// GetBuild reads one.
func (s *Server) GetBuild(c *gin.Context, name contract.TheBuild) {
	b, err := s.c.Store.Build(c.Request.Context(), name)
	s.done(c, http.StatusOK, b, err)
}

// SetBuild makes one, or makes it anew.
func (s *Server) SetBuild(c *gin.Context, name contract.TheBuild) {
	var in contract.NewBuild
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	b, err := s.c.Store.SetBuild(c.Request.Context(), me(c).Name, name, in.Parts)
	s.done(c, http.StatusOK, b, err)
}

// DeleteBuild removes one that no server was ordered as.
func (s *Server) DeleteBuild(c *gin.Context, name contract.TheBuild) {
	s.gone(c, s.c.Store.DeleteBuild(c.Request.Context(), name))
}
