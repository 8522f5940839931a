package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

// page cuts a sorted list to what follows the entry named after, at most limit; next is the name of the last, where
// there is more.
func page[A any](all []A, name func(A) string, after *string, limit *int) (out []A, next string, err error) {
	n, err := limitOf(limit)
	if err != nil {
		return nil, "", err
	}
	if a := val(after); a != "" {
		i := slices.IndexFunc(all, func(x A) bool { return name(x) == a })
		if i < 0 {
			return nil, "", schema.Invalid("after", a, "the next of a page before")
		}
		all = all[i+1:]
	}
	if len(all) > n {
		return all[:n], name(all[n-1]), nil
	}
	return some(all), "", nil
}

// ListServers lists servers by name.
func (s *Server) ListServers(c *gin.Context, p contract.ListServersParams) {
	f := store.ServerFilter{Region: val(p.Region), Site: val(p.Site), Rack: val(p.Rack), Phase: val(p.Phase)}
	if f.Phase != "" && !schema.Phases.Valid(f.Phase) {
		s.fail(c, schema.Invalid("phase", string(f.Phase), schema.OneOf(schema.Phases.States())))
		return
	}
	all, err := s.c.Store.Servers(c.Request.Context(), f)
	if err != nil {
		s.fail(c, err)
		return
	}
	if m := val(p.Model); m != "" {
		all = slices.DeleteFunc(all, func(v schema.Server) bool { return v.Model != m })
	}
	list, next, err := page(all, func(v schema.Server) string { return v.Name }, p.After, p.Limit)
	s.done(c, http.StatusOK, contract.ServerList{Items: toServers(list), Next: next}, err)
}

