package demo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gpupool/api/contract"
	"gpupool/deploy/lab"
	"gpupool/schema"
)

// Story tells the main job through the API, as an operator, two tenants and a technician would. Each chapter may be
// told again after an interruption: what has happened already is found, not repeated.
type Story struct {
	URL     string // of the API
	Token   string // an operator's
	LabDir  string // the lab's folder
	WorkDir string // for the enrolment file
	Out     io.Writer
	// Retry has the operator try a step again that stopped and may be retried, as people do where the platform itself was
	// interrupted. A burn-in that failed is left.
	Retry bool

	pool   pool
	checks []Check
	fault  faultFacts
	begun  time.Time
}

// Check is one thing that the story claims, and whether it was seen.
type Check struct {
	What string
	Seen string
	True bool
}

const (
	region, site = "eu-north", "lab"
	h100, mi300x = "nvidia-h100-80gb", "amd-mi300x-192gb"
	badServer    = "r2s1" // fails its burn-in
	newSerial    = "DEMO-H100-SPARE-1"
)

// work is one kind of job that the tenants submit.
type work struct {
	name, tenant, spec string
	nodes, copies      int
	seconds            float64
	same               string
}

// program is more than fits at once: 24 H100 and 16 MI300X are in the pool.
var program = []work{
	{"pretrain", "language", "h100x8", 2, 1, 12, "rack"},
	{"finetune", "language", "h100x8", 1, 2, 5, ""},
	{"long", "vision", "h100x8", 1, 1, 25, ""}, // the one that loses its GPU
	{"eval", "language", "h100x1", 1, 8, 3, ""},
	{"detect", "vision", "h100x2", 1, 6, 4, ""},
	{"render", "vision", "mi300x8", 1, 3, 4, ""},
	{"sweep", "vision", "mi300x4", 1, 4, 3, ""},
}

// Tell tells the story and returns its checks. An error means that it could not be told to the end.
func (s *Story) Tell(ctx context.Context) ([]Check, error) {
	s.pool = pool{base: s.URL, token: s.Token, http: &http.Client{Timeout: 90 * time.Second}}
	s.begun = time.Now()
	for _, chapter := range []struct {
		title string
		tell  func(context.Context) error
	}{
		{"Six servers are enrolled from a file", s.enroll},
		{"They are onboarded: BMC, network boot, install, drivers, runtime, burn-in", s.onboard},
		{"Specs, two tenants and their limits", s.policy},
		{"The tenants submit more than fits", s.submit},
		{"A GPU falls off the bus in the middle of a job (XID 79)", s.breakGPU},
		{"The technician swaps the part", s.repair},
		{"Every job ends", s.finish},
		{"The GPU-hours add up", s.usage},
	} {
		s.say("\n── %s", chapter.title)
		if err := chapter.tell(ctx); err != nil {
			return s.checks, fmt.Errorf("%s: %w", strings.ToLower(chapter.title[:1])+chapter.title[1:], err)
		}
	}
	return s.checks, nil
}

func (s *Story) say(format string, a ...any) { fmt.Fprintf(s.Out, format+"\n", a...) }

func (s *Story) check(what string, ok bool, seen string, a ...any) {
	s.checks = append(s.checks, Check{what, fmt.Sprintf(seen, a...), ok})
}

