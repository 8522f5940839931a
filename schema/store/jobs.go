package store

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm/clause"

	"gpupool/schema"
)

// NewJob is a job as it is submitted.
type NewJob struct {
	Tenant, Project, Name, Spec string
	Kind                        schema.JobKind // empty = JobBatch
	Nodes, Priority             int
	Preemptible                 bool
	Same                        string // "", nvlink, rack, site, region
	SameRequired                bool
	Region                      string // empty = the only region there is
	Command                     []string
	Env                         map[string]string
	WorkDir                     string
	Image                       string // container image that the command runs in
	Network                     string // "", host, none
	Mounts                      []schema.Mount
	TimeLimit, MaxQueue, Grace  time.Duration
	NotBefore                   schema.Instant
	Held                        bool
	DependsOn                   []schema.Dependency // jobs of the same tenant; an empty condition is AfterOK
	Array                       string
	ArrayLimit                  int
	RequeueLimit                *int // nil = DefaultRequeueLimit
}

// Limits of a job.
const (
	MaxNodes            = 4096
	MaxPriority         = 1000
	DefaultRequeueLimit = 3
	DefaultGrace        = 10 * time.Second
	MaxTimeLimit        = 365 * 24 * time.Hour
	MaxDependencies     = 100
)

// noNUL: the kernel ends each argument, variable and path at its first NUL byte (execve(2)), PostgreSQL refuses it.
const noNUL = "text without NUL bytes"

