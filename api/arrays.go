package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

// SubmitArray stores an array's jobs, all or none.
func (s *Server) SubmitArray(c *gin.Context, p contract.SubmitArrayParams) {
	var in contract.NewArray
	err := decode(c, &in, false)
	var indices []int
	if err == nil {
		indices, err = store.ParseIndices(in.Indices)
	}
	if err == nil {
		err = s.resolve(c, &in.Job)
	}
	key := val(p.IdempotencyKey)
	if err == nil && p.IdempotencyKey != nil {
		err = checkKey(key)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	b, err := json.Marshal(in) // the request as it was understood
	if err != nil {
		s.fail(c, err)
		return
	}
	sum := sha256.Sum256(append([]byte("array "), b...))
	a, created, err := s.c.Store.SubmitArray(c.Request.Context(), me(c).Name, key, hex.EncodeToString(sum[:]), fromNewJob(in.Job), indices)
	if err == nil && !me(c).Sees(a.Tenant, a.Project) { // the tenant's key, but of a project that is not the caller's
		err = &schema.Error{Code: schema.CodeReused, Field: "Idempotency-Key", Message: fmt.Sprintf("%q was used for another body", key), Hint: "use a new key for a new array"}
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		c.Header("Location", "/v1/arrays/"+url.PathEscape(a.Name))
	}
	s.reply(c, status, toArray(a))
}

func toArray(a store.Array) contract.Array {
	return contract.Array{Tenant: a.Tenant, Project: a.Project, Name: a.Name, Kind: a.Kind, Restarts: a.Restarts, Spec: a.Spec, Region: a.Region, Nodes: a.Nodes, Limit: a.Limit, Jobs: a.Jobs, States: counts(a.States), Held: a.Held,
		SubmittedBy: a.SubmittedBy, SubmittedAt: a.SubmittedAt, EndedAt: a.EndedAt}
}

// ListArrays lists the newest first.
func (s *Server) ListArrays(c *gin.Context, p contract.ListArraysParams) {
	t, pr, err := scope(c, p.Tenant, p.Project)
	n := 0
	if err == nil {
		n, err = limitOf(p.Limit)
	}
	var list []store.Array
	if err == nil {
		list, err = s.c.Store.Arrays(c.Request.Context(), store.ArrayFilter{Tenant: t, Project: pr, Live: val(p.Live), Kind: val(p.Kind), Limit: n})
	}
	s.done(c, http.StatusOK, contract.ArrayList{Items: each(list, toArray)}, err)
}

// array is the one that a name means to the caller.
func (s *Server) array(c *gin.Context, name string, tenant, project *string) (store.Array, error) {
	t, p, err := scope(c, tenant, project)
	if err != nil {
		return store.Array{}, err
	}
	list, err := s.c.Store.Arrays(c.Request.Context(), store.ArrayFilter{Tenant: t, Project: p, Name: name, Limit: 2})
	switch {
	case err != nil:
		return store.Array{}, err
	case len(list) == 0:
		return store.Array{}, schema.NotFound("array or service", name)
	case len(list) > 1:
		return store.Array{}, schema.Conflict(fmt.Sprintf("projects %s/%s and %s/%s have an array %q each", list[0].Tenant, list[0].Project, list[1].Tenant, list[1].Project, name), "say which by its tenant and project")
	}
	return list[0], nil
}

// GetArray reads one.
func (s *Server) GetArray(c *gin.Context, name contract.TheArray, p contract.GetArrayParams) {
	a, err := s.array(c, name, p.Tenant, p.Project)
	s.done(c, http.StatusOK, toArray(a), err)
}

// changeArray does something to one and answers it as it then is.
func (s *Server) changeArray(c *gin.Context, status int, name string, tenant, project *string, do func(context.Context, store.Array) error) {
	ctx := c.Request.Context()
	a, err := s.array(c, name, tenant, project)
	if err == nil {
		if err = do(ctx, a); err == nil {
			a, err = s.c.Store.Array(ctx, a.Tenant, a.Project, a.Name)
		}
	}
	s.done(c, status, toArray(a), err)
}

// CancelArray asks that all its jobs end.
func (s *Server) CancelArray(c *gin.Context, name contract.TheArray, p contract.CancelArrayParams) {
	s.changeArray(c, http.StatusAccepted, name, p.Tenant, p.Project, func(ctx context.Context, a store.Array) error { return s.c.Store.CancelArray(ctx, a, me(c).Name) })
}

// HoldArray keeps its queued jobs from starting.
func (s *Server) HoldArray(c *gin.Context, name contract.TheArray, p contract.HoldArrayParams) {
	s.changeArray(c, http.StatusOK, name, p.Tenant, p.Project, func(ctx context.Context, a store.Array) error { return s.c.Store.HoldArray(ctx, a, me(c).Name, true) })
}

// ReleaseArray lets its held jobs start.
func (s *Server) ReleaseArray(c *gin.Context, name contract.TheArray, p contract.ReleaseArrayParams) {
	s.changeArray(c, http.StatusOK, name, p.Tenant, p.Project, func(ctx context.Context, a store.Array) error { return s.c.Store.HoldArray(ctx, a, me(c).Name, false) })
}

// ScaleArray changes how many replicas a service has.
func (s *Server) ScaleArray(c *gin.Context, name contract.TheArray, p contract.ScaleArrayParams) {
	var in contract.Replicas
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	s.changeArray(c, http.StatusAccepted, name, p.Tenant, p.Project, func(ctx context.Context, a store.Array) error {
		return s.c.Store.Scale(ctx, a, in.Replicas, me(c).Name)
	})
}

// LimitArray changes how many of it run at once.
func (s *Server) LimitArray(c *gin.Context, name contract.TheArray, p contract.LimitArrayParams) {
	var in contract.ArrayLimit
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	s.changeArray(c, http.StatusOK, name, p.Tenant, p.Project, func(ctx context.Context, a store.Array) error {
		return s.c.Store.SetArrayLimit(ctx, a, in.Limit, me(c).Name)
	})
}
