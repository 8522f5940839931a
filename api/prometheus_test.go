package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpupool/api/testpool"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/schema/usage"
)

// prometheus runs a real one that scrapes a pool and has the alerts of deploy/prometheus; it answers where it listens.
func prometheus(t *testing.T, target, token string) string {
	t.Helper()
	for _, c := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(c); err != nil {
			t.Skip(c, " is not installed (Debian: prometheus; `make test` installs it where it may)")
		}
	}
	rules, err := filepath.Abs("../deploy/prometheus/*-alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"token": token,
		"prometheus.yml": fmt.Sprintf(`global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%s]
scrape_configs:
  - job_name: gpupool
    authorization: {credentials_file: %s}
    static_configs: [{targets: [%s]}]
`, rules, filepath.Join(dir, "token"), strings.TrimPrefix(target, "http://")),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	cmd := exec.CommandContext(t.Context(), "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s", log.Bytes())
		}
	})
	return "http://" + addr
}

// asks reads an answer of Prometheus's API.
func asks[T any](t *testing.T, at, path string, q url.Values) (T, error) {
	t.Helper()
	var out struct {
		Status, Error string
		Data          T
	}
	resp, err := http.Get(at + path + "?" + q.Encode())
	if err != nil {
		return out.Data, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return out.Data, err
	}
	if err := json.Unmarshal(b, &out); err != nil || out.Status != "success" {
		return out.Data, fmt.Errorf("%d %s (%w)", resp.StatusCode, b, err)
	}
	return out.Data, nil
}

// TestAPrometheusDrawsTheDashboardsAndKnowsTheAlerts has a real Prometheus scrape a pool with a finished, a running and a
// waiting job, and asks it what every panel of the Grafana dashboards and every alert asks.
func TestAPrometheusDrawsTheDashboardsAndKnowsTheAlerts(t *testing.T) {
	t.Parallel()
	p, err := testpool.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx := t.Context()
	check := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	v := storetest.Available(t, p.Store, 1, model, 8)
	check(p.Store.CreateTenant(ctx, "test", "acme", 100))
	check(p.Store.CreateProject(ctx, "test", "acme", "main"))
	check(p.Store.CreateSpec(ctx, "test", store.NewSpec{Name: "h100x8", Model: model, Accelerators: 8}))
	check(p.Store.SetBudget(ctx, "test", store.Budget{Tenant: "acme", Amount: 1000 * usage.Hour, Zone: "UTC"}))
	submit := func(name string, command ...string) string {
		j, _, err := p.Store.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: "acme", Project: "main", Name: name, Spec: "h100x8", Nodes: 1, Command: command})
		check(j, err)
		return j.ID
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !is(); {
			if time.Now().After(deadline) {
				t.Fatal(what, " not within a minute")
			}
			<-time.After(20 * time.Millisecond)
		}
	}
	job := func(id string) schema.Job {
		j, err := p.Store.Job(ctx, id)
		check(j, err)
		return j
	}
	done := submit("done", "echo", "hello")
	until("the first job's end", func() bool { return job(done).State == schema.JobCompleted })
	running := submit("running", "sleep", "forever")
	until("the second job's start", func() bool { return job(running).State == schema.JobRunning })
	waiting := submit("waiting", "echo", "later")
	until("the third job's reason", func() bool { return strings.Contains(job(waiting).Reason, string(schema.ReasonCapacity)) })
	accs, err := p.Store.Accelerators(ctx, store.AcceleratorFilter{Server: v.ID})
	check(accs, err)
	began := p.Store.Now()
	until("a moment", func() bool { return p.Store.Now() > began })
	var samples []store.Sampled
	for _, a := range accs {
		samples = append(samples, store.Sampled{Identity: a.Identity, Interval: usage.Interval{Start: began, End: p.Store.Now()}, Busy: 0.01})
	}
	check(nil, p.Store.AddUtilization(ctx, v.ID, samples, 0.05))

	check(nil, p.Store.SetCursor(ctx, "deliver", 1)) // who brings events to the workflows has come so far
	at := prometheus(t, p.URL, p.Token)
	type vector struct {
		Result []struct{ Metric map[string]string }
	}
	query := func(expr string) (vector, error) {
		return asks[vector](t, at, "/api/v1/query", url.Values{"query": {expr}})
	}
	until("a scrape", func() bool {
		r, err := query(`gpupool_pool_metrics_up{job="gpupool"} == 1`)
		return err == nil && len(r.Result) == 1
	})

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/metrics", nil)
	check(req, err)
	req.Header.Set("Authorization", "Bearer "+p.Token)
	resp, err := http.DefaultClient.Do(req)
	check(resp, err)
	defer func() { _ = resp.Body.Close() }()
	lint := exec.Command("promtool", "check", "metrics")
	lint.Stdin = resp.Body
	if out, err := lint.CombinedOutput(); err != nil {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}

	boards, err := filepath.Glob("../deploy/grafana/*.json")
	check(boards, err)
	if len(boards) == 0 {
		t.Fatal("no dashboards")
	}
	// There is nothing of these in this pool, and nothing may be drawn.
	none := []string{"Books that do not balance", "Repairs by state", "BMCs by trouble"}
	for _, file := range boards {
		b, err := os.ReadFile(file)
		check(b, err)
		var board struct {
			Title  string
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		check(nil, json.Unmarshal(b, &board))
		for _, panel := range board.Panels {
			until(board.Title+": "+panel.Title, func() bool { // a rate has its first value at the second scrape
				drawn := 0
				for _, q := range panel.Targets {
					r, err := query(strings.ReplaceAll(q.Expr, "$spec", ".*"))
					if err != nil {
						t.Fatalf("%s: %s: %v", panel.Title, q.Expr, err)
					}
					drawn += len(r.Result)
				}
				return (drawn == 0) == slices.Contains(none, panel.Title)
			})
		}
	}

	type groups struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, State string }
		}
	}
	until("every alert's evaluation", func() bool {
		g, err := asks[groups](t, at, "/api/v1/rules", nil)
		if err != nil || len(g.Groups) == 0 {
			return false
		}
		for _, x := range g.Groups {
			for _, r := range x.Rules {
				switch r.Health {
				case "unknown":
					return false
				case "ok":
				default:
					t.Fatalf("%s: %s", r.Name, r.LastError)
				}
				if r.State != "inactive" && r.State != "pending" {
					t.Errorf("%s is %s in a pool that is well", r.Name, r.State)
				}
			}
		}
		return len(g.Groups) == 2
	})
}