// imageName is what names an image (OCI distribution specification, and what container runtimes read): a path with an
// optional host before it, and a tag, a digest or both after it.
var imageName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?(/[a-z0-9._-]+)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?$`)

func (n *NewJob) check() error {
	if n.Nodes < 1 || n.Nodes > MaxNodes {
		return schema.Invalid("nodes", n.Nodes, fmt.Sprintf("1 to %d", MaxNodes))
	}
	if n.Priority < 0 || n.Priority > MaxPriority {
		return schema.Invalid("priority", n.Priority, fmt.Sprintf("0 to %d", MaxPriority))
	}
	if len(n.Name) > 200 {
		return schema.Invalid("name", n.Name, "at most 200 characters")
	}
	if len(n.Command) == 0 || n.Command[0] == "" {
		return schema.Invalid("command", "", "the program and its arguments, as a list")
	}
	size := 0
	for i, a := range n.Command {
		if strings.ContainsRune(a, 0) {
			return schema.Invalid(fmt.Sprintf("command[%d]", i), a, noNUL)
		}
		size += len(a)
	}
	for k, v := range n.Env {
		if strings.ContainsRune(v, 0) {
			return schema.Invalid("env", k, "values without NUL bytes")
		}
		if k == "" || !envName(k) {
			return schema.Invalid("env", k, "names of letters, digits and _, not beginning with a digit")
		}
		if strings.ContainsRune(v, 0) {
			return schema.Invalid("env."+k, v, noNUL)
		}
		size += len(k) + len(v)
	}
	if strings.ContainsRune(n.WorkDir, 0) {
		return schema.Invalid("work_dir", n.WorkDir, noNUL)
	}
	if n.Image != "" && !imageName.MatchString(n.Image) {
		return schema.Invalid("image", n.Image, "an image's reference, such as pytorch:2.9 or images.example.net/team/train@sha256:...")
	}
	if n.WorkDir != "" && !schema.CleanPath(n.WorkDir) && n.WorkDir != "/" {
		return schema.Invalid("work_dir", n.WorkDir, "an absolute path without . and .., such as /data/run7")
	}
	if err := checkMounts(n.Mounts); err != nil {
		return err
	}
	switch n.Network {
	case "", "none":
	case "host":
		n.Network = "" // which says the same
	default:
		return schema.Invalid("network", n.Network, "host or none")
	}
	if size > 128<<10 {
		return schema.Invalid("command", fmt.Sprintf("%d bytes", size), "command and env of at most 128 KiB together")
	}
	switch n.Same {
	case "", "nvlink", "rack", "site", "region":
	default:
		return schema.Invalid("same", n.Same, "nvlink, rack, site or region, or nothing")
	}
	for _, d := range []struct {
		field string
		v     time.Duration
	}{{"time_limit", n.TimeLimit}, {"max_queue", n.MaxQueue}, {"grace", n.Grace}} {
		if d.v < 0 || d.v > MaxTimeLimit {
			return schema.Invalid(d.field, d.v, "0 for none, at most 8760h")
		}
	}
	if err := schema.CheckMoment("not_before", n.NotBefore); err != nil {
		return err
	}
	if len(n.DependsOn) > MaxDependencies {
		return schema.Invalid("depends_on", len(n.DependsOn), fmt.Sprintf("at most %d jobs", MaxDependencies))
	}
	seen := map[string]bool{}
	for i := range n.DependsOn {
		d := &n.DependsOn[i]
		if d.Condition == "" {
			d.Condition = schema.AfterOK
		}
		if !d.Condition.Valid() {
			return schema.Invalid(fmt.Sprintf("depends_on[%d].condition", i), string(d.Condition), "afterok, afternotok or afterany")
		}
		if seen[d.Job] {
			return schema.Invalid(fmt.Sprintf("depends_on[%d].job", i), d.Job, "each job once")
		}
		seen[d.Job] = true
	}
	if n.Array != "" && !NamePattern.MatchString(n.Array) {
		return schema.Invalid("array", n.Array, nameRight)
	}
	if n.ArrayLimit < 0 || n.ArrayLimit > MaxQuota || n.ArrayLimit > 0 && n.Array == "" {
		return schema.Invalid("array_limit", n.ArrayLimit, fmt.Sprintf("1 to %d with an array, or 0 for no limit", MaxQuota))
	}
	if n.Kind == "" {
		n.Kind = schema.JobBatch
	}
	if !n.Kind.Valid() {
		return schema.Invalid("kind", string(n.Kind), "batch or service")
	}
	if n.Kind == schema.JobService {
		if err := n.checkService(); err != nil {
			return err
		}
	}
	if n.Grace == 0 {
		n.Grace = DefaultGrace
	}
	if n.RequeueLimit == nil {
		d := DefaultRequeueLimit
		n.RequeueLimit = &d
	}
	if *n.RequeueLimit < 0 || *n.RequeueLimit > 1000 {
		return schema.Invalid("requeue_limit", *n.RequeueLimit, "0 to 1000")
	}
	return nil
}

func envName(s string) bool {
	for i, c := range s {
		if !(c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || i > 0 && c >= '0' && c <= '9') {
			return false
		}
	}
	return true
}

// SubmitJob stores a job and the event that starts its workflow, in one transaction. The same tenant's same key with
// the same body is the same job, for ever; with another body it is refused.
func (s *Store) SubmitJob(ctx context.Context, by, idempotencyKey, bodyHash string, in NewJob) (job schema.Job, created bool, err error) {
	if err := in.check(); err != nil {
		return job, false, err
	}
	err = s.Write(ctx, func(tx *Tx) error {
		job, created = schema.Job{}, false
		id := NewID("job", tx.now)
		if idempotencyKey != "" {
			before, err := tx.repeated(in.Tenant, idempotencyKey, bodyHash, id)
			if err != nil {
				return err
			}
			if before != "" {
				return one(tx.db.Where("id = ?", before).Take(&job).Error, "job", before)
			}
		}
		if job, err = tx.newJob(by, in); err != nil {
			return err
		}
		job.ID = id
		if err := tx.db.Raw("UPDATE job_seq SET seq = seq + 1 WHERE one = 1 RETURNING seq").Scan(&job.Seq).Error; err != nil {
			return err
		}
		created = true
		tx.Emit(schema.Event{Kind: schema.EventJobSubmitted, Subject: id, Job: id, Tenant: job.Tenant, By: by}, map[string]any{"spec": job.Spec, "nodes": job.Nodes})
		return tx.db.Create(&job).Error
	})
	return job, created, err
}

// newJob is a job as it is asked for, checked against what there is, but for its id and its place by submit order.
func (tx *Tx) newJob(by string, in NewJob) (job schema.Job, err error) {
	command, err := json.Marshal(in.Command)
	if err != nil {
		return job, err
	}
	if in.Env == nil {
		in.Env = map[string]string{}
	}
	env, err := json.Marshal(in.Env)
	if err != nil {
		return job, err
	}
	most, err := tx.priorityCap(in.Tenant, in.Project)
	if err != nil {
		return job, err
	}
	var spec schema.Spec
	db := tx.db
	if tx.s.postgres { // it can't be deleted before this job is seen
		db = db.Clauses(clause.Locking{Strength: "KEY SHARE"})
	}
	if err := db.Where("name = ?", in.Spec).Take(&spec).Error; err != nil {
		if !isNoRows(err) {
			return job, err
		}
		return job, tx.unknownSpec(in.Spec)
	}
	if spec.RetiredAt != 0 && spec.RetiredAt <= tx.now {
		return job, &schema.Error{Code: schema.CodeInvalid, Field: "spec", Message: fmt.Sprintf("%q is retired since %s", in.Spec, spec.RetiredAt), Hint: "list the specs and choose another"}
	}
	limit, err := limitOf(spec, in.TimeLimit)
	if err != nil {
		return job, err
	}
	if in.Kind == schema.JobService && in.TimeLimit == 0 && limit > 0 {
		return job, schema.Invalid("spec", in.Spec, fmt.Sprintf("a spec without a longest time: jobs of this one end after %s, and a service does not end. Or give a time limit, after which it does", schema.Setting(limit)))
	}
	for i, d := range in.DependsOn {
		var n int64
		if err := tx.db.Raw("SELECT count(*) FROM jobs WHERE id = ? AND tenant = ?", d.Job, in.Tenant).Scan(&n).Error; err != nil {
			return job, err
		}
		if n == 0 {
			return job, schema.Invalid(fmt.Sprintf("depends_on[%d].job", i), d.Job, "a job of tenant "+in.Tenant)
		}
	}
	region, err := tx.region(in.Region)
	if err != nil {
		return job, err
	}
	if in.Kind == schema.JobService {
		if err := tx.servesIn(region, spec.Model); err != nil {
			return job, err
		}
	}
	volumes, err := tx.mountsOf(in.Tenant, in.Mounts)
	if err != nil {
		return job, err
	}
	needs := schema.Needs(in.Kind, in.Image, in.Network, in.Mounts, volumes)
	if in.ArrayLimit, err = tx.arrayLimit(in); err != nil {
		return job, err
	}
	heldBy := ""
	if in.Held {
		heldBy = by
	}
	reason, _ := json.Marshal(schema.ReasonDoc{Code: schema.ReasonNotEvaluated, Class: "in progress", Since: tx.now, EvaluatedAt: tx.now, ClearsWhen: "the allocator's next cycle has seen the job"})
	job = schema.Job{Tenant: in.Tenant, Project: in.Project, Name: in.Name, Kind: in.Kind, Spec: spec.Name, Model: spec.Model, Nodes: in.Nodes, PerNode: spec.Accelerators,
		Priority: min(in.Priority, most), AskedPriority: in.Priority, Preemptible: in.Preemptible, Same: in.Same, SameRequired: in.SameRequired, Region: region, Command: string(command), Env: string(env), WorkDir: in.WorkDir, Image: in.Image, Network: in.Network, Mounts: in.Mounts, Needs: needs,
		TimeLimit: limit.Milliseconds(), MaxQueue: in.MaxQueue.Milliseconds(), Grace: in.Grace.Milliseconds(), NotBefore: in.NotBefore, Held: in.Held, HeldBy: heldBy, RequeueLimit: *in.RequeueLimit,
		DependsOn: in.DependsOn, Array: in.Array, ArrayLimit: in.ArrayLimit,
		State: schema.JobQueued, Reason: string(reason), SubmittedBy: by, SubmittedAt: tx.now}
	return job, nil
}

// arrayLimit is the limit of the array that a job joins: an array has one. A job that names none takes it, and one that names
// another is refused.
func (tx *Tx) arrayLimit(in NewJob) (int, error) {
	if in.Array == "" {
		return in.ArrayLimit, nil
	}
	if err := tx.exclusive(arrayLock(in.Tenant, in.Project, in.Array)); err != nil {
		return 0, err
	}
	var there []struct {
		ArrayLimit int
		Kind       schema.JobKind
	}
	if err := tx.db.Raw("SELECT array_limit, kind FROM jobs WHERE "+inArray+" AND ended_at = 0 LIMIT 1", in.Tenant, in.Project, in.Array).Scan(&there).Error; err != nil {
		return 0, err
	}
	switch {
	case len(there) > 0 && there[0].Kind != in.Kind:
		return 0, schema.Conflict(fmt.Sprintf("array %q is of %s jobs", in.Array, there[0].Kind), "give this one another array")
	case len(there) == 0 || there[0].ArrayLimit == in.ArrayLimit:
		return in.ArrayLimit, nil
	case in.ArrayLimit == 0:
		return there[0].ArrayLimit, nil
	}
	was := "no limit"
	if limit := there[0].ArrayLimit; limit > 0 {
		was = fmt.Sprintf("the limit %d", limit)
	}
	return 0, schema.Conflict(fmt.Sprintf("array %q has %s, not %d", in.Array, was, in.ArrayLimit), "submit without a limit to join it, or change the array's: gpupool array limit "+in.Array+" N")
}

// arrayLock names the lock under which an array begins, is joined, and gets another limit.
func arrayLock(tenant, project, name string) string {
	return "array " + tenant + "/" + project + "/" + name
}

// limitOf is the time limit of a job of a spec that asks for one, or with 0 for none.
func limitOf(spec schema.Spec, asked time.Duration) (time.Duration, error) {
	most := time.Duration(spec.MaxTime) * time.Millisecond
	switch {
	case most == 0:
		return asked, nil
	case asked > most:
		return 0, schema.Invalid("time_limit", schema.Setting(asked), fmt.Sprintf("at most %s, the longest of spec %s", schema.Setting(most), spec.Name))
	case asked == 0:
		return most, nil
	}
	return asked, nil
}

func (tx *Tx) unknownSpec(name string) error {
	var names []string
	if err := tx.db.Raw("SELECT name FROM specs WHERE retired_at = 0 ORDER BY name").Scan(&names).Error; err != nil {
		return err
	}
	return &schema.Error{Code: schema.CodeInvalid, Field: "spec", Message: fmt.Sprintf("%q is not a spec", name), Hint: schema.OneOf(names)}
}

// regions are those that there are servers in. Each is found by the index: there are few, of many servers.
const regions = `WITH RECURSIVE found (region) AS (
	SELECT min(region) FROM servers UNION ALL SELECT (SELECT min(s.region) FROM servers s WHERE s.region > found.region) FROM found WHERE found.region IS NOT NULL
) SELECT region FROM found WHERE region IS NOT NULL`

// region is the one named, or the only one.
func (tx *Tx) region(name string) (string, error) {
	var there []string
	if err := tx.db.Raw(regions).Scan(&there).Error; err != nil {
		return "", err
	}
	if name == "" && len(there) == 1 {
		return there[0], nil
	}
	if name == "" || !slices.Contains(there, name) {
		return "", schema.Invalid("region", name, schema.OneOf(there))
	}
	return name, nil
}

// Job finds one by id.
func (s *Store) Job(ctx context.Context, id string) (schema.Job, error) {
	var j schema.Job
	return j, one(s.read(ctx).Where("id = ?", id).Take(&j).Error, "job", id)
}

// JobFilter narrows Jobs; empty fields don't.
type JobFilter struct {
	Tenant, Project, Region string
	Array                   string // its name
	State                   schema.JobState
	Live                    bool  // not ended
	Before                  int64 // only jobs with a lower Seq; 0 = from the newest
	Limit                   int   // 0 = 100
	Oldest                  bool  // oldest first, as the queue is read
}

// Jobs lists the newest first.
func (s *Store) Jobs(ctx context.Context, f JobFilter) ([]schema.Job, error) {
	if f.Limit <= 0 {
		f.Limit = 100
	}
	q := s.read(ctx).Limit(f.Limit)
	if f.Oldest {
		q = q.Order("seq")
	} else {
		q = q.Order("seq DESC")
	}
	for col, v := range map[string]string{"tenant": f.Tenant, "project": f.Project, "region": f.Region, "state": string(f.State), "array_name": f.Array} {
		if v != "" {
			q = q.Where(col+" = ?", v)
		}
	}
	if f.Array != "" {
		q = q.Where("array_name <> ''") // see inArray
	}
	if f.Live || f.State != "" && !f.State.Ended() {
		q = q.Where("ended_at = 0") // the index of live jobs, however many have ended
	}
	if f.Before > 0 {
		q = q.Where("seq < ?", f.Before)
	}
	var out []schema.Job
	return out, q.Find(&out).Error
}

// Attempts of a job, first to last.
func (s *Store) Attempts(ctx context.Context, job string) ([]schema.Attempt, error) {
	var out []schema.Attempt
	return out, s.read(ctx).Where("job = ?", job).Order("attempt").Find(&out).Error
}

// JobAllocations are all that a job ever held.
func (s *Store) JobAllocations(ctx context.Context, job string) ([]schema.Allocation, error) {
	var out []schema.Allocation
	return out, s.read(ctx).Where("job = ?", job).Order("attempt, server, accelerator").Find(&out).Error
}

// DeviceName says where an accelerator is, in people's words: the server that holds it and its slot there.
type DeviceName struct{ Accelerator, Server, Slot string }

// JobDevices names every accelerator that a job ever held.
func (s *Store) JobDevices(ctx context.Context, job string) (map[string]DeviceName, error) {
	var rows []DeviceName
	err := s.read(ctx).Raw(`SELECT DISTINCT a.accelerator, v.name AS server, x.slot FROM allocations a JOIN servers v ON v.id = a.server JOIN accelerators x ON x.id = a.accelerator WHERE a.job = ?`, job).Scan(&rows).Error
	out := make(map[string]DeviceName, len(rows))
	for _, r := range rows {
		out[r.Accelerator] = r
	}
	return out, err
}

// JobsNamed are those of a name, at most 50: the live ones first, then the newest first; only those of the tenant and project where these are not
// empty.
func (s *Store) JobsNamed(ctx context.Context, tenant, project, name string) ([]schema.Job, error) {
	q := s.read(ctx).Where("name = ? AND name <> ''", name).Order("CASE WHEN ended_at = 0 THEN 0 ELSE 1 END, seq DESC").Limit(50)
	if tenant != "" {
		q = q.Where("tenant = ?", tenant)
	}
	if project != "" {
		q = q.Where("project = ?", project)
	}
	var out []schema.Job
	return out, q.Find(&out).Error
}

// JobTasks are the tasks of one attempt, in the order of rank; of the newest where attempt is 0.
func (s *Store) JobTasks(ctx context.Context, job string, attempt int) ([]schema.Task, error) {
	q := s.read(ctx).Where("job = ?", job).Order("id")
	if attempt == 0 {
		q = q.Where("attempt = (SELECT attempt FROM jobs WHERE id = ?)", job)
	} else {
		q = q.Where("attempt = ?", attempt)
	}
	var out []schema.Task
	return out, q.Find(&out).Error
}

// RunTaskID is the id of one node's part of an attempt.
func RunTaskID(job string, attempt, rank int) string {
	return fmt.Sprintf("job/%s/%d/%04d", job, attempt, rank)
}

// RunTask is one node's part of an attempt; of a service the newest, which is the one that was begun last.
func (s *Store) RunTask(ctx context.Context, job string, attempt, rank int) (schema.Task, error) {
	var t schema.Task
	id := RunTaskID(job, attempt, rank)
	return t, one(s.read(ctx).Where("job = ? AND attempt = ? AND (id = ? OR id LIKE ?)", job, attempt, id, id+"/%").Order("restarts DESC").Take(&t).Error, "task", id)
}

// HoldJob keeps a queued job from being started.
func (s *Store) HoldJob(ctx context.Context, job, by string) error {
	return s.hold(ctx, job, by, true)
}

// UnholdJob lets it go.
func (s *Store) UnholdJob(ctx context.Context, job, by string) error {
	return s.hold(ctx, job, by, false)
}

func (s *Store) hold(ctx context.Context, job, by string, on bool) error {
	return s.Write(ctx, func(tx *Tx) error {
		j, err := tx.job(job)
		if err != nil {
			return err
		}
		if j.State != schema.JobQueued {
			return schema.Conflict(fmt.Sprintf("job %s is %s", job, j.State), "only a queued job is held or released")
		}
		if j.Held == on {
			return nil
		}
		return tx.setHeld(&j, by, on)
	})
}

func (tx *Tx) setHeld(j *schema.Job, by string, on bool) error {
	j.Held, j.HeldBy = on, ""
	kind := schema.EventJobUnheld
	if on {
		j.HeldBy, kind = by, schema.EventJobHeld
	}
	tx.Emit(schema.Event{Kind: kind, Subject: j.ID, Job: j.ID, Tenant: j.Tenant, By: by}, nil)
	return tx.saveJob(j)
}

// SetTimeLimit changes how long the job may run; 0 = no limit. A running job whose new limit has passed is stopped; a longer
// limit is a CodeConflict error where a budget does not cover it.
func (s *Store) SetTimeLimit(ctx context.Context, job string, limit time.Duration, by string) error {
	if limit < 0 || limit > MaxTimeLimit {
		return schema.Invalid("time_limit", limit, "0 for none, at most 8760h")
	}
	budgets, err := s.budgetsOf(ctx, job)
	if err != nil {
		return err
	}
	return s.Write(ctx, func(tx *Tx) error {
		j, err := tx.job(job)
		if err != nil {
			return err
		}
		if j.State.Ended() {
			return schema.Conflict(fmt.Sprintf("job %s is %s", job, j.State), "its time limit no longer matters")
		}
		var spec schema.Spec
		if err := one(tx.db.Where("name = ?", j.Spec).Take(&spec).Error, "spec", j.Spec); err != nil {
			return err
		}
		if limit, err = limitOf(spec, limit); err != nil {
			return err
		}
		if err := tx.coverLimit(j, limit, budgets); err != nil {
			return err
		}
		j.TimeLimit = limit.Milliseconds()
		tx.Emit(schema.Event{Kind: schema.EventJobLimit, Subject: job, Job: job, Tenant: j.Tenant, By: by}, map[string]any{"time_limit_ms": j.TimeLimit, "attempt": j.Attempt})
		return tx.saveJob(&j)
	})
}

// Checkpoint notes that the job's running attempt has saved its work now: where someone must be stopped for another, the
// work since then is what is lost.
func (s *Store) Checkpoint(ctx context.Context, job, by string) error {
	return s.Write(ctx, func(tx *Tx) error {
		j, err := tx.job(job)
		if err != nil {
			return err
		}
		if j.State != schema.JobRunning && j.State != schema.JobStopping {
			return schema.Conflict(fmt.Sprintf("job %s is %s", job, j.State), "only a job that runs has work to save")
		}
		tx.Emit(schema.Event{Kind: schema.EventJobCheckpoint, Subject: job, Job: job, Tenant: j.Tenant, By: by}, map[string]any{"attempt": j.Attempt})
		return tx.update("attempt of job", job, "UPDATE attempts SET checkpoint_at = ? WHERE job = ? AND attempt = ?", tx.now, job, j.Attempt)
	})
}
