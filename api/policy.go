package api

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

// ListSpecs lists by name.
func (s *Server) ListSpecs(c *gin.Context) {
	list, err := s.c.Store.Specs(c.Request.Context())
	s.done(c, http.StatusOK, contract.SpecList{Items: some(list)}, err)
}

// CreateSpec makes a spec.
func (s *Server) CreateSpec(c *gin.Context) {
	var in contract.NewSpec
	err := decode(c, &in, false)
	if err == nil {
		err = s.knownModel(c, "model", in.Model, in.AllowUnknownModel)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	sp, err := s.c.Store.CreateSpec(c.Request.Context(), me(c).Name, store.NewSpec{Name: in.Name, Model: in.Model, Accelerators: in.Accelerators, CPUs: in.Cpus, MemoryBytes: in.MemoryBytes, Description: in.Description, MaxTime: ms(in.MaxTimeMs)})
	s.done(c, http.StatusCreated, sp, err)
}

// knownModel refuses a model that nothing has, unless it is said to be new.
func (s *Server) knownModel(c *gin.Context, field, model string, allow bool) error {
	if allow {
		return nil
	}
	known, err := s.c.Store.KnownModels(c.Request.Context())
	if err != nil {
		return err
	}
	return schema.CheckModel(field, model, known)
}

// GetSpec reads one.
func (s *Server) GetSpec(c *gin.Context, name contract.TheSpec) {
	sp, err := s.c.Store.Spec(c.Request.Context(), name)
	s.done(c, http.StatusOK, sp, err)
}

// RetireSpec takes it out of use for new jobs.
func (s *Server) RetireSpec(c *gin.Context, name contract.TheSpec) {
	sp, err := s.c.Store.RetireSpec(c.Request.Context(), me(c).Name, name)
	s.done(c, http.StatusOK, sp, err)
}

// DeleteSpec removes one that no live job asks for.
func (s *Server) DeleteSpec(c *gin.Context, name contract.TheSpec) {
	s.gone(c, s.c.Store.DeleteSpec(c.Request.Context(), me(c).Name, name))
}

// ListVolumes lists by name; a tenant's caller sees what its jobs may mount.
func (s *Server) ListVolumes(c *gin.Context) {
	list, err := s.c.Store.Volumes(c.Request.Context(), me(c).Tenant)
	s.done(c, http.StatusOK, contract.VolumeList{Items: some(list)}, err)
}

// CreateVolume lets jobs mount it.
func (s *Server) CreateVolume(c *gin.Context) {
	var in contract.NewVolume
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	v, err := s.c.Store.CreateVolume(c.Request.Context(), me(c).Name, store.NewVolume{Name: in.Name, Path: in.Path, Claim: in.Claim, Tenant: in.Tenant, Writable: in.Writable, User: in.UserId})
	s.done(c, http.StatusCreated, v, err)
}

// DeleteVolume removes one that no live job mounts.
func (s *Server) DeleteVolume(c *gin.Context, name contract.TheVolume) {
	s.gone(c, s.c.Store.DeleteVolume(c.Request.Context(), me(c).Name, name))
}

// gone answers for what was removed.
func (s *Server) gone(c *gin.Context, err error) {
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Status(http.StatusNoContent)
}

// ListTenants lists by name; a tenant's caller sees its own.
func (s *Server) ListTenants(c *gin.Context) {
	list, err := s.c.Store.Tenants(c.Request.Context())
	id := me(c)
	list = slices.DeleteFunc(list, func(t schema.Tenant) bool { return !id.Sees(t.Name, id.Project) })
	s.done(c, http.StatusOK, contract.TenantList{Items: some(list)}, err)
}

// CreateTenant makes one.
func (s *Server) CreateTenant(c *gin.Context) {
	var in contract.NewTenant
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	t, err := s.c.Store.CreateTenant(c.Request.Context(), me(c).Name, in.Name, in.MaxPriority)
	s.done(c, http.StatusCreated, t, err)
}

// GetTenant reads one.
func (s *Server) GetTenant(c *gin.Context, name contract.TheTenant) {
	if _, _, err := scope(c, &name, nil); err != nil {
		s.fail(c, err)
		return
	}
	t, err := s.c.Store.Tenant(c.Request.Context(), name)
	s.done(c, http.StatusOK, t, err)
}

// UpdateTenant changes what holds for it.
func (s *Server) UpdateTenant(c *gin.Context, name contract.TheTenant) {
	change, err := accountChange(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	t, err := s.c.Store.SetTenant(c.Request.Context(), me(c).Name, name, change)
	s.done(c, http.StatusOK, t, err)
}

// UpdateProject changes what holds for it; a tenant's admin of its own tenant.
func (s *Server) UpdateProject(c *gin.Context, tenant contract.TheTenant, name contract.TheProject) {
	change, err := accountChange(c)
	if err == nil {
		_, _, err = scope(c, &tenant, &name)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	p, err := s.c.Store.SetProject(c.Request.Context(), me(c).Name, tenant, name, change)
	s.done(c, http.StatusOK, p, err)
}

func accountChange(c *gin.Context) (store.AccountChange, error) {
	var in contract.AccountChange
	err := decode(c, &in, false)
	if err == nil && in == (contract.AccountChange{}) {
		err = schema.Invalid("body", "{}", "at least one of weight, max_running_jobs, max_priority, idle_warn_ms and idle_reclaim_ms")
	}
	return store.AccountChange{Weight: in.Weight, MaxRunningJobs: in.MaxRunningJobs, MaxPriority: in.MaxPriority, IdleWarn: in.IdleWarnMs, IdleReclaim: in.IdleReclaimMs}, err
}

// ListProjects lists by name; a member of one project sees that.
func (s *Server) ListProjects(c *gin.Context, tenant contract.TheTenant) {
	ctx := c.Request.Context()
	_, _, err := scope(c, &tenant, nil)
	if err == nil {
		_, err = s.c.Store.Tenant(ctx, tenant)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	list, err := s.c.Store.Projects(ctx, tenant)
	id := me(c)
	list = slices.DeleteFunc(list, func(p schema.Project) bool { return !id.Sees(p.Tenant, p.Name) })
	s.done(c, http.StatusOK, contract.ProjectList{Items: some(list)}, err)
}

// CreateProject makes one; a tenant's admin of its own tenant.
func (s *Server) CreateProject(c *gin.Context, tenant contract.TheTenant) {
	var in contract.NewProject
	err := decode(c, &in, false)
	if err == nil {
		_, _, err = scope(c, &tenant, nil)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	p, err := s.c.Store.CreateProject(c.Request.Context(), me(c).Name, tenant, in.Name)
	s.done(c, http.StatusCreated, p, err)
}

// ListQuotas lists by tenant, project and model. A member of one project sees the tenant's and that project's: both
// hold its jobs.
func (s *Server) ListQuotas(c *gin.Context, p contract.ListQuotasParams) {
	t, pr, err := scope(c, p.Tenant, nil)
	if err != nil {
		s.fail(c, err)
		return
	}
	list, err := s.c.Store.Quotas(c.Request.Context(), t)
	if pr != "" {
		list = slices.DeleteFunc(list, func(q schema.Quota) bool { return q.Project != "" && q.Project != pr })
	}
	s.done(c, http.StatusOK, contract.QuotaList{Items: some(list)}, err)
}

// SetQuota sets one.
func (s *Server) SetQuota(c *gin.Context) {
	var in contract.NewQuota
	err := decode(c, &in, false)
	if err == nil {
		err = s.knownModel(c, "model", in.Model, in.AllowUnknownModel)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	q, err := s.c.Store.SetQuota(c.Request.Context(), me(c).Name, in.Tenant, in.Project, in.Model, in.Guaranteed, in.Limit)
	s.done(c, http.StatusOK, q, err)
}

// DeleteQuota removes one.
func (s *Server) DeleteQuota(c *gin.Context, p contract.DeleteQuotaParams) {
	s.gone(c, s.c.Store.DeleteQuota(c.Request.Context(), me(c).Name, p.Tenant, val(p.Project), p.Model))
}

// ListWindows lists those that have not passed; a tenant's caller sees maintenance, but not of which servers, and its own
// reservations.
func (s *Server) ListWindows(c *gin.Context) {
	list, err := s.c.Store.Windows(c.Request.Context())
	id := me(c)
	list = slices.DeleteFunc(list, func(w schema.Window) bool { return w.Tenant != "" && !id.Sees(w.Tenant, cmp.Or(w.Project, id.Project)) })
	for i := range list {
		if id.Tenant != "" && list[i].Tenant == "" {
			list[i].Servers = []string{}
		}
	}
	s.done(c, http.StatusOK, contract.WindowList{Items: some(list)}, err)
}

// CreateWindow makes one.
func (s *Server) CreateWindow(c *gin.Context) {
	var in contract.NewWindow
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	w, err := s.c.Store.CreateWindow(c.Request.Context(), me(c).Name, schema.Window{Kind: in.Kind, Servers: in.Servers, From: in.From, Until: in.Until, Tenant: in.Tenant, Project: in.Project, Note: in.Note})
	s.done(c, http.StatusCreated, w, err)
}

// DeleteWindow ends one at once.
func (s *Server) DeleteWindow(c *gin.Context, id string) {
	s.gone(c, s.c.Store.DeleteWindow(c.Request.Context(), me(c).Name, id))
}

// ListStops lists those in force; a tenant's caller sees those of the whole pool, of specs and regions, and its own.
func (s *Server) ListStops(c *gin.Context) {
	list, err := s.c.Store.Stops(c.Request.Context())
	id := me(c)
	list = slices.DeleteFunc(list, func(st schema.Stop) bool {
		return st.Tenant != "" && !id.Sees(st.Tenant, cmp.Or(st.Project, id.Project))
	})
	s.done(c, http.StatusOK, contract.StopList{Items: some(list)}, err)
}

// StopQueue closes the queue of a scope.
func (s *Server) StopQueue(c *gin.Context) {
	var in contract.NewStop
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	st, err := s.c.Store.StopQueue(c.Request.Context(), me(c).Name, schema.Stop{Tenant: in.Tenant, Project: in.Project, Spec: in.Spec, Region: in.Region, Why: in.Why, Until: in.Until})
	s.done(c, http.StatusCreated, st, err)
}

// StartQueue ends a stop at once.
func (s *Server) StartQueue(c *gin.Context, id string) {
	s.gone(c, s.c.Store.StartQueue(c.Request.Context(), me(c).Name, id))
}

// ListTokens lists by name, without secrets; a tenant's admin those of its tenant.
func (s *Server) ListTokens(c *gin.Context) {
	list, err := s.c.Store.Tokens(c.Request.Context(), me(c).Tenant)
	s.done(c, http.StatusOK, contract.TokenList{Items: some(list)}, err)
}

// CreateToken makes one. A tenant's admin makes members and viewers of its own tenant, and admins like itself.
func (s *Server) CreateToken(c *gin.Context) {
	var in contract.NewToken
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	id := me(c)
	if !id.Pool() {
		if in.Tenant == "" {
			in.Tenant = id.Tenant
		}
		if in.Tenant != id.Tenant {
			s.fail(c, schema.NotFound("tenant", in.Tenant))
			return
		}
		if auth.Kind(in.Role, in.Tenant)&(auth.TenantAdmin|auth.TenantMember|auth.TenantViewer) == 0 {
			s.fail(c, &schema.Error{Code: schema.CodeForbidden, Field: "role", Message: "a tenant's admin can't make a token of the role " + string(in.Role), Hint: "tenant-admin, tenant-member or viewer"})
			return
		}
	}
	t, secret, err := s.c.Store.CreateToken(c.Request.Context(), id.Name, store.NewToken{Name: in.Name, Role: in.Role, Tenant: in.Tenant, Project: in.Project, ExpiresAt: in.ExpiresAt})
	s.done(c, http.StatusCreated, contract.TokenSecret{Token: t, Secret: secret}, err)
}

// RevokeToken ends one; a tenant's admin one of its tenant.
func (s *Server) RevokeToken(c *gin.Context, idOrName string) {
	t, err := s.c.Store.RevokeToken(c.Request.Context(), me(c).Name, idOrName, me(c).Tenant)
	if err != nil {
		s.fail(c, err)
		return
	}
	s.auth.Forget(t.ID)
	c.Status(http.StatusNoContent)
}
