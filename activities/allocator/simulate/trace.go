package simulate

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpupool/activities/allocator/engine"
)

// Job is one line of a trace: what was asked for, when, and how long it ran.
type Job struct {
	engine.Job
	Run time.Duration
}

// Trace is jobs in submit order and the specs they ask for.
type Trace struct {
	Format string // philly, openb or gpupool
	Specs  []engine.Spec
	Jobs   []Job
}

// ErrFormat says that a file's columns are of no format known here.
var ErrFormat = errors.New("unknown columns (hint: want timestamp,duration,num_gpus,cluster (Philly), or name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time (openb), or at least submit,run,accelerators (gpupool))")

// ReadTrace reads a trace, whichever of the three formats its columns say it is:
//
//	philly:  timestamp,duration,num_gpus,gpu_time,cluster     (seconds; the cluster is the tenant)
//	openb:   name,cpu_milli,memory_mib,num_gpu,gpu_milli,...  (Alibaba cluster-trace-gpu-v2023; seconds; a pod ran from
//	         scheduled_time, or creation_time where it has none, up to deletion_time)
//	gpupool: id,tenant,project,spec,model,accelerators,nodes,priority,preemptible,submit,run,limit
//	         (submit as RFC 3339 or seconds, run and limit in seconds; only submit, run and accelerators are needed)
func ReadTrace(r io.Reader) (*Trace, error) {
	rows, err := readCSV(r)
	if err != nil {
		return nil, err
	}
	var tr *Trace
	switch {
	case rows.has("timestamp", "duration", "num_gpus", "cluster"):
		tr, err = philly(rows)
	case rows.has("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "creation_time", "deletion_time"):
		tr, err = openb(rows)
	case rows.has("submit", "run", "accelerators"):
		tr, err = own(rows)
	default:
		return nil, fmt.Errorf("%w: %s", ErrFormat, strings.Join(rows.names, ","))
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(tr.Jobs, func(a, b Job) int { return a.Submitted.Compare(b.Submitted) })
	for i := range tr.Jobs {
		j := &tr.Jobs[i]
		j.Seq, j.Attempt = int64(i+1), 1
		j.Nodes = max(j.Nodes, 1)
	}
	return tr, nil
}

// table is a CSV file with its columns by name.
type table struct {
	names []string
	col   map[string]int
	rows  [][]string
}

func readCSV(r io.Reader) (*table, error) {
	in := csv.NewReader(r)
	in.ReuseRecord = false
	all, err := in.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("reading CSV: %w", err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: the file is empty", ErrFormat)
	}
	t := &table{names: all[0], col: map[string]int{}, rows: all[1:]}
	for i, name := range t.names {
		name = strings.TrimSpace(strings.TrimPrefix(name, "\ufeff"))
		if _, twice := t.col[name]; twice {
			return nil, fmt.Errorf("%w: column %q is there twice", ErrFormat, name)
		}
		t.col[name] = i
	}
	return t, nil
}

func (t *table) has(names ...string) bool {
	return !slices.ContainsFunc(names, func(n string) bool { _, ok := t.col[n]; return !ok })
}

// ids are the lines at which ids were read first.
type ids map[string]int

// id is a field that no other line has.
func (seen ids) id(r *row, name, def string) string {
	id := cmp.Or(r.text(name), def)
	if id == "" {
		r.fail(name, "a name")
	} else if line, twice := seen[id]; twice {
		r.fail(name, fmt.Sprintf("another than in line %d", line+2))
	}
	seen[id] = r.line
	return id
}

// row reads one line; the first field that is wrong is kept as the error.
type row struct {
	t    *table
	line int
	err  error
}

func (r *row) text(name string) string {
	i, ok := r.t.col[name]
	if !ok {
		return ""
	}
	return strings.TrimSpace(r.t.rows[r.line][i])
}

func (r *row) fail(name, want string) {
	if r.err == nil {
		r.err = fmt.Errorf("line %d: %s=%q: want %s", r.line+2, name, r.text(name), want)
	}
}

// need refuses a line in which fields that the format rests on are empty.
func (r *row) need(names ...string) {
	for _, name := range names {
		if r.text(name) == "" {
			r.fail(name, "a value")
		}
	}
}

// count is a whole number from lo to hi; an empty or absent field is def.
func (r *row) count(name string, lo, hi, def int64) int64 {
	text := r.text(name)
	if text == "" {
		return def
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < lo || n > hi {
		r.fail(name, fmt.Sprintf("a whole number from %d to %d", lo, hi))
		return def
	}
	return n
}

// seconds is a span, exact to the nanosecond the text names.
func (r *row) seconds(name string) time.Duration {
	text := r.text(name)
	if text == "" {
		return 0
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f > 1e9 {
		r.fail(name, "seconds from 0 to 1e9")
		return 0
	}
	sec, frac := math.Modf(f)
	return time.Duration(sec)*time.Second + time.Duration(math.Round(frac*1e9))
}

const (
	maxAccelerators = 1 << 20
	maxPriority     = 1_000_000
)

// philly: a job of n accelerators is n nodes of one: the trace does not say how they were spread.
func philly(t *table) (*Trace, error) {
	tr := &Trace{Format: "philly", Specs: []engine.Spec{{Name: "gpu", Model: "gpu", Accelerators: 1}}}
	for i := range t.rows {
		r := row{t: t, line: i}
		r.need("duration", "num_gpus")
		submitted, err := time.Parse("2006-01-02 15:04:05", r.text("timestamp"))
		if err != nil || submitted.Year() < 1970 || submitted.Year() >= 2200 {
			r.fail("timestamp", "a time such as 2017-10-09 07:01:55")
		}
		n := r.count("num_gpus", 1, maxAccelerators, 1)
		run := r.seconds("duration")
		if r.err != nil {
			return nil, r.err
		}
		tr.Jobs = append(tr.Jobs, Job{Run: run, Job: engine.Job{
			ID: "philly-" + strconv.Itoa(i+1), Tenant: r.text("cluster"), Spec: "gpu", Nodes: int(n), Submitted: submitted,
		}})
	}
	return tr, nil
}

// origin is moment 0 of a trace that counts from its own beginning.
var origin = time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC)

// openb: every distinct request is a spec. Times count from the trace's own beginning.
func openb(t *table) (*Trace, error) {
	tr := &Trace{Format: "openb"}
	specs, seen := map[request]string{}, ids{}
	for i := range t.rows {
		r := row{t: t, line: i}
		r.need("num_gpu", "creation_time", "deletion_time")
		id := seen.id(&r, "name", "")
		req := request{
			Accelerators: int(r.count("num_gpu", 0, maxAccelerators, 0)), Milli: r.count("gpu_milli", 0, 1000, 0),
			CPU: r.count("cpu_milli", 0, math.MaxInt32, 0), MemoryBytes: r.count("memory_mib", 0, math.MaxInt32, 0) << 20,
			Models: r.text("gpu_spec"),
		}
		from, to := r.seconds("creation_time"), r.seconds("deletion_time")
		if to < from {
			r.fail("deletion_time", "a time after creation_time")
		}
		began := from // a pod that was never scheduled: how long it would have run is not known
		if r.text("scheduled_time") != "" {
			if began = r.seconds("scheduled_time"); began < from || began > to {
				r.fail("scheduled_time", "a time from creation_time to deletion_time")
			}
		}
		if r.err != nil {
			return nil, r.err
		}
		name, ok := specs[req]
		if !ok {
			name = fmt.Sprintf("%dx%d-cpu%d-mem%d", req.Accelerators, req.Milli, req.CPU, req.MemoryBytes>>20)
			if req.Models != "" {
				name += "-" + req.Models
			}
			specs[req] = name
			tr.Specs = append(tr.Specs, req.Spec(name))
		}
		tr.Jobs = append(tr.Jobs, Job{Run: to - began, Job: engine.Job{
			ID: id, Tenant: cmp.Or(r.text("qos"), "openb"), Spec: name, Submitted: origin.Add(from),
		}})
	}
	return tr, nil
}

func own(t *table) (*Trace, error) {
	tr := &Trace{Format: "gpupool"}
	seen, known := map[string]engine.Spec{}, ids{}
	for i := range t.rows {
		r := row{t: t, line: i}
		r.need("submit", "run", "accelerators")
		k := int(r.count("accelerators", 1, maxAccelerators, 1))
		model := r.text("model") // none = any
		name := cmp.Or(r.text("spec"), fmt.Sprintf("%s-x%d", cmp.Or(model, "gpu"), k))
		sp := engine.Spec{Name: name, Model: model, Accelerators: k}
		if before, ok := seen[name]; ok && (before.Model != model || before.Accelerators != k) {
			r.fail("spec", fmt.Sprintf("the %d %s it was before, or another name", before.Accelerators, cmp.Or(before.Model, "of any model")))
		} else if !ok {
			seen[name] = sp
			tr.Specs = append(tr.Specs, sp)
		}
		submitted, ok := moment(r.text("submit"))
		if !ok {
			if after, err := strconv.ParseFloat(r.text("submit"), 64); err != nil || !(after >= 0 && after <= 1e9) {
				r.fail("submit", "a time such as 2026-03-01T00:00:00Z, or seconds from 0 to 1e9")
			}
			submitted = origin.Add(r.seconds("submit"))
		}
		j := Job{Run: r.seconds("run"), Job: engine.Job{
			ID: known.id(&r, "id", "job-"+strconv.Itoa(i+1)), Tenant: cmp.Or(r.text("tenant"), "trace"),
			Project: r.text("project"), Spec: name, Nodes: int(r.count("nodes", 1, maxAccelerators, 1)),
			Priority: int(r.count("priority", -maxPriority, maxPriority, 0)), Submitted: submitted, TimeLimit: r.seconds("limit"),
		}}
		switch r.text("preemptible") {
		case "true", "1", "yes":
			j.Preemptible = true
		case "", "false", "0", "no":
		default:
			r.fail("preemptible", "true or false")
		}
		if r.err != nil {
			return nil, r.err
		}
		tr.Jobs = append(tr.Jobs, j)
	}
	return tr, nil
}

// request is what makes two openb tasks ask for the same.
type request struct {
	Accelerators     int
	Milli            int64
	CPU, MemoryBytes int64
	Models           string // separated by |
}

// Spec is the request as a spec; several models are one and the others that will do.
func (q request) Spec(name string) engine.Spec {
	models := strings.Split(q.Models, "|")
	return engine.Spec{
		Name: name, Model: models[0], OtherModels: models[1:], Accelerators: q.Accelerators, Milli: q.Milli,
		CPU: q.CPU, MemoryBytes: q.MemoryBytes,
	}
}