// lab opens the lab's control anew: a restarted lab has another one.
func (s *Story) lab(ctx context.Context, act func(*lab.Client) error) error {
	var last error
	err := until(ctx, patience, "an answer of the lab", func(context.Context) (bool, error) {
		c, err := lab.Open(s.LabDir)
		if err == nil {
			err = act(c)
		}
		last = err
		return err == nil, nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

func (s *Story) enroll(ctx context.Context) error {
	var machines []lab.ServerState
	if err := s.lab(ctx, func(c *lab.Client) (err error) { machines, err = c.State(ctx); return err }); err != nil {
		return err
	}
	have, err := s.pool.servers(ctx)
	if err != nil {
		return err
	}
	if len(have) == 0 {
		var file bytes.Buffer
		if err := lab.WriteEnrollment(&file, machines, region, site); err != nil {
			return err
		}
		path := filepath.Join(s.WorkDir, "servers.yaml")
		if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/servers/bulk", &file)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+s.Token)
		req.Header.Set("Content-Type", "application/yaml")
		resp, err := s.pool.http.Do(req)
		if err == nil {
			resp.Body.Close()
		}
	}
	if have, err = s.pool.servers(ctx); err != nil {
		return err
	}
	for _, m := range machines {
		s.say("   %-5s %s, rack %s, %d x %s, BMC %s", m.Name, m.Serial, m.Rack, len(m.Devices), m.Model, m.BMC)
	}
	s.check("six servers are enrolled", len(have) == 6, "%d", len(have))
	if len(have) != 6 {
		return fmt.Errorf("%d servers are enrolled, want 6", len(have))
	}
	return nil
}

func (s *Story) onboard(ctx context.Context) error {
	have, err := s.pool.servers(ctx)
	if err != nil {
		return err
	}
	for name, v := range have {
		if v.Phase == schema.PhaseEnrolled {
			if err := s.pool.make(ctx, http.MethodPost, "/v1/servers/"+name+"/actions/onboard", map[string]any{}); err != nil {
				return err
			}
		}
	}
	told := map[string]string{}
	err = until(ctx, 3*time.Minute, "the end of the onboardings", func(ctx context.Context) (bool, error) {
		if have, err = s.pool.servers(ctx); err != nil {
			return false, err
		}
		settled := 0
		for _, name := range sorted(have) {
			v := have[name]
			now := string(v.Step)
			if v.Phase != schema.PhaseOnboarding {
				now = string(v.Phase)
			}
			if v.Failure != nil {
				now = "stopped at " + string(v.Step) + ": " + v.Failure.Text
				if s.Retry && v.Failure.Retryable && v.Failure.Code != string(schema.FailBurnIn) {
					s.say("   %5.1fs  %-5s %s; it is tried again", time.Since(s.begun).Seconds(), name, now)
					if err := s.pool.make(ctx, http.MethodPost, "/v1/servers/"+name+"/actions/retry", map[string]any{}); err != nil {
						return false, err
					}
					told[name] = ""
					continue
				}
			}
			if told[name] != now {
				s.say("   %5.1fs  %-5s %s", time.Since(s.begun).Seconds(), name, now)
				told[name] = now
			}
			if v.Phase != schema.PhaseEnrolled && (v.Phase != schema.PhaseOnboarding || v.Failure != nil) {
				settled++
			}
		}
		return settled == len(have), nil
	})
	if err != nil {
		return err
	}
	inPool := 0
	for name, v := range have {
		if name != badServer && v.Phase != schema.PhaseOnboarding && v.Phase != schema.PhaseEnrolled {
			inPool++
		}
	}
	bad := have[badServer]
	s.check("five servers came into the pool, through every step", inPool == 5, "%d", inPool)
	refused := bad.Phase == schema.PhaseOnboarding && bad.Failure != nil && string(bad.Failure.Code) == "burn-in-failed"
	why := string(bad.Phase)
	if bad.Failure != nil {
		why = bad.Failure.Text
	}
	s.check("the one that failed burn-in was not let in", refused, "%s", why)
	once := true
	err = s.lab(ctx, func(c *lab.Client) error {
		machines, err := c.State(ctx)
		for _, m := range machines {
			once = once && m.Installs == 1
		}
		return err
	})
	s.check("each server was installed exactly once", once, "%v", once)
	return err
}

func (s *Story) policy(ctx context.Context) error {
	for _, sp := range []contract.NewSpec{
		{Name: "h100x1", Model: h100, Accelerators: 1, Cpus: 8, MemoryBytes: 128 << 30}, {Name: "h100x2", Model: h100, Accelerators: 2, Cpus: 16, MemoryBytes: 256 << 30},
		{Name: "h100x8", Model: h100, Accelerators: 8, Cpus: 96, MemoryBytes: 1 << 40},
		{Name: "mi300x4", Model: mi300x, Accelerators: 4, Cpus: 32, MemoryBytes: 512 << 30}, {Name: "mi300x8", Model: mi300x, Accelerators: 8, Cpus: 96, MemoryBytes: 1 << 40},
	} {
		if err := s.pool.make(ctx, http.MethodPost, "/v1/specs", sp); err != nil {
			return err
		}
	}
	for tenant, limit := range map[string]int{"language": 20, "vision": 12} {
		if err := s.pool.make(ctx, http.MethodPost, "/v1/tenants", contract.NewTenant{Name: tenant, MaxPriority: 100}); err != nil {
			return err
		}
		if err := s.pool.make(ctx, http.MethodPost, "/v1/tenants/"+tenant+"/projects", contract.NewProject{Name: "main"}); err != nil {
			return err
		}
		if err := s.pool.make(ctx, http.MethodPut, "/v1/quotas", map[string]any{"tenant": tenant, "model": h100, "limit": limit}); err != nil {
			return err
		}
		s.say("   tenant %s may hold %d x %s at once", tenant, limit, h100)
	}
	return nil
}

func (s *Story) submit(ctx context.Context) error {
	total := 0
	for _, w := range program {
		for i := range w.copies {
			name := fmt.Sprintf("%s-%d", w.name, i+1)
			body := map[string]any{"tenant": w.tenant, "project": "main", "name": name, "spec": w.spec, "nodes": w.nodes, "command": []string{"sleep", fmt.Sprint(w.seconds)}, "time_limit_ms": 120_000, "grace_ms": 2_000}
			if w.same != "" {
				body["same"] = w.same
			}
			if _, err := do[contract.Job](ctx, s.pool, http.MethodPost, "/v1/jobs", body, "Idempotency-Key", "demo-"+name); err != nil {
				return err
			}
			total++
		}
	}
	s.say("   %d jobs are submitted", total)
	codes := map[schema.ReasonCode]string{}
	ended, silent := false, ""
	err := until(ctx, time.Minute, "a reason for every waiting job", func(ctx context.Context) (bool, error) {
		jobs, err := s.pool.jobs(ctx)
		if err != nil {
			return false, err
		}
		waiting, evaluated := 0, 0
		for _, j := range jobs {
			ended = ended || j.State.Ended()
			if j.State != schema.JobQueued {
				continue
			}
			waiting++
			if j.Reason == nil || j.Reason.Code == "" {
				silent = j.Name
				continue
			}
			if j.Reason.Code != schema.ReasonNotEvaluated {
				evaluated++
				codes[j.Reason.Code] = fmt.Sprintf("%-11s waits: %s, until %s", j.Name, j.Reason.Code, j.Reason.ClearsWhen)
			}
		}
		return waiting == evaluated && (waiting > 0 && len(codes) > 1 || ended), nil
	})
	if err != nil {
		return err
	}
	for _, c := range sorted(codes) {
		s.say("   %s", codes[c])
	}
	// Where the story is told again after an interruption, the queue may have emptied meanwhile.
	s.check("every waiting job showed its reason", silent == "" && (len(codes) > 0 || ended), "%s", joined(sorted(codes)))
	return nil
}

// faultFacts are what the chapters on the broken GPU tell each other.
type faultFacts struct{ job, server, slot, serial string }

func (s *Story) breakGPU(ctx context.Context) error {
	var long contract.Job
	find := func(ctx context.Context) error {
		jobs, err := s.pool.jobs(ctx)
		for _, j := range jobs {
			if j.Name == "long-1" {
				long = j
			}
		}
		return err
	}
	var first []contract.Attempt
	err := until(ctx, 2*time.Minute, "the long job's start", func(ctx context.Context) (_ bool, err error) {
		if err = find(ctx); err != nil {
			return false, err
		}
		if long.State != schema.JobRunning && long.Attempt < 2 && !long.State.Ended() {
			return false, nil
		}
		first, err = s.pool.attempts(ctx, long.Id)
		return len(first) > 0, err
	})
	if err != nil {
		return err
	}
	s.fault.job = long.Id
	held := first[0].Devices[2]
	all, err := get[contract.AcceleratorList](ctx, s.pool, "/v1/accelerators")
	if err != nil {
		return err
	}
	for _, a := range all.Items {
		if a.ID == held.Accelerator {
			s.fault.slot, s.fault.serial = a.Slot, a.Serial
		}
	}
	have, err := s.pool.servers(ctx)
	if err != nil {
		return err
	}
	for name, v := range have {
		if v.Id == held.Server {
			s.fault.server = name
		}
	}
	if len(first) == 1 && first[0].Outcome == schema.AttemptLive {
		if err := s.lab(ctx, func(c *lab.Client) error { return c.Fault(ctx, s.fault.server, s.fault.slot, "xid79") }); err != nil {
			return err
		}
		s.say("   %s %s (serial %s) is broken under job long-1", s.fault.server, s.fault.slot, s.fault.serial)
	}
	var server contract.Server
	err = until(ctx, time.Minute, "the loss of the attempt", func(ctx context.Context) (_ bool, err error) {
		if first, err = s.pool.attempts(ctx, long.Id); err != nil {
			return false, err
		}
		return len(first) > 1 || first[0].Outcome != schema.AttemptLive, nil
	})
	if err != nil {
		return err
	}
	if server, err = get[contract.Server](ctx, s.pool, "/v1/servers/%s", s.fault.server); err != nil {
		return err
	}
	s.say("   job long-1: attempt 1 is %s (%s)", first[0].Outcome, first[0].Cause)
	s.say("   server %s is %s", server.Name, server.Phase)
	s.check("the fault ended the attempt as lost to hardware", first[0].Outcome == schema.AttemptLost, "%s", first[0].Outcome)
	return nil
}

func (s *Story) repair(ctx context.Context) error {
	name := "tech-" + time.Now().Format("150405.000")
	made, err := do[struct {
		Secret string `json:"secret"`
	}](ctx, s.pool, http.MethodPost, "/v1/tokens", contract.NewToken{Name: name, Role: contract.Role(schema.RoleTechnician)})
	if err != nil {
		return err
	}
	tech := s.pool.as(made.Secret)
	server, err := get[contract.Server](ctx, s.pool, "/v1/servers/%s", s.fault.server)
	if err != nil {
		return err
	}
	find := func(ctx context.Context) (schema.Repair, error) {
		l, err := get[struct {
			Items []schema.Repair `json:"items"`
		}](ctx, tech, "/v1/repairs")
		for _, r := range l.Items {
			if r.Server == server.Id {
				return r, err
			}
		}
		return schema.Repair{}, err
	}
	var r schema.Repair
	if err := until(ctx, 2*time.Minute, "the drained server's repair: a power cycle is tried first, and cures nothing", func(ctx context.Context) (_ bool, err error) {
		r, err = find(ctx)
		return r.State == schema.RepairWaiting || r.ClosedAt != 0, err
	}); err != nil {
		return err
	}
	s.say("   repair %s: %s at %s: %s", r.ID, r.Part, r.Location, r.Cause)
	if r.State == schema.RepairWaiting {
		// The technician comes once the job has a place elsewhere: a repair of seconds could be over before one is free.
		if err := until(ctx, 2*time.Minute, "another place for the job that lost its GPU", func(ctx context.Context) (bool, error) {
			at, err := s.pool.attempts(ctx, s.fault.job)
			return len(at) > 1, err
		}); err != nil {
			return err
		}
		if err := s.lab(ctx, func(c *lab.Client) error {
			machines, err := c.State(ctx)
			for _, m := range machines {
				for _, d := range m.Devices {
					if m.Name == s.fault.server && d.Slot == s.fault.slot && d.Serial == newSerial {
						return nil // swapped before the interruption
					}
				}
			}
			if err != nil {
				return err
			}
			return c.Replace(ctx, s.fault.server, s.fault.slot, newSerial)
		}); err != nil {
			return err
		}
		s.say("   the technician puts in %s and says done", newSerial)
		_, err := do[json.RawMessage](ctx, tech, http.MethodPost, "/v1/repairs/"+r.ID+"/actions/done", contract.RepairDone{OldSerial: s.fault.serial, NewSerial: newSerial, Note: "GPU swapped"})
		if err != nil && !schema.Is(err, schema.CodeConflict) {
			return err
		}
	}
	told, returns := "", r.Returns
	if err := until(ctx, 5*time.Minute, "the server's return", func(ctx context.Context) (_ bool, err error) {
		if r, err = find(ctx); err != nil {
			return false, err
		}
		if now := string(r.State) + " " + r.WaitingWhy; now != told {
			s.say("   %5.1fs  repair is %s", time.Since(s.begun).Seconds(), r.State)
			told = now
		}
		if r.State == schema.RepairWaiting && r.Returns > returns {
			return false, fmt.Errorf("the repair was not proven: %s", r.WaitingWhy)
		}
		server, err = get[contract.Server](ctx, s.pool, "/v1/servers/%s", s.fault.server)
		return r.State == schema.RepairReturned && server.Phase == schema.PhaseAvailable, err
	}); err != nil {
		return fmt.Errorf("%w: the repair is %s, the server %s", err, cmp.Or(strings.TrimSpace(told), "not seen"), server.Phase)
	}
	_, err = do[json.RawMessage](ctx, tech, http.MethodPost, "/v1/repairs/"+r.ID+"/actions/done", contract.RepairDone{Note: "again"})
	s.check("a second done was refused with the reason", schema.Is(err, schema.CodeConflict), "%v", err)
	all, err := get[contract.AcceleratorList](ctx, s.pool, "/v1/accelerators?server=%s", server.Id)
	if err != nil {
		return err
	}
	proven := false
	for _, a := range all.Items {
		proven = proven || a.Serial == newSerial && a.Health == schema.HealthHealthy
	}
	s.check("the server returned with the new serial, after a burn-in", proven && r.NewSerial == newSerial, "%s for %s in %s %s", newSerial, s.fault.serial, s.fault.server, s.fault.slot)
	return nil
}

func (s *Story) finish(ctx context.Context) error {
	var jobs []contract.Job
	told := -1
	if err := until(ctx, 4*time.Minute, "the end of every job", func(ctx context.Context) (_ bool, err error) {
		if jobs, err = s.pool.jobs(ctx); err != nil {
			return false, err
		}
		live := 0
		for _, j := range jobs {
			if !j.State.Ended() {
				live++
			}
		}
		if live != told {
			s.say("   %5.1fs  jobs to go: %d", time.Since(s.begun).Seconds(), live)
			told = live
		}
		return live == 0, nil
	}); err != nil {
		return err
	}
	want := 0
	for _, w := range program {
		want += w.copies
	}
	done, moved := 0, ""
	for _, j := range jobs {
		if j.State == schema.JobCompleted {
			done++
		} else {
			s.say("   job %s is %s: %s", j.Name, j.State, j.Cause)
		}
		if j.Id == s.fault.job {
			at, err := s.pool.attempts(ctx, j.Id)
			if err != nil {
				return err
			}
			last := at[len(at)-1]
			if last.Outcome == schema.AttemptCompleted && len(at) == 2 && last.Devices[0].Server != at[0].Devices[0].Server {
				moved = "attempt 2 completed on another server"
			} else {
				moved = fmt.Sprintf("%d attempts, the last %s on %s after %s", len(at), last.Outcome, last.Devices[0].Server, at[0].Devices[0].Server)
			}
		}
	}
	s.check("every job completed, none lost and none run twice", done == want && len(jobs) == want, "%d of %d", done, want)
	s.check("the job that lost its GPU finished elsewhere", moved == "attempt 2 completed on another server", "%s", moved)
	return nil
}

func (s *Story) usage(ctx context.Context) error {
	u, err := get[contract.Usage](ctx, s.pool, "/v1/usage?by=tenant,model")
	if err != nil {
		return err
	}
	for _, r := range u.Items {
		s.say("   %-9s %-17s %8.4f GPU-hours (%d intervals)", r.Keys["tenant"], r.Keys["model"], float64(r.GpuMs)/3.6e6, r.Intervals)
	}
	jobs, err := s.pool.jobs(ctx)
	if err != nil {
		return err
	}
	var used, credit, clock, lost, asked int64
	for _, r := range u.Items {
		used, credit = used+r.UsedGpuMs, credit+r.CreditGpuMs
	}
	type span struct{ from, to schema.Instant }
	held := map[string][]span{}
	for _, j := range jobs {
		at, err := s.pool.attempts(ctx, j.Id)
		if err != nil {
			return err
		}
		for _, a := range at {
			ms := int64(schema.Instant(a.ReleasedAt)-schema.Instant(a.AllocatedAt)) * int64(len(a.Devices))
			clock += ms
			if a.Outcome == schema.AttemptLost || a.Outcome == schema.AttemptUnstarted {
				lost += ms
			}
			for _, d := range a.Devices {
				held[d.Accelerator] = append(held[d.Accelerator], span{schema.Instant(a.AllocatedAt), schema.Instant(a.ReleasedAt)})
			}
		}
		for _, w := range program {
			if strings.HasPrefix(j.Name, w.name+"-") {
				asked += int64(w.seconds*1000) * int64(j.Accelerators)
			}
		}
	}
	twice := ""
	for id, spans := range held {
		slices.SortFunc(spans, func(a, b span) int { return int(a.from - b.from) })
		for i := 1; i < len(spans); i++ {
			if spans[i].from < spans[i-1].to {
				twice = id
			}
		}
	}
	s.check("no accelerator was ever in two allocations", twice == "", "%d accelerators looked at", len(held))
	s.check("usage equals what the attempts held, to the millisecond", used == clock, "%d = %d GPU-ms", used, clock)
	s.check("usage is at least what the jobs slept, by the clock", used >= asked, "%d >= %d GPU-ms", used, asked)
	s.check("what the broken GPU cost its job is not charged, and nothing else is let off", u.TotalGpuMs == used-credit && credit > 0 && credit <= lost, "%d of %d GPU-ms of the lost attempt, %d charged", credit, lost, u.TotalGpuMs)
	return nil
}

func sorted[K ~string, V any](m map[K]V) []K {
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func joined[S ~string](in []S) string {
	var out []string
	for _, s := range in {
		out = append(out, string(s))
	}
	return strings.Join(out, ", ")
}

// Prepare brings the data centre to where jobs can run: enrolled, onboarded, with specs and tenants. Submit and Settled
// are for whoever runs other work on it.
func (s *Story) Prepare(ctx context.Context) error {
	s.pool = pool{base: s.URL, token: s.Token, http: &http.Client{Timeout: 90 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	s.begun = time.Now()
	for _, chapter := range []func(context.Context) error{s.enroll, s.onboard, s.policy} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Submit submits one job of tenant language under a key of its name.
func (s *Story) Submit(ctx context.Context, name string, j contract.NewJob) (contract.Job, error) {
	j.Tenant, j.Name = "language", name
	return do[contract.Job](ctx, s.pool, http.MethodPost, "/v1/jobs", j, "Idempotency-Key", name)
}

// Settled waits until no job is live.
func (s *Story) Settled(ctx context.Context) error {
	return until(ctx, 5*time.Minute, "the end of every job", func(ctx context.Context) (bool, error) {
		l, err := get[contract.JobList](ctx, s.pool, "/v1/jobs?live=true&limit=1")
		return err == nil && len(l.Items) == 0, err
	})
}

// LastEnd is when the last of the newest n jobs ended, as the record has it.
func (s *Story) LastEnd(ctx context.Context, n int) (time.Time, error) {
	l, err := get[contract.JobList](ctx, s.pool, "/v1/jobs?limit=%d", n)
	var last schema.Instant
	for _, j := range l.Items {
		last = max(last, schema.Instant(j.EndedAt))
	}
	return last.Time(), err
}