// EnrollServer enrols one.
func (s *Server) EnrollServer(c *gin.Context) {
	var in contract.NewServer
	err := decode(c, &in, false)
	if err == nil {
		err = s.knownModel(c, "model", in.Model, in.AllowUnknownModel)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	out, err := s.c.Store.EnrollServers(c.Request.Context(), me(c).Name, s.c.Ring, []store.NewServer{fromNewServer(in)})
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Header("Location", "/v1/servers/"+out[0].ID)
	s.reply(c, http.StatusCreated, toServer(out[0]))
}

// EnrollServers enrols many, all or none.
func (s *Server) EnrollServers(c *gin.Context) {
	in, err := readServers(c)
	if err == nil {
		err = s.knownServers(c, in)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	out, err := s.c.Store.EnrollServers(c.Request.Context(), me(c).Name, s.c.Ring, each(in, fromNewServer))
	s.done(c, http.StatusCreated, contract.ServerList{Items: toServers(out)}, err)
}

// knownServers refuses a bulk enrolment that names a model that nothing has.
func (s *Server) knownServers(c *gin.Context, in []contract.NewServer) error {
	known, err := s.c.Store.KnownModels(c.Request.Context())
	if err != nil {
		return err
	}
	for i, n := range in {
		if n.AllowUnknownModel {
			known = append(known, n.Model)
		}
		if err := schema.CheckModel(fmt.Sprintf("servers[%d].model", i), n.Model, known); err != nil {
			return err
		}
	}
	return nil
}

// GetServer reads one, or waits for it to change.
func (s *Server) GetServer(c *gin.Context, id contract.TheServer, p contract.GetServerParams) {
	ctx := c.Request.Context()
	v, err := s.c.Store.Server(ctx, id)
	if err == nil && p.Wait != nil {
		err = s.changed(ctx, store.TopicServer(v.ID), p.Wait, p.Since, func() (int64, bool, error) {
			v, err = s.c.Store.Server(ctx, v.ID)
			return v.Version, schema.Phases.Final(v.Phase), err
		})
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.tagged(c, v.Version, toServer(v))
}

// ListSteps lists the steps of an onboarding attempt.
func (s *Server) ListSteps(c *gin.Context, id contract.TheServer, p contract.ListStepsParams) {
	ctx := c.Request.Context()
	v, err := s.c.Store.Server(ctx, id)
	if err != nil {
		s.fail(c, err)
		return
	}
	attempt := val(p.Attempt)
	if attempt < 0 || attempt > v.Attempt {
		s.fail(c, schema.Invalid("attempt", attempt, fmt.Sprintf("1 to %d, or 0 for the latest", v.Attempt)))
		return
	}
	if attempt == 0 {
		attempt = v.Attempt
	}
	steps, err := s.c.Store.StepRuns(ctx, v.ID, attempt)
	s.done(c, http.StatusOK, contract.StepList{Attempt: attempt, Items: some(steps)}, err)
}

// act does something to a server and answers the server as it then is.
func (s *Server) act(c *gin.Context, id string, status int, do func(ctx context.Context, v schema.Server) error) {
	ctx := c.Request.Context()
	v, err := s.c.Store.Server(ctx, id)
	if err == nil {
		if err = do(ctx, v); err == nil {
			v, err = s.c.Store.Server(ctx, v.ID)
		}
	}
	s.done(c, status, toServer(v), err)
}

// OnboardServer starts onboarding.
func (s *Server) OnboardServer(c *gin.Context, id contract.TheServer) {
	var in contract.OnboardOptions
	if err := decode(c, &in, true); err != nil {
		s.fail(c, err)
		return
	}
	if in.Profile != "" && !store.NamePattern.MatchString(in.Profile) {
		s.fail(c, schema.Invalid("profile", in.Profile, "an install profile's name"))
		return
	}
	s.act(c, id, http.StatusAccepted, func(ctx context.Context, v schema.Server) error {
		// Asked here too, so that the refusal is at once; the record asks again in the transaction that begins.
		if v.Phase == schema.PhaseOnboarding {
			return schema.Conflict("server "+v.Name+" is onboarding already", "watch it; where it has stopped, retry or skip the step, or abort")
		}
		if err := schema.Phases.Check("server "+v.Name, v.Phase, schema.PhaseOnboarding); err != nil {
			return err
		}
		if v.Protected {
			return schema.Unsafe("server "+v.Name+" is protected", "lift the flag with unprotect, if it may really be wiped")
		}
		return s.c.Processes.StartOnboarding(ctx, v, me(c).Name, OnboardOptions{Profile: in.Profile})
	})
}

// ReinstallServer installs a server of the pool again.
func (s *Server) ReinstallServer(c *gin.Context, id contract.TheServer) {
	var in contract.Reinstall
	if !s.reasoned(c, &in, &in.Reason) {
		return
	}
	s.act(c, id, http.StatusAccepted, func(ctx context.Context, v schema.Server) error {
		return s.c.Processes.Reinstall(ctx, v, me(c).Name, in.Reason, OnboardOptions{Profile: in.Profile})
	})
}

// onboarding refuses a verb of onboarding on a server that is not.
func onboarding(v schema.Server) error {
	if v.Phase != schema.PhaseOnboarding {
		return schema.Conflict(fmt.Sprintf("server %s is %s, not onboarding", v.Name, v.Phase), "there is no step to act on")
	}
	return nil
}

// stepping refuses a verb of steps on a server that goes through none.
func stepping(v schema.Server) error {
	if v.Phase == schema.PhaseRetiring {
		return nil
	}
	return onboarding(v)
}

// RetryStep tries the stopped step again.
func (s *Server) RetryStep(c *gin.Context, id contract.TheServer) {
	s.act(c, id, http.StatusAccepted, func(ctx context.Context, v schema.Server) error {
		if err := stepping(v); err != nil {
			return err
		}
		return s.c.Processes.RetryStep(ctx, v, me(c).Name)
	})
}

// SkipStep goes on without the named step.
func (s *Server) SkipStep(c *gin.Context, id contract.TheServer) {
	var in contract.SkipStep
	if !s.reasoned(c, &in, &in.Reason) {
		return
	}
	if !slices.Contains(schema.Steps, in.Step) && !slices.Contains(schema.RetireSteps, in.Step) {
		s.fail(c, schema.Invalid("step", string(in.Step), schema.OneOf(schema.Steps)+"; of a retirement "+schema.OneOf(schema.RetireSteps)))
		return
	}
	s.act(c, id, http.StatusAccepted, func(ctx context.Context, v schema.Server) error {
		if err := stepping(v); err != nil {
			return err
		}
		return s.c.Processes.SkipStep(ctx, v, in.Step, in.Reason, me(c).Name)
	})
}

// reasoned decodes what a person asks for and checks the reason that he gives for it; where it is false that was refused.
func (s *Server) reasoned(c *gin.Context, in any, reason *string) bool {
	err := decode(c, in, false)
	if err == nil && (strings.TrimSpace(*reason) == "" || len(*reason) > 1000) {
		err = schema.Invalid("reason", *reason, "why, in 1 to 1000 bytes: the next person reads it")
	}
	if err != nil {
		s.fail(c, err)
	}
	return err == nil
}

// AbortOnboarding stops onboarding and undoes it.
func (s *Server) AbortOnboarding(c *gin.Context, id contract.TheServer) {
	s.act(c, id, http.StatusAccepted, func(ctx context.Context, v schema.Server) error {
		if err := onboarding(v); err != nil {
			return err
		}
		return s.c.Processes.AbortOnboarding(ctx, v, me(c).Name)
	})
}

// AcceptDifferences takes a server as it is where it differs from its order.
func (s *Server) AcceptDifferences(c *gin.Context, id contract.TheServer) {
	var in contract.AcceptDifferences
	if !s.reasoned(c, &in, &in.Reason) {
		return
	}
	s.act(c, id, http.StatusAccepted, func(ctx context.Context, v schema.Server) error {
		if err := onboarding(v); err != nil {
			return err
		}
		return s.c.Processes.AcceptDifferences(ctx, v, in.Differences, in.Reason, me(c).Name)
	})
}

// ListDifferences lists in what a server differs from its order.
func (s *Server) ListDifferences(c *gin.Context, id contract.TheServer) {
	ctx := c.Request.Context()
	v, err := s.c.Store.Server(ctx, id)
	var list []schema.Difference
	if err == nil {
		list, err = s.c.Store.Differences(ctx, v.ID)
	}
	s.done(c, http.StatusOK, contract.DifferenceList{Items: some(list)}, err)
}

// RetireServer takes a server out for good.
func (s *Server) RetireServer(c *gin.Context, id contract.TheServer) {
	var in contract.RetireOptions
	if !s.reasoned(c, &in, &in.Reason) {
		return
	}
	s.act(c, id, http.StatusAccepted, func(ctx context.Context, v schema.Server) error {
		_, err := s.c.Store.BeginRetirement(ctx, v.ID, in.Overwrite, in.Reason, me(c).Name)
		return err
	})
}

// GetRetirement reads a server's way out.
func (s *Server) GetRetirement(c *gin.Context, id contract.TheServer) {
	ctx := c.Request.Context()
	v, err := s.c.Store.Server(ctx, id)
	var out contract.RetirementReport
	if err == nil {
		var r schema.Retirement
		var ok bool
		if r, ok, err = s.c.Store.Retirement(ctx, v.ID); ok {
			out.Retirement = &r
		}
	}
	if err == nil {
		out.Certificates, err = s.c.Store.DriveCertificates(ctx, v.ID, 0)
		out.Certificates = some(out.Certificates)
	}
	s.done(c, http.StatusOK, out, err)
}

// PauseOnboarding stops onboarding before a step.
func (s *Server) PauseOnboarding(c *gin.Context, id contract.TheServer) {
	var in contract.PauseOnboarding
	if !s.reasoned(c, &in, &in.Reason) {
		return
	}
	s.act(c, id, http.StatusAccepted, func(ctx context.Context, v schema.Server) error {
		if err := onboarding(v); err != nil {
			return err
		}
		return s.c.Processes.PauseOnboarding(ctx, v, in.Before, in.Reason, me(c).Name)
	})
}

// ContinueOnboarding lets a paused onboarding go on.
func (s *Server) ContinueOnboarding(c *gin.Context, id contract.TheServer) {
	s.act(c, id, http.StatusAccepted, func(ctx context.Context, v schema.Server) error {
		if err := onboarding(v); err != nil {
			return err
		}
		return s.c.Processes.ContinueOnboarding(ctx, v, me(c).Name)
	})
}

// accelerator finds one of the server's by id, serial or slot; empty stays empty.
func (s *Server) accelerator(ctx context.Context, v schema.Server, idOrSerial string) (string, error) {
	if idOrSerial == "" {
		return "", nil
	}
	all, err := s.c.Store.Accelerators(ctx, store.AcceleratorFilter{Server: v.ID})
	if err != nil {
		return "", err
	}
	slot := strings.TrimPrefix(idOrSerial, v.Name+"/")
	var there []schema.Accelerator
	for _, a := range all {
		if a.ID == idOrSerial || a.Serial == idOrSerial {
			return a.ID, nil
		}
		if a.Slot != "" && a.Slot == slot {
			there = append(there, a)
		}
	}
	switch len(there) {
	case 0:
	case 1:
		return there[0].ID, nil
	default: // the part that was taken out is known until its successor is proven
		return "", schema.Conflict(fmt.Sprintf("slot %s of server %s is that of %d accelerators", slot, v.Name, len(there)), fmt.Sprintf("name the part by its serial: %s or %s", there[0].Serial, there[1].Serial))
	}
	return "", schema.NotFound("accelerator of server "+v.Name, idOrSerial)
}

// CordonServer keeps new jobs off.
func (s *Server) CordonServer(c *gin.Context, id contract.TheServer) {
	var in contract.NewCordon
	if !s.reasoned(c, &in, &in.Reason) {
		return
	}
	ctx := c.Request.Context()
	v, err := s.c.Store.Server(ctx, id)
	if err != nil {
		s.fail(c, err)
		return
	}
	acc, err := s.accelerator(ctx, v, in.Accelerator)
	if err != nil {
		s.fail(c, err)
		return
	}
	cordon, err := s.c.Store.Cordon(ctx, v.ID, acc, schema.CordonOperator, me(c).Name, in.Reason)
	s.done(c, http.StatusOK, cordon, err)
}

// UncordonServer lifts the operator's cordon.
func (s *Server) UncordonServer(c *gin.Context, id contract.TheServer) {
	var in contract.Uncordon
	if err := decode(c, &in, true); err != nil {
		s.fail(c, err)
		return
	}
	s.act(c, id, http.StatusOK, func(ctx context.Context, v schema.Server) error {
		acc, err := s.accelerator(ctx, v, in.Accelerator)
		if err != nil {
			return err
		}
		return s.c.Store.Uncordon(ctx, v.ID, acc, schema.CordonOperator, me(c).Name)
	})
}

// DrainServer lets running jobs end.
func (s *Server) DrainServer(c *gin.Context, id contract.TheServer) {
	var in contract.Why
	if !s.reasoned(c, &in, &in.Reason) {
		return
	}
	s.act(c, id, http.StatusAccepted, func(ctx context.Context, v schema.Server) error {
		return s.c.Store.Drain(ctx, v.ID, me(c).Name, in.Reason)
	})
}

// UndrainServer takes a drain back.
func (s *Server) UndrainServer(c *gin.Context, id contract.TheServer) {
	s.act(c, id, http.StatusOK, func(ctx context.Context, v schema.Server) error {
		return s.c.Store.Undrain(ctx, v.ID, me(c).Name)
	})
}

// BurnInServer proves a server's accelerators.
func (s *Server) BurnInServer(c *gin.Context, id contract.TheServer) {
	ctx := c.Request.Context()
	v, err := s.c.Store.Server(ctx, id)
	var r schema.Repair
	if err == nil {
		r, err = s.c.Processes.BurnIn(ctx, v, me(c).Name)
	}
	s.done(c, http.StatusAccepted, r, err)
}

// ProtectServer refuses every destructive step from now on.
func (s *Server) ProtectServer(c *gin.Context, id contract.TheServer) { s.protect(c, id, true) }

// UnprotectServer allows them again.
func (s *Server) UnprotectServer(c *gin.Context, id contract.TheServer) { s.protect(c, id, false) }

func (s *Server) protect(c *gin.Context, id string, on bool) {
	s.act(c, id, http.StatusOK, func(ctx context.Context, v schema.Server) error {
		return s.c.Store.Protect(ctx, v.ID, on, me(c).Name)
	})
}

// serverID turns a query's id or name into the id; empty stays empty.
func (s *Server) serverID(ctx context.Context, idOrName *string) (string, error) {
	if val(idOrName) == "" {
		return "", nil
	}
	v, err := s.c.Store.Server(ctx, *idOrName)
	return v.ID, err
}

// ListAccelerators lists by server and index.
func (s *Server) ListAccelerators(c *gin.Context, p contract.ListAcceleratorsParams) {
	ctx := c.Request.Context()
	f := store.AcceleratorFilter{Model: val(p.Model), Health: val(p.Health), Removed: val(p.Removed)}
	if f.Health != "" && !schema.Healths.Valid(f.Health) {
		s.fail(c, schema.Invalid("health", string(f.Health), schema.OneOf(schema.Healths.States())))
		return
	}
	var err error
	if f.Server, err = s.serverID(ctx, p.Server); err != nil {
		s.fail(c, err)
		return
	}
	all, err := s.c.Store.Accelerators(ctx, f)
	if err != nil {
		s.fail(c, err)
		return
	}
	list, next, err := page(all, func(a schema.Accelerator) string { return a.ID }, p.After, p.Limit)
	s.done(c, http.StatusOK, contract.AcceleratorList{Items: list, Next: next}, err)
}

// ListCordons lists the live ones.
func (s *Server) ListCordons(c *gin.Context, p contract.ListCordonsParams) {
	ctx := c.Request.Context()
	id, err := s.serverID(ctx, p.Server)
	if err != nil {
		s.fail(c, err)
		return
	}
	list, err := s.c.Store.Cordons(ctx, id)
	s.done(c, http.StatusOK, contract.CordonList{Items: some(list)}, err)
}
