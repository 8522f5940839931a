package api

import (
	"context"

	"github.com/gin-gonic/gin"

	"gpupool/schema"
)

// scope narrows a list to what the caller may see: a tenant's caller asks for its own tenant and project, or names none
// and gets them. Another tenant does not exist for it.
func scope(c *gin.Context, tenant, project *string) (string, string, error) {
	id := me(c)
	t, p := val(tenant), val(project)
	if id.Tenant != "" {
		if t != "" && t != id.Tenant {
			return "", "", schema.NotFound("tenant", t)
		}
		t = id.Tenant
	}
	if id.Project != "" {
		if p != "" && p != id.Project {
			return "", "", schema.NotFound("project", p)
		}
		p = id.Project
	}
	return t, p, nil
}

// job reads a job that the caller may see. Another tenant's is answered as one that does not exist.
func (s *Server) job(ctx context.Context, c *gin.Context, id string) (schema.Job, error) {
	j, err := s.c.Store.Job(ctx, id)
	if err == nil && !me(c).Sees(j.Tenant, j.Project) {
		return schema.Job{}, schema.NotFound("job", id)
	}
	return j, err
}
