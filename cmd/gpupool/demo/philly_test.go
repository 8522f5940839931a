package demo_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/cmd/gpupool/demo"
	"gpupool/schema"
	"gpupool/schema/shared"
	"gpupool/schema/store"
)

// traced is one job of the Philly trace (Jeon et al., USENIX ATC 2019), its times made shorter.
type traced struct {
	name, tenant string
	gpus         int
	at, runs     time.Duration // since the first submission; how long it runs
}

// philly reads the trace's first n jobs in the order of their submission, shrunk so that the longest runs for longest.
func philly(t *testing.T, n int, longest time.Duration) []traced {
	t.Helper()
	f, err := os.Open(shared.Path(t, "data", "traces", "philly.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	if head, err := r.Read(); err != nil || !slices.Equal(head, []string{"timestamp", "duration", "num_gpus", "gpu_time", "cluster"}) {
		t.Fatalf("the trace begins with %v (%v)", head, err)
	}
	type row struct {
		traced
		submitted time.Time
		seconds   float64
	}
	var rows []row
	most := 0.0
	for i := range n {
		rec, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		at, err1 := time.Parse(time.DateTime, rec[0])
		seconds, err2 := strconv.ParseFloat(rec[1], 64)
		gpus, err3 := strconv.Atoi(rec[2])
		if err := errors.Join(err1, err2, err3); err != nil {
			t.Fatal(err)
		}
		most = max(most, seconds)
		rows = append(rows, row{traced{name: fmt.Sprint("philly-", i), tenant: "vc-" + rec[4], gpus: gpus}, at, seconds})
	}
	slices.SortStableFunc(rows, func(a, b row) int { return a.submitted.Compare(b.submitted) })
	var out []traced
	for _, j := range rows {
		j.at = time.Duration(float64(j.submitted.Sub(rows[0].submitted)) / most * longest.Seconds())
		j.runs = time.Duration(j.seconds / most * float64(longest)).Round(time.Millisecond)
		out = append(out, j.traced)
	}
	return out
}

// shape asks for n accelerators: what is more than four is a gang over several servers.
func shape(t *testing.T, n int) (spec string, nodes int) {
	t.Helper()
	switch {
	case n == 1 || n == 2 || n == 4:
		return fmt.Sprintf("h100x%d", n), 1
	case n%4 == 0 && n <= 12:
		return "h100x4", n / 4
	}
	t.Fatalf("the trace has a job of %d accelerators, for which there is no spec", n)
	return "", 0
}

// TestThePhillyTraceRunsThroughTheWholeSystemAndTheLedgerSums submits the beginning of a real trace over the API, each
// virtual cluster a tenant, to the simulated data centre, where every job is a process that sleeps.
func TestThePhillyTraceRunsThroughTheWholeSystemAndTheLedgerSums(t *testing.T) {
	if testing.Short() {
		t.Skip("takes most of a minute")
	}
	jobs := philly(t, 300, 20*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	dir := t.TempDir()
	up, err := demo.Start(ctx, os.Args[0], dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer up.Stop()
	story := &demo.Story{URL: up.URL, Token: up.Token, LabDir: up.Lab, WorkDir: dir, Out: testLog{t}}
	if err := story.Prepare(ctx); err != nil {
		t.Fatal(err)
	}
	post := func(path string, body any, header ...string) {
		t.Helper()
		if _, err := ask(ctx, up, http.MethodPost, path, body, header...); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	post("/v1/specs", contract.NewSpec{Name: "h100x4", Model: "nvidia-h100-80gb", Accelerators: 4, Cpus: 32, MemoryBytes: 512 << 30})
	tenants := map[string]bool{}
	begun := time.Now()
	for _, j := range jobs {
		if !tenants[j.tenant] {
			tenants[j.tenant] = true
			post("/v1/tenants", contract.NewTenant{Name: j.tenant, MaxPriority: 100})
			post("/v1/tenants/"+j.tenant+"/projects", contract.NewProject{Name: "main"})
		}
		select {
		case <-time.After(j.at - time.Since(begun)):
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		}
		spec, nodes := shape(t, j.gpus)
		post("/v1/jobs", contract.NewJob{Tenant: j.tenant, Project: "main", Name: j.name, Spec: spec, Nodes: &nodes,
			Command: []string{"sleep", strconv.FormatFloat(j.runs.Seconds(), 'f', 3, 64)}}, "Idempotency-Key", j.name)
	}
	if err := story.Settled(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d jobs of %d tenants were settled after %s", len(jobs), len(tenants), time.Since(begun).Round(time.Second))
	b, err := ask(ctx, up, http.MethodGet, "/v1/usage?by=tenant", nil)
	if err != nil {
		t.Fatal(err)
	}
	var usage contract.Usage
	if err := json.Unmarshal(b, &usage); err != nil {
		t.Fatal(err)
	}
	up.Stop()
	checkRecord(t, filepath.Join(dir, "data", "gpupool.db"), jobs, usage)
}

// checkRecord compares what the record holds with the trace and with itself.
func checkRecord(t *testing.T, file string, jobs []traced, usage contract.Usage) {
	t.Helper()
	ctx := t.Context()
	db, err := store.Open(ctx, store.Config{Driver: "sqlite", DSN: file})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	all, err := db.Jobs(ctx, store.JobFilter{Limit: 2 * len(jobs)})
	must(t, err)
	byName := map[string]schema.Job{}
	for _, j := range all {
		byName[j.Name] = j
	}
	if len(all) != len(jobs) || len(byName) != len(jobs) {
		t.Fatalf("%d jobs with %d names are in the record, %d were submitted", len(all), len(byName), len(jobs))
	}
	byTenant, total := map[string]int64{}, int64(0)
	held := map[string][]schema.Allocation{}
	for _, j := range jobs {
		got := byName[j.name]
		attempts, err := db.Attempts(ctx, got.ID)
		must(t, err)
		if got.State != schema.JobCompleted || len(attempts) != 1 || attempts[0].Outcome != schema.AttemptCompleted {
			t.Fatalf("%s is %s (%s) after %d attempts, not completed once", j.name, got.State, got.Cause, len(attempts))
		}
		a := attempts[0]
		if ms := int64(a.ReleasedAt - a.AllocatedAt); ms < j.runs.Milliseconds()-1 { // both moments are cut to whole milliseconds
			t.Fatalf("%s held its accelerators for %d ms and slept for %s", j.name, ms, j.runs)
		}
		allocations, err := db.JobAllocations(ctx, got.ID)
		must(t, err)
		rows, err := db.Ledger(ctx, got.ID)
		must(t, err)
		var clock, billed int64
		for _, v := range allocations {
			if v.ReleasedAt == 0 {
				t.Fatalf("%s still holds %s", j.name, v.Accelerator)
			}
			clock += int64(v.ReleasedAt - v.AllocatedAt)
			held[v.Accelerator] = append(held[v.Accelerator], v)
		}
		for _, r := range rows {
			billed += r.Milliseconds()
		}
		if len(allocations) != j.gpus || len(rows) != j.gpus || billed != clock || clock != int64(j.gpus)*int64(a.ReleasedAt-a.AllocatedAt) {
			t.Fatalf("%s of %d GPUs: %d allocations of %d ms together, %d ledger rows of %d ms", j.name, j.gpus, len(allocations), clock, len(rows), billed)
		}
		byTenant[j.tenant] += billed
		total += billed
	}
	checkNeverTwice(t, held)
	if usage.TotalGpuMs != total || len(usage.Items) != len(byTenant) {
		t.Fatalf("usage tells of %d GPU-ms of %d tenants, the ledger of %d of %d", usage.TotalGpuMs, len(usage.Items), total, len(byTenant))
	}
	for _, r := range usage.Items {
		if want := byTenant[r.Keys["tenant"]]; r.GpuMs != want {
			t.Fatalf("usage of %s is %d GPU-ms, its ledger rows make %d", r.Keys["tenant"], r.GpuMs, want)
		}
	}
}

// ask sends one request to a running pool as its operator and returns the answer's body. A body of bytes is sent as it is.
func ask(ctx context.Context, up *demo.Up, method, path string, body any, header ...string) (json.RawMessage, error) {
	var b bytes.Buffer
	if raw, ok := body.([]byte); ok {
		b.Write(raw)
	} else if body != nil {
		if err := json.NewEncoder(&b).Encode(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, up.URL+path, &b)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+up.Token)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return call.Do[json.RawMessage](http.DefaultClient.Do(req))
}
