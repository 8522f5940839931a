package api

import "github.com/gin-gonic/gin"

// Routes are the router's, for the test that compares them with the table of roles.
func (s *Server) Routes() gin.RoutesInfo { return s.engine.Routes() }

// Redact is redact, for its own test.
var Redact = redact

// Titles are the problem's titles by code.
var Titles = titles
