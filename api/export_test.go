package api

import (
	"context"

	"github.com/gin-gonic/gin"

	"gpupool/api/auth"
)

// Routes are the router's, for the test that compares them with the table of roles.
func (s *Server) Routes() gin.RoutesInfo { return s.engine.Routes() }

// Redact is redact, for its own test.
var Redact = redact

// Titles are the problem's titles by code.
var Titles = titles

// TakeTurns takes all turns of what watches until free is called.
func (s *Server) TakeTurns() (free func()) {
	for range cap(s.turns) {
		s.turns <- struct{}{}
	}
	return func() {
		for range cap(s.turns) {
			<-s.turns
		}
	}
}

// Fill leaves a token, by its secret, no read more.
func (s *Server) Fill(hash string) error {
	t, err := s.c.Store.TokenByHash(context.Background(), hash)
	for range auth.AtOnce {
		if err == nil {
			_, err = s.auth.Enter(t.ID)
		}
	}
	return err
}
