package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

// SubmitJob stores a job; its workflow starts by the event that is stored with it.
func (s *Server) SubmitJob(c *gin.Context, p contract.SubmitJobParams) {
	var in contract.NewJob
	err := decode(c, &in, false)
	if err == nil {
		err = s.resolve(c, &in)
	}
	key := val(p.IdempotencyKey)
	if err == nil && p.IdempotencyKey != nil {
		err = checkKey(key)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	// What is hashed is the request as it was understood: other spacing or order of fields is the same request.
	b, err := json.Marshal(in)
	if err != nil {
		s.fail(c, err)
		return
	}
	sum := sha256.Sum256(b)
	j, created, err := s.c.Store.SubmitJob(c.Request.Context(), me(c).Name, key, hex.EncodeToString(sum[:]), fromNewJob(in))
	if err == nil && !me(c).Sees(j.Tenant, j.Project) { // the tenant's key, but of a project that is not the caller's
		err = &schema.Error{Code: schema.CodeReused, Field: "Idempotency-Key", Message: fmt.Sprintf("%q was used for another body", key), Hint: "use a new key for a new job"}
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		c.Header("Location", "/v1/jobs/"+j.ID)
	}
	s.reply(c, status, toJob(j, me(c)))
}

// resolve fills in what the token says and checks what the store does not.
func (s *Server) resolve(c *gin.Context, in *contract.NewJob) error {
	t, p, err := scope(c, &in.Tenant, &in.Project)
	if err != nil {
		return err
	}
	in.Tenant, in.Project = t, p
	if t == "" {
		return schema.Invalid("tenant", "", "a tenant, and a project of it (--tenant, --project): this token is of no tenant")
	}
	if p == "" {
		return schema.Invalid("project", "", "a project of tenant "+t+" (--project): this token is of no project")
	}
	for i, d := range in.DependsOn {
		j, err := s.job(c.Request.Context(), c, d.Job)
		if err != nil {
			if e := (*schema.Error)(nil); errors.As(err, &e) {
				return schema.Invalid(fmt.Sprintf("depends_on[%d].job", i), d.Job, "the id or name of a job of the tenant: "+e.Message)
			}
			return err
		}
		in.DependsOn[i].Job = j.ID
	}
	if in.Nodes == nil {
		one := 1
		in.Nodes = &one
	}
	const most = int64(store.MaxTimeLimit / time.Millisecond)
	for _, d := range []struct {
		field string
		ms    int64
		most  int64
	}{{"time_limit_ms", in.TimeLimitMs, most}, {"max_queue_ms", in.MaxQueueMs, most}, {"grace_ms", in.GraceMs, (24 * time.Hour).Milliseconds()}} {
		if d.ms < 0 || d.ms > d.most {
			return schema.Invalid(d.field, d.ms, fmt.Sprintf("0 to %d milliseconds", d.most))
		}
	}
	if len(in.WorkDir) > 4096 {
		return schema.Invalid("work_dir", in.WorkDir, "a path of at most 4096 bytes")
	}
	if len(in.Command) > 4096 {
		return schema.Invalid("command", len(in.Command), "at most 4096 arguments")
	}
	return nil
}

func checkKey(key string) error {
	ok := len(key) >= 1 && len(key) <= 255
	for _, b := range []byte(key) {
		ok = ok && b >= 0x21 && b <= 0x7e
	}
	if !ok {
		return schema.Invalid("Idempotency-Key", key, "1 to 255 printable ASCII characters without spaces")
	}
	return nil
}

func ms(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func fromNewJob(n contract.NewJob) store.NewJob {
	return store.NewJob{Tenant: n.Tenant, Project: n.Project, Name: n.Name, Kind: n.Kind, Spec: n.Spec, Nodes: *n.Nodes, Priority: n.Priority, Preemptible: n.Preemptible, Same: n.Same, SameRequired: n.SameRequired,
		Region: n.Region, Command: n.Command, Env: n.Env, WorkDir: n.WorkDir, Image: n.Image, Network: n.Network, Mounts: n.Mounts, TimeLimit: ms(n.TimeLimitMs), MaxQueue: ms(n.MaxQueueMs), Grace: ms(n.GraceMs), NotBefore: n.NotBefore, Held: n.Held, RequeueLimit: n.RequeueLimit,
		DependsOn: n.DependsOn, Array: n.Array, ArrayLimit: n.ArrayLimit}
}

// ListJobs lists the newest first.
func (s *Server) ListJobs(c *gin.Context, p contract.ListJobsParams) {
	t, pr, err := scope(c, p.Tenant, p.Project)
	if err != nil {
		s.fail(c, err)
		return
	}
	f := store.JobFilter{Tenant: t, Project: pr, State: val(p.State), Live: val(p.Live), Array: val(p.Array)}
	if f.State != "" && !schema.JobStates.Valid(f.State) {
		s.fail(c, schema.Invalid("state", string(f.State), fmt.Sprintf("one of %v", schema.JobStates.States())))
		return
	}
	n, err := limitOf(p.Limit)
	if err != nil {
		s.fail(c, err)
		return
	}
	if a := val(p.After); a != "" {
		if f.Before, err = strconv.ParseInt(a, 36, 64); err != nil || f.Before <= 0 {
			s.fail(c, schema.Invalid("after", a, "the next of a page before"))
			return
		}
	}
	f.Limit = n + 1 // one more says whether there is more
	jobs, err := s.c.Store.Jobs(c.Request.Context(), f)
	if err != nil {
		s.fail(c, err)
		return
	}
	var out contract.JobList
	if len(jobs) > n {
		jobs = jobs[:n]
		out.Next = strconv.FormatInt(jobs[n-1].Seq, 36)
	}
	id := me(c)
	out.Items = each(jobs, func(j schema.Job) contract.Job { return toJob(j, id) })
	s.reply(c, http.StatusOK, out)
}

// GetJob reads one, or waits for it to change; the wait ends at once where the job has ended.
func (s *Server) GetJob(c *gin.Context, id contract.TheJob, p contract.GetJobParams) {
	ctx := c.Request.Context()
	j, err := s.job(ctx, c, id)
	if err == nil && p.Wait != nil {
		first, id := true, j.ID
		err = s.changed(ctx, store.TopicJob(id), p.Wait, p.Since, func() (int64, bool, error) {
			if first && p.Since != nil && j.Version > *p.Since { // it was read a moment ago, and that is news already
				return j.Version, j.State.Ended(), nil
			}
			first = false
			var err error
			j, err = s.c.Store.Job(ctx, id)
			return j.Version, j.State.Ended(), err
		})
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.tagged(c, j.Version, toJob(j, me(c)))
}

// ListAttempts lists attempts with the accelerators that each held.
func (s *Server) ListAttempts(c *gin.Context, id contract.TheJob) {
	ctx := c.Request.Context()
	j, err := s.job(ctx, c, id)
	if err != nil {
		s.fail(c, err)
		return
	}
	attempts, err := s.c.Store.Attempts(ctx, j.ID)
	if err != nil {
		s.fail(c, err)
		return
	}
	names, err := s.c.Store.JobDevices(ctx, j.ID)
	if err != nil {
		s.fail(c, err)
		return
	}
	all, err := s.c.Store.JobAllocations(ctx, j.ID)
	held := map[int][]contract.Allocation{}
	for _, a := range all {
		held[a.Attempt] = append(held[a.Attempt], toAllocation(a, names[a.Accelerator]))
	}
	s.done(c, http.StatusOK, contract.AttemptList{Items: each(attempts, func(a schema.Attempt) contract.Attempt { return toAttempt(a, held[a.Attempt]) })}, err)
}

// ListJobEvents gives one job's events as a page or a stream.
func (s *Server) ListJobEvents(c *gin.Context, id contract.TheJob, p contract.ListJobEventsParams) {
	j, err := s.job(c.Request.Context(), c, id)
	if err != nil {
		s.fail(c, err)
		return
	}
	id = j.ID
	// The tenant is asked for too: what others did about a foreign id (an audit of a refused call) is not this job's story.
	s.events(c, eventsOf{topic: store.TopicJob(id), filter: store.EventFilter{Job: id, Tenant: j.Tenant}, after: p.After, wait: p.Wait, limit: p.Limit, ended: func(ctx context.Context) (bool, error) {
		j, err := s.c.Store.Job(ctx, id)
		if err != nil || !j.State.Ended() {
			return false, err
		}
		return s.released(ctx, id)
	}})
}

// released reports whether no attempt of the job holds anything.
func (s *Server) released(ctx context.Context, job string) (bool, error) {
	attempts, err := s.c.Store.Attempts(ctx, job)
	for _, a := range attempts {
		if a.ReleasedAt == 0 {
			return false, err
		}
	}
	return err == nil, err
}

// change does something to a job and answers the job as it then is.
func (s *Server) change(c *gin.Context, id string, status int, do func(ctx context.Context, j schema.Job) error) {
	ctx := c.Request.Context()
	j, err := s.job(ctx, c, id)
	if err == nil {
		if err = do(ctx, j); err == nil {
			j, err = s.c.Store.Job(ctx, j.ID)
		}
	}
	s.done(c, status, toJob(j, me(c)), err)
}

// CancelJob asks that the job end. Asking again, or of a job that was cancelled, is no error.
func (s *Server) CancelJob(c *gin.Context, id contract.TheJob) {
	s.change(c, id, http.StatusAccepted, func(ctx context.Context, j schema.Job) error {
		return s.c.Store.RequestStop(ctx, j.ID, 0, schema.AttemptCancelled, me(c).Name, "cancelled by "+me(c).Name)
	})
}

// HoldJob keeps a queued job from starting.
func (s *Server) HoldJob(c *gin.Context, id contract.TheJob) {
	s.change(c, id, http.StatusOK, func(ctx context.Context, j schema.Job) error { return s.c.Store.HoldJob(ctx, j.ID, me(c).Name) })
}

// ReleaseJob lets a held job start.
func (s *Server) ReleaseJob(c *gin.Context, id contract.TheJob) {
	s.change(c, id, http.StatusOK, func(ctx context.Context, j schema.Job) error { return s.c.Store.UnholdJob(ctx, j.ID, me(c).Name) })
}

// CheckpointJob notes that the job has saved its work.
func (s *Server) CheckpointJob(c *gin.Context, id contract.TheJob) {
	s.change(c, id, http.StatusOK, func(ctx context.Context, j schema.Job) error { return s.c.Store.Checkpoint(ctx, j.ID, me(c).Name) })
}

// SetTimeLimit changes how long the job may run.
func (s *Server) SetTimeLimit(c *gin.Context, id contract.TheJob) {
	var in contract.TimeLimit
	err := decode(c, &in, false)
	if most := store.MaxTimeLimit.Milliseconds(); err == nil && (in.TimeLimitMs < 0 || in.TimeLimitMs > most) {
		err = schema.Invalid("time_limit_ms", in.TimeLimitMs, fmt.Sprintf("0 for none, to %d milliseconds", most))
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.change(c, id, http.StatusOK, func(ctx context.Context, j schema.Job) error {
		return s.c.Store.SetTimeLimit(ctx, j.ID, ms(in.TimeLimitMs), me(c).Name)
	})
}
