package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

// reached is a pool brought to where a job waits for a code, and what is then to be read of it.
type reached struct {
	servers int
	class   string
	// bring leads there, and gives the job and "name=value" of what its reason rests on.
	bring func(q *queue) (job string, numbers []string)
	// clear does what the reason says would clear it; the job has then left the code. nil = nobody can do it here.
	clear func(q *queue, job string)
	// says is part of what people read.
	says string
}

// details is what the reference demands of each code.
var details = map[schema.ReasonCode][]string{
	schema.ReasonSpecUnavailable:  {"spec", "known_specs", "retired_at"},
	schema.ReasonNeverFits:        {"asked", "max_possible", "nearest_ok"},
	schema.ReasonDependencyFailed: {"jobs", "states"},
	schema.ReasonHeld:             {"by", "why", "note"},
	schema.ReasonQueueStopped:     {"scope", "by", "until"},
	schema.ReasonNotBefore:        {"until", "why"},
	schema.ReasonDependency:       {"jobs", "states"},
	schema.ReasonJobLimit:         {"level", "running", "limit"},
	schema.ReasonQuota:            {"level", "used", "reserved", "asked", "limit", "over_by", "holders"},
	schema.ReasonGuaranteeOnly:    {"guaranteed", "nonpreemptible_used", "asked", "as_preemptible"},
	schema.ReasonBudget:           {"budget", "spent", "committed", "asked", "remaining", "resets_at", "time_zone"},
	schema.ReasonWindow:           {"window", "starts", "your_limit", "max_limit_that_starts_now"},
	schema.ReasonBehind:           {"ahead_jobs", "ahead_gpus", "head_job", "held_for"},
	schema.ReasonUnhealthy:        {"would_fit_if_healthy", "servers_by_cause", "repair_estimate"},
	schema.ReasonFragmented:       {"free_total", "largest_block", "needed_block", "level", "after_preempt_largest"},
	schema.ReasonCapacity:         {"free", "needed", "next_release"},
	schema.ReasonPreempting:       {"victims", "grace_until", "released"},
	schema.ReasonDispatching:      {"backend", "attempt", "since", "backend_down"},
	schema.ReasonNotEvaluated:     {},
}

// full runs a job of eight accelerators on the first server, and says which.
func (q *queue) full(fields string) string {
	q.Helper()
	job := q.job(fields)
	q.starts(job)
	return job
}

func (q *queue) quota(tenant string, guaranteed, limit int) {
	q.Helper()
	read[contract.Quota](q.T, q.op("PUT", "/v1/quotas", fmt.Sprintf(`{"tenant":%q,"model":%q,"guaranteed":%d,"limit":%d}`, tenant, model, guaranteed, limit)), http.StatusOK)
}

