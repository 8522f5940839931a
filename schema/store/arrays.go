package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpupool/schema"
)

// MaxArray is the most jobs that one array is submitted with.
const MaxArray = 10_000

// Array is the jobs of a project that share an array's name, as they are now.
type Array struct {
	Tenant, Project, Name, Spec, Region string
	Kind                                schema.JobKind // service: its jobs are a service's replicas
	Nodes                               int
	Limit                               int // at most so many hold accelerators at once; 0 = no limit
	Jobs                                int
	States                              map[schema.JobState]int // how many jobs are in each
	Held                                int                     // of the queued ones
	Restarts                            int                     // of a service: see schema.Job
	SubmittedBy                         string
	SubmittedAt                         schema.Instant
	EndedAt                             schema.Instant // of the last one; 0 while one lives
}

// inArray is the condition that a job is one of an array. SQLite uses an index of some rows only where the statement says in
// the index's own words that no others are meant.
const inArray = "tenant = ? AND project = ? AND array_name = ? AND array_name <> ''"

// ParseIndices reads "0-99", "1,3,7-9" or "0-90:10" (from, to, step), each index once and 0 or more, at most MaxArray.
func ParseIndices(s string) ([]int, error) {
	bad := schema.Invalid("indices", s, fmt.Sprintf("such as 0-99, 1,3,7-9 or 0-90:10, at most %d, each once and from 0 to 1000000", MaxArray))
	seen := map[int]bool{}
	for part := range strings.SplitSeq(s, ",") {
		span, by, stepped := strings.Cut(part, ":")
		first, last, isSpan := strings.Cut(span, "-")
		if !isSpan {
			last = first
		}
		if !stepped {
			by = "1"
		}
		from, err1 := strconv.ParseUint(first, 10, 31)
		to, err2 := strconv.ParseUint(last, 10, 31)
		step, err3 := strconv.ParseUint(by, 10, 31)
		if err1 != nil || err2 != nil || err3 != nil || to < from || to > 1_000_000 || step == 0 || stepped && !isSpan || (to-from)/step >= MaxArray {
			return nil, bad
		}
		for i := from; i <= to; i += step {
			if seen[int(i)] || len(seen) == MaxArray {
				return nil, bad
			}
			seen[int(i)] = true
		}
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

// What each job of an array finds in its environment.
const (
	EnvArray      = "GPUPOOL_ARRAY"       // the array's name
	EnvArrayIndex = "GPUPOOL_ARRAY_INDEX" // the job's index
	EnvArraySize  = "GPUPOOL_ARRAY_SIZE"  // how many jobs the array was submitted with
)

// SubmitArray stores one job for each index, all or none, as SubmitJob stores one. in.Array is the array's name, which is
// new in its project; where it is empty one is made. A job's name is in.Name, or else the array's, with its index.
func (s *Store) SubmitArray(ctx context.Context, by, idempotencyKey, bodyHash string, in NewJob, indices []int) (a Array, created bool, err error) {
	for _, name := range []string{EnvArray, EnvArrayIndex, EnvArraySize} {
		if _, taken := in.Env[name]; taken {
			return a, false, schema.Invalid("env", name, "another name: this one says which of the array a job is")
		}
	}
	limit, named := in.ArrayLimit, in.Array != ""
	if limit < 0 || limit > MaxQuota {
		return a, false, schema.Invalid("array_limit", limit, fmt.Sprintf("1 to %d, or 0 for no limit", MaxQuota))
	}
	if in.Kind == schema.JobService && limit != 0 {
		return a, false, in.checkService()
	}
	in.ArrayLimit = 0
	if err := in.check(); err != nil {
		return a, false, err
	}
	if len(in.Name) > 190 {
		return a, false, schema.Invalid("name", in.Name, "at most 190 characters: the index follows it")
	}
	if len(indices) == 0 || len(indices) > MaxArray {
		return a, false, schema.Invalid("indices", len(indices), fmt.Sprintf("1 to %d", MaxArray))
	}
	err = s.Write(ctx, func(tx *Tx) error {
		created = false
		in := in
		in.ArrayLimit = limit
		if !named {
			in.Array = NewID("arr", tx.now)
		}
		if idempotencyKey != "" {
			before, err := tx.repeated(in.Tenant, idempotencyKey, bodyHash, in.Project+"/"+in.Array)
			if err != nil {
				return err
			}
			if project, name, ok := strings.Cut(before, "/"); ok {
				a, err = array(tx, ArrayFilter{Tenant: in.Tenant, Project: project, Name: name})
				return err
			}
		}
		var taken int64
		if err := tx.exclusive(arrayLock(in.Tenant, in.Project, in.Array)); err != nil {
			return err
		}
		if err := tx.db.Raw("SELECT count(*) FROM (SELECT 1 FROM jobs WHERE "+inArray+" LIMIT 1) x", in.Tenant, in.Project, in.Array).Scan(&taken).Error; err != nil {
			return err
		}
		if taken > 0 {
			return schema.Conflict(fmt.Sprintf("project %s/%s has an array or service %q already", in.Tenant, in.Project, in.Array), "give this one another name")
		}
		one, err := tx.newJob(by, in)
		if err != nil {
			return err
		}
		var last int64
		if err := tx.db.Raw("UPDATE job_seq SET seq = seq + ? WHERE one = 1 RETURNING seq", len(indices)).Scan(&last).Error; err != nil {
			return err
		}
		name := cmp.Or(in.Name, in.Array)
		if in.Name == "" && !named {
			name = ""
		}
		jobs := make([]schema.Job, len(indices))
		env := maps.Clone(in.Env)
		if env == nil {
			env = map[string]string{}
		}
		env[EnvArray], env[EnvArraySize] = in.Array, strconv.Itoa(len(indices))
		for n, index := range indices {
			j := one
			j.ID, j.Seq, j.ArrayIndex = NewID("job", tx.now), last-int64(len(indices)-1-n), &indices[n]
			if name != "" {
				j.Name = fmt.Sprintf("%s-%d", name, index)
			}
			env[EnvArrayIndex] = strconv.Itoa(index)
			b, err := json.Marshal(env)
			if err != nil {
				return err
			}
			j.Env = string(b)
			jobs[n] = j
			tx.Emit(schema.Event{Kind: schema.EventJobSubmitted, Subject: j.ID, Job: j.ID, Tenant: j.Tenant, By: by}, map[string]any{"spec": j.Spec, "nodes": j.Nodes, "array": j.Array, "index": index})
		}
		created = true
		a = Array{Tenant: one.Tenant, Project: one.Project, Name: one.Array, Spec: one.Spec, Region: one.Region, Kind: one.Kind, Nodes: one.Nodes, Limit: limit, Jobs: len(jobs), States: map[schema.JobState]int{schema.JobQueued: len(jobs)},
			SubmittedBy: by, SubmittedAt: tx.now}
		if in.Held {
			a.Held = len(jobs)
		}
		return tx.db.CreateInBatches(jobs, 200).Error
	})
	return a, created, err
}

// repeated takes a tenant's key for one request: what the same request made before, or "" where it is new and makes result.
func (tx *Tx) repeated(tenant, key, hash, result string) (string, error) {
	n, err := tx.exec("INSERT INTO idempotency (scope, key, body_hash, result, at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", tenant, key, hash, result, tx.now)
	if err != nil || n > 0 {
		return "", err
	}
	var row struct{ BodyHash, Result string }
	if err := tx.db.Raw("SELECT body_hash, result FROM idempotency WHERE scope = ? AND key = ?", tenant, key).Scan(&row).Error; err != nil {
		return "", err
	}
	if row.BodyHash != hash {
		return "", &schema.Error{Code: schema.CodeReused, Field: "Idempotency-Key", Message: fmt.Sprintf("%q was used for another body", key), Hint: "it made " + row.Result + "; use a new key for a new job"}
	}
	return row.Result, nil
}

// ArrayFilter narrows Arrays; empty fields don't.
type ArrayFilter struct {
	Tenant, Project, Name string
	Kind                  schema.JobKind
	Live                  bool // with a job that has not ended
	Limit                 int  // 0 = 100
}

// Arrays lists the newest first.
func (s *Store) Arrays(ctx context.Context, f ArrayFilter) ([]Array, error) {
	return arrays(&Tx{db: s.read(ctx), s: s}, f)
}

// Array is the one of a name in a project; a CodeNotFound error where there is none.
func (s *Store) Array(ctx context.Context, tenant, project, name string) (Array, error) {
	return array(&Tx{db: s.read(ctx), s: s}, ArrayFilter{Tenant: tenant, Project: project, Name: name})
}

func array(tx *Tx, f ArrayFilter) (Array, error) {
	list, err := arrays(tx, f)
	if err == nil && len(list) == 0 {
		err = schema.NotFound("array or service", f.Name)
	}
	if err != nil {
		return Array{}, err
	}
	return list[0], nil
}

func arrays(tx *Tx, f ArrayFilter) ([]Array, error) {
	where, args := "array_name <> ''", []any{}
	for _, c := range []struct{ column, v string }{{"tenant", f.Tenant}, {"project", f.Project}, {"array_name", f.Name}, {"kind", string(f.Kind)}} {
		if c.v != "" {
			where += " AND " + c.column + " = ?"
			args = append(args, c.v)
		}
	}
	having := ""
	if f.Live {
		having = " HAVING min(ended_at) = 0"
	}
	var heads []struct {
		Tenant, Project, Name, Spec, Region, SubmittedBy string
		Kind                                             schema.JobKind
		Nodes, MaxLimit, Jobs, Restarts                  int
		SubmittedAt, EndedFirst, EndedLast               schema.Instant
	}
	if err := tx.db.Raw(`SELECT tenant, project, array_name AS name, min(spec) AS spec, min(region) AS region, min(nodes) AS nodes, min(kind) AS kind, sum(restarts) AS restarts, max(array_limit) AS max_limit, count(*) AS jobs,
		min(submitted_by) AS submitted_by, min(submitted_at) AS submitted_at, min(ended_at) AS ended_first, max(ended_at) AS ended_last
		FROM jobs WHERE `+where+" GROUP BY tenant, project, array_name"+having+" ORDER BY max(seq) DESC LIMIT ?", append(args, cmp.Or(f.Limit, 100))...).Scan(&heads).Error; err != nil {
		return nil, err
	}
	out := make([]Array, len(heads))
	for i, h := range heads {
		out[i] = Array{Tenant: h.Tenant, Project: h.Project, Name: h.Name, Spec: h.Spec, Region: h.Region, Kind: h.Kind, Nodes: h.Nodes, Limit: h.MaxLimit, Jobs: h.Jobs, Restarts: h.Restarts, States: map[schema.JobState]int{}, SubmittedBy: h.SubmittedBy, SubmittedAt: h.SubmittedAt}
		if h.EndedFirst > 0 {
			out[i].EndedAt = h.EndedLast
		}
		var states []struct {
			State   schema.JobState
			N, Held int
		}
		if err := tx.db.Raw("SELECT state, count(*) AS n, sum(CASE WHEN held AND state = ? THEN 1 ELSE 0 END) AS held FROM jobs WHERE "+inArray+" GROUP BY state",
			schema.JobQueued, h.Tenant, h.Project, h.Name).Scan(&states).Error; err != nil {
			return nil, err
		}
		for _, st := range states {
			out[i].States[st.State] = st.N
			out[i].Held += st.Held
		}
	}
	return out, nil
}

// arrayPart is how many jobs of an array are changed in one transaction, so that others' are not kept waiting long.
const arrayPart = 500

// liveJobs are the ids of an array's jobs that have not ended, the queued ones first, so that none starts in the place of one
// that is stopped.
func (s *Store) liveJobs(ctx context.Context, a Array) ([]string, error) {
	var ids []string
	return ids, s.read(ctx).Raw("SELECT id FROM jobs WHERE "+inArray+" AND ended_at = 0 ORDER BY CASE WHEN state = ? THEN 0 ELSE 1 END, seq DESC",
		a.Tenant, a.Project, a.Name, schema.JobQueued).Scan(&ids).Error
}

// CancelArray asks that all jobs of an array that have not ended end. Asking again is no error.
func (s *Store) CancelArray(ctx context.Context, a Array, by string) error {
	return s.eachLive(ctx, a, func(tx *Tx, j *schema.Job) error {
		return tx.requestStop(j, schema.AttemptCancelled, by, "cancelled by "+by)
	})
}

// HoldArray keeps an array's queued jobs from being started, or lets them go. Those that run go on.
func (s *Store) HoldArray(ctx context.Context, a Array, by string, on bool) error {
	return s.eachLive(ctx, a, func(tx *Tx, j *schema.Job) error {
		if j.State != schema.JobQueued || j.Held == on {
			return nil
		}
		return tx.setHeld(j, by, on)
	})
}

// eachLive changes an array's live jobs, a part of them in each transaction.
func (s *Store) eachLive(ctx context.Context, a Array, change func(*Tx, *schema.Job) error) error {
	ids, err := s.liveJobs(ctx, a)
	if err != nil {
		return err
	}
	for part := range slices.Chunk(ids, arrayPart) {
		if err := s.Write(ctx, func(tx *Tx) error {
			var jobs []schema.Job
			if err := tx.lockAll(&jobs, "id IN ?", part); err != nil {
				return err
			}
			for i := range jobs {
				if jobs[i].State.Ended() {
					continue
				}
				if err := change(tx, &jobs[i]); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// SetArrayLimit changes how many of an array hold accelerators at once; 0 = no limit. What runs over a lower one goes on.
func (s *Store) SetArrayLimit(ctx context.Context, a Array, limit int, by string) error {
	if limit < 0 || limit > MaxQuota {
		return schema.Invalid("array_limit", limit, fmt.Sprintf("1 to %d, or 0 for no limit", MaxQuota))
	}
	return s.Write(ctx, func(tx *Tx) error {
		if err := tx.exclusive(arrayLock(a.Tenant, a.Project, a.Name)); err != nil {
			return err
		}
		if a.Kind == schema.JobService {
			return schema.Conflict(fmt.Sprintf("%s is a service, all of whose replicas run", a.Name), "scale it: gpupool service scale "+a.Name+" N")
		}
		n, err := tx.exec("UPDATE jobs SET array_limit = ?, version = version + 1 WHERE "+inArray+" AND ended_at = 0", limit, a.Tenant, a.Project, a.Name)
		if err != nil {
			return err
		}
		if n == 0 {
			return schema.Conflict(fmt.Sprintf("all jobs of array %s have ended", a.Name), "its limit no longer matters")
		}
		tx.Emit(schema.Event{Kind: schema.EventArrayLimit, Subject: a.Name, Tenant: a.Tenant, By: by}, ArrayLimit{Project: a.Project, Limit: limit})
		return nil
	})
}

// ArrayLimit is the data of EventArrayLimit.
type ArrayLimit struct {
	Project string `json:"project"`
	Limit   int    `json:"limit"`
}

// QueuedOfArray are the ids of an array's queued jobs.
func (s *Store) QueuedOfArray(ctx context.Context, tenant, project, name string) ([]string, error) {
	var ids []string
	return ids, s.read(ctx).Raw("SELECT id FROM jobs WHERE "+inArray+" AND ended_at = 0 AND state = ? ORDER BY seq", tenant, project, name, schema.JobQueued).Scan(&ids).Error
}
