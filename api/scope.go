package api

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

// job reads a job that the caller may see, by id or name. Another tenant's is answered as one that does not exist.
func (s *Server) job(ctx context.Context, c *gin.Context, idOrName string) (schema.Job, error) {
	id := me(c)
	if !strings.HasPrefix(idOrName, "job_") {
		named, err := s.c.Store.JobsNamed(ctx, id.Tenant, id.Project, idOrName)
		if err != nil {
			return schema.Job{}, err
		}
		return theOne(idOrName, named)
	}
	j, err := s.c.Store.Job(ctx, idOrName)
	if err == nil && !id.Sees(j.Tenant, j.Project) {
		return schema.Job{}, schema.NotFound("job", idOrName)
	}
	return j, err
}

// theOne is the job that a name means: the only live one, else the newest that ended, where all are of one project. What
// is said to it may be "cancel", so where it could be another one nothing is guessed.
func theOne(name string, named []schema.Job) (schema.Job, error) {
	if len(named) == 0 {
		return schema.Job{}, schema.NotFound("job", name)
	}
	live := slices.DeleteFunc(slices.Clone(named), func(j schema.Job) bool { return j.State.Ended() })
	candidates := named
	if len(live) > 0 {
		candidates = live
	}
	first := candidates[0]
	elsewhere := slices.ContainsFunc(candidates, func(j schema.Job) bool { return j.Tenant != first.Tenant || j.Project != first.Project })
	if len(live) < 2 && !elsewhere {
		return first, nil
	}
	what := make([]string, 0, 5)
	for _, j := range candidates[:min(5, len(candidates))] {
		what = append(what, fmt.Sprintf("%s (%s/%s, %s)", j.ID, j.Tenant, j.Project, j.State))
	}
	if n := len(candidates) - len(what); n > 0 {
		what = append(what, fmt.Sprintf("and %d more", n))
	}
	return schema.Job{}, schema.Conflict(fmt.Sprintf("the name %q is that of %d jobs", name, len(candidates)), "say which by its id: "+strings.Join(what, ", "))
}
