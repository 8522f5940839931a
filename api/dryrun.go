package api

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

// dryRunWait is how long an allocator is given to answer. One that serves answers within a second.
const dryRunWait = 5 * time.Second

// DryRunJob says what would become of a job if it were submitted now.
func (s *Server) DryRunJob(c *gin.Context) {
	var in contract.NewJob
	err := decode(c, &in, false)
	if err == nil {
		err = s.resolve(c, &in)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	q, err := s.c.Store.AskDryRun(ctx, me(c).Name, fromNewJob(in))
	if err != nil {
		s.fail(c, err)
		return
	}
	a, err := s.dryRunAnswer(ctx, q.ID)
	// Also where the caller has gone.
	if gone := s.c.Store.ForgetDryRun(context.WithoutCancel(ctx), q.ID); err == nil {
		err = gone
	}
	if err == nil && a == nil {
		err = &schema.Error{Code: schema.CodeUnavailable, Message: "the allocator of region " + q.Job.Region + " did not answer", Hint: "nothing starts there for now: ask an operator whether its allocator runs"}
	}
	var out contract.DryRun
	if err == nil {
		out, err = s.toDryRun(ctx, q, *a, me(c))
	}
	s.done(c, http.StatusOK, out, err)
}

// dryRunAnswer waits for it; nil where none comes. The allocator may be of another process, whose word is looked for.
func (s *Server) dryRunAnswer(ctx context.Context, id string) (a *store.DryRunAnswer, err error) {
	for end := time.Now().Add(dryRunWait); a == nil && err == nil && time.Now().Before(end); {
		err = s.until(ctx, store.TopicDryRun(id), 100*time.Millisecond, func() (bool, error) {
			a, err = s.c.Store.DryRunAnswered(ctx, id)
			return a != nil, err
		})
		select {
		case <-ctx.Done():
			return a, ctx.Err()
		case <-s.stopping:
			return a, err
		default:
		}
	}
	return a, err
}

// toDryRun shows an answer to id: of another tenant's victim only what it holds.
func (s *Server) toDryRun(ctx context.Context, q store.DryRun, a store.DryRunAnswer, id auth.Identity) (contract.DryRun, error) {
	out := contract.DryRun{At: a.At, Cycle: a.Cycle, Region: q.Job.Region, Priority: q.Job.Priority, TimeLimitMs: q.Job.TimeLimit, Starts: a.Starts, Places: []contract.DryRunPlace{}, Victims: []contract.DryRunVictim{}}
	var devices []string
	for _, p := range a.Places {
		devices = append(devices, p.Accelerators...)
	}
	names, err := s.c.Store.AcceleratorNames(ctx, devices)
	if err != nil {
		return out, err
	}
	for _, p := range a.Places {
		place := contract.DryRunPlace{Slots: []string{}}
		for _, x := range p.Accelerators {
			place.Server = names[x].Server
			place.Slots = append(place.Slots, names[x].Slot)
		}
		out.Places = append(out.Places, place)
	}
	for _, v := range a.Victims {
		j, err := s.c.Store.Job(ctx, v.Job)
		if err != nil {
			return out, err
		}
		shown := contract.DryRunVictim{Job: j.ID, Name: j.Name, Tenant: j.Tenant, Accelerators: j.Accelerators(), Why: contract.DryRunVictimWhy(v.Why), GraceUntil: v.GraceUntil, LostGpuMs: v.LostWork}
		if !id.Sees(j.Tenant, j.Project) {
			shown.Job, shown.Name = schema.AnotherJob, ""
			if !id.Pool() && j.Tenant != id.Tenant {
				shown.Tenant = ""
			}
		}
		out.Victims = append(out.Victims, shown)
	}
	if a.Reason != nil {
		r := *a.Reason
		if !id.Pool() {
			r = redact(r, id.Tenant)
		}
		out.Reason = &r
	}
	return out, nil
}