var reasons = map[schema.ReasonCode]reached{
	schema.ReasonSpecUnavailable: {servers: 1, class: "fix the request", says: "old", bring: func(q *queue) (string, []string) {
		read[schema.Spec](q.T, q.op("POST", "/v1/specs", `{"name":"old","model":"`+model+`","accelerators":8}`), http.StatusCreated)
		q.full("")
		job := q.job(`"spec":"old"`)
		read[schema.Spec](q.T, q.op("POST", "/v1/specs/old/actions/retire", ""), http.StatusOK)
		return job, []string{`spec="old"`, `known_specs=["h100x1","h100x8"]`}
	}},
	schema.ReasonNeverFits: {servers: 2, class: "fix the request", says: "2", bring: func(q *queue) (string, []string) {
		return q.job(`"nodes":3`), []string{`nearest_ok={"accelerators":16,"nodes":2}`}
	}},
	schema.ReasonDependencyFailed: {servers: 1, class: "fix the request", says: "cancelled", bring: func(q *queue) (string, []string) {
		first := q.job(`"held":true`)
		job := q.job(`"depends_on":[{"job":"` + first + `","condition":"afterok"}]`)
		q.waits(job, schema.ReasonDependency)
		read[contract.Job](q.T, q.member("POST", "/v1/jobs/"+first+"/actions/cancel", ""), http.StatusAccepted)
		return job, []string{`jobs=["` + first + `"]`, `states=["cancelled"]`}
	}},
	schema.ReasonHeld: {servers: 1, class: "ask an admin", says: "user", bring: func(q *queue) (string, []string) {
		return q.job(`"held":true`), []string{`by="user"`}
	}, clear: func(q *queue, job string) {
		read[contract.Job](q.T, q.member("POST", "/v1/jobs/"+job+"/actions/release", ""), http.StatusOK)
	}},
	schema.ReasonQueueStopped: {servers: 1, class: "ask an admin", says: "stopped", bring: func(q *queue) (string, []string) {
		read[schema.Stop](q.T, q.op("POST", "/v1/queue/stops", `{"tenant":"acme","why":"a new image"}`), http.StatusCreated)
		return q.job(""), []string{`scope="tenant acme"`, `by="op"`, `note="a new image"`, "until=null"}
	}, clear: func(q *queue, _ string) {
		l := read[contract.StopList](q.T, q.op("GET", "/v1/queue/stops", ""), http.StatusOK)
		q.gone("/v1/queue/stops/" + l.Items[0].ID)
	}},
	schema.ReasonNotBefore: {servers: 1, class: "wait", says: "2099", bring: func(q *queue) (string, []string) {
		return q.job(`"not_before":"2099-01-01T00:00:00Z"`), []string{`until="2099-01-01T00:00:00Z"`, `why="asked"`}
	}},
	schema.ReasonDependency: {servers: 1, class: "wait", says: "job", bring: func(q *queue) (string, []string) {
		first := q.full("")
		return q.job(`"depends_on":[{"job":"` + first + `","condition":"afterok"}]`), []string{`jobs=["` + first + `"]`, `states=["not ended"]`}
	}, clear: func(q *queue, _ string) { q.finish(q.running()) }},
	schema.ReasonJobLimit: {servers: 2, class: "wait", says: "1", bring: func(q *queue) (string, []string) {
		read[contract.Project](q.T, q.op("PATCH", "/v1/tenants/acme/projects/main", `{"max_running_jobs":1}`), http.StatusOK)
		q.full("")
		return q.job(""), []string{`level="project acme/main"`, "running=1", "limit=1"}
	}, clear: func(q *queue, _ string) { q.finish(q.running()) }},
	schema.ReasonQuota: {servers: 2, class: "wait", says: "limit", bring: func(q *queue) (string, []string) {
		q.quota("acme", 0, 12)
		first := q.full("")
		return q.job(""), []string{`level="tenant acme"`, "used=8", "reserved=0", "asked=8", "limit=12", "over_by=4", `holders=["` + first + `"]`}
	}, clear: func(q *queue, _ string) { q.quota("acme", 0, 16) }},
	schema.ReasonGuaranteeOnly: {servers: 2, class: "wait", says: "preemptible", bring: func(q *queue) (string, []string) {
		q.quota("acme", 12, -1)
		q.full("")
		return q.job(""), []string{"guaranteed=12", "nonpreemptible_used=8", "asked=8", `as_preemptible={"idle":8}`}
	}, clear: func(q *queue, _ string) { q.quota("acme", 16, -1) }},
	schema.ReasonBudget: {servers: 2, class: "wait", says: "budget", bring: func(q *queue) (string, []string) {
		read[contract.Budget](q.T, q.op("PUT", "/v1/budgets", `{"tenant":"acme","gpu_ms":36000000,"zone":"Europe/Berlin"}`), http.StatusOK)
		q.full(`"time_limit_ms":3600000`)
		return q.job(`"time_limit_ms":3600000`), []string{"amount=10", "spent=0", "committed=8", "asked=8", "remaining=2", `time_zone="Europe/Berlin"`}
	}, clear: func(q *queue, _ string) {
		read[contract.Budget](q.T, q.op("PUT", "/v1/budgets", `{"tenant":"acme","gpu_ms":57600000,"zone":"Europe/Berlin"}`), http.StatusOK)
	}},
	schema.ReasonWindow: {servers: 1, class: "wait", says: "maintenance", bring: func(q *queue) (string, []string) {
		from, until := q.store.Now().Add(time.Hour), q.store.Now().Add(2*time.Hour)
		read[schema.Window](q.T, q.op("POST", "/v1/windows", `{"kind":"maintenance","servers":["r1s1"],"from":"`+from.String()+`","until":"`+until.String()+`"}`), http.StatusCreated)
		return q.job(`"time_limit_ms":7200000`), []string{`kind="maintenance"`, `your_limit="2h0m0s"`, `starts="` + from.Time().UTC().Format(time.RFC3339Nano) + `"`}
	}, clear: func(q *queue, _ string) {
		l := read[contract.WindowList](q.T, q.op("GET", "/v1/windows", ""), http.StatusOK)
		q.gone("/v1/windows/" + l.Items[0].ID)
	}},
	schema.ReasonBehind: {servers: 1, class: "wait", says: "ahead", bring: func(q *queue) (string, []string) {
		q.full("")
		head := q.job("")
		q.waits(head, schema.ReasonCapacity)
		return q.job(""), []string{"ahead_jobs=1", "ahead_gpus=8", `head_job="` + head + `"`}
	}, clear: func(q *queue, job string) {
		for _, j := range read[contract.JobList](q.T, q.op("GET", "/v1/jobs?state=queued", ""), http.StatusOK).Items {
			if j.Id != job {
				read[contract.Job](q.T, q.member("POST", "/v1/jobs/"+j.Id+"/actions/cancel", ""), http.StatusAccepted)
			}
		}
	}},
	schema.ReasonUnhealthy: {servers: 1, class: "ask an admin", says: "healthy", bring: func(q *queue) (string, []string) {
		read[contract.Cordon](q.T, q.op("POST", "/v1/servers/r1s1/actions/cordon", `{"reason":"a noisy fan"}`), http.StatusOK)
		return q.job(""), []string{"would_fit_if_healthy=1"}
	}, clear: func(q *queue, _ string) {
		read[contract.Server](q.T, q.op("POST", "/v1/servers/r1s1/actions/uncordon", ""), http.StatusOK)
	}},
	schema.ReasonFragmented: {servers: 2, class: "wait", says: "6", bring: func(q *queue) (string, []string) {
		for _, k := range []int{5, 6} {
			read[schema.Spec](q.T, q.op("POST", "/v1/specs", fmt.Sprintf(`{"name":"h100x%d","model":%q,"accelerators":%d}`, k, model, k)), http.StatusCreated)
		}
		q.full(`"spec":"h100x5"`)
		q.full(`"spec":"h100x5"`)
		return q.job(`"spec":"h100x6"`), []string{"free_total=6", "largest_block=3", "needed_block=6", `level="server"`, "after_preempt_largest=3"}
	}, clear: func(q *queue, _ string) { q.finish(q.running()) }},
	schema.ReasonCapacity: {servers: 1, class: "wait", says: "8", bring: func(q *queue) (string, []string) {
		q.full(`"spec":"h100x1"`)
		q.full(`"spec":"h100x1"`)
		return q.job(""), []string{"free=0", "needed=8"}
	}, clear: func(q *queue, _ string) { q.finish(q.running()); q.finish(q.running()) }},
	schema.ReasonPreempting: {servers: 1, class: "in progress", says: "1", bring: func(q *queue) (string, []string) {
		q.full(`"preemptible":true`)
		return q.job(`"priority":9`), []string{`victims={"count":1,"gpus":8}`, "released=0"}
	}, clear: func(q *queue, _ string) { q.finish(q.running()) }},
	schema.ReasonDispatching: {servers: 1, class: "in progress", says: "r", bring: func(q *queue) (string, []string) {
		return q.full(""), []string{`backend="node"`, "attempt=1", "backend_down=false"}
	}, clear: func(q *queue, job string) { q.finish(job) }},
	schema.ReasonNotEvaluated: {class: "in progress", says: "allocator", bring: func(q *queue) (string, []string) {
		return q.job(""), nil // nobody serves its region yet
	}, clear: func(q *queue, _ string) { q.serve("eu") }},
}

// gone deletes something.
func (q *queue) gone(path string) {
	q.Helper()
	if a := q.op("DELETE", path, ""); a.status != http.StatusNoContent {
		q.Fatalf("DELETE %s: %d %s", path, a.status, a.body)
	}
}

// running is a job that holds accelerators.
func (q *queue) running() string {
	q.Helper()
	for _, j := range read[contract.JobList](q.T, q.op("GET", "/v1/jobs", ""), http.StatusOK).Items {
		if j.State != schema.JobQueued && !j.State.Ended() {
			return j.Id
		}
	}
	q.Fatal("no job runs")
	return ""
}

// TestEveryReasonIsReachedReadAndCleared walks the list of codes: a real allocator comes to each, its envelope is whole
// over HTTP, people can read it, and the job leaves it once what it says has been done.
func TestEveryReasonIsReachedReadAndCleared(t *testing.T) {
	t.Parallel()
	for _, code := range schema.ReasonCodes {
		r, ok := reasons[code]
		if !ok {
			t.Errorf("no way is known here to %s", code)
			continue
		}
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			q := newQueue(t, r.servers)
			job, numbers := r.bring(q)
			why := q.reason(job, code, numbers)
			if why.Class != r.class {
				t.Errorf("the class is %q, want %q", why.Class, r.class)
			}
			detail := map[string]json.RawMessage{}
			if len(why.Detail) > 0 {
				q.must(json.Unmarshal(why.Detail, &detail))
			}
			for _, name := range details[code] {
				if _, ok := detail[name]; !ok {
					t.Errorf("no %s in %s", name, why.Detail)
				}
			}
			said := words.Reason(why, q.store.Now())
			for _, text := range []string{said.Headline, said.Clears} {
				if text == "" || strings.Contains(text, "%!") || strings.Contains(text, "<nil>") || strings.Contains(text, "map[") {
					t.Errorf("people read %q", text)
				}
			}
			if all := said.Headline + " " + said.Clears; !strings.Contains(strings.ToLower(all), strings.ToLower(r.says)) {
				t.Errorf("people read %q, without %q", all, r.says)
			}
			if r.clear == nil {
				return
			}
			r.clear(q, job)
			var j contract.Job
			q.eventually(func() string {
				if j = q.read(job); j.State == schema.JobQueued && j.Reason != nil && j.Reason.Code == code || code == schema.ReasonDispatching && !j.State.Ended() {
					return "the job to leave " + string(code)
				}
				return ""
			}, func() string { return fmt.Sprintf("it is %s with %s", j.State, show(j.Reason)) })
		})
	}
	if len(reasons) != len(schema.ReasonCodes) {
		t.Errorf("%d codes are walked, the list has %d", len(reasons), len(schema.ReasonCodes))
	}
}

// reason waits for a code; those of a job that no allocator has queued, or has taken out of the queue, have no cycle.
func (q *queue) reason(job string, code schema.ReasonCode, numbers []string) schema.ReasonDoc {
	q.Helper()
	if code != schema.ReasonDispatching && code != schema.ReasonNotEvaluated {
		return q.waits(job, code, numbers...)
	}
	j := q.read(job)
	if j.Reason == nil || j.Reason.Code != code || j.Reason.Since == 0 {
		q.Fatalf("job %s is %s with %s, want %s", job, j.State, show(j.Reason), code)
	}
	for _, n := range numbers {
		name, want, _ := strings.Cut(n, "=")
		if !strings.Contains(string(j.Reason.Detail), fmt.Sprintf("%q:%s", name, want)) {
			q.Errorf("%s is not %s: %s", name, want, j.Reason.Detail)
		}
	}
	return *j.Reason
}
