package worker_test

import (
	"fmt"
	"testing"
	"time"

	"gpupool/activities/cluster/kube/kubetest"
	"gpupool/activities/cluster/slurm/slurmtest"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/worker"
)

// on starts a process with one cluster and makes its servers, the spec h100x2 and a tenant.
func on(t *testing.T, clusters, name, kind string, servers ...string) *worker.Process {
	t.Helper()
	p := startWith(t, "data_dir="+t.TempDir(), "regions=eu", "roles=api,worker,allocator", "api.listen=127.0.0.1:0", "durability=normal", "clusters="+clusters)
	t.Cleanup(p.Stop)
	for i, s := range servers {
		in := storetest.NewServer(i+1, h100, 8)
		in.Name, in.Backend, in.Cluster = s, kind, name
		storetest.AvailableAs(t, p.Store, in)
	}
	if _, err := p.Store.CreateSpec(t.Context(), "test", store.NewSpec{Name: "h100x2", Model: h100, Accelerators: 2, CPUs: 2, MemoryBytes: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Store.CreateTenant(t.Context(), "test", "blue", 100); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Store.CreateProject(t.Context(), "test", "blue", "train"); err != nil {
		t.Fatal(err)
	}
	return p
}

// jobsSettle runs n jobs, some of two nodes, some that fail, through the whole process, and checks record and ledger.
func jobsSettle(t *testing.T, p *worker.Process, n int) {
	t.Helper()
	for i := range n {
		if _, _, err := p.Store.SubmitJob(t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "train", Name: fmt.Sprint("j", i), Spec: "h100x2", Nodes: 1 + i%3/2, Command: []string{"sh", "-c", fmt.Sprintf("exit %d", i%2)}}); err != nil {
			t.Fatal(err)
		}
	}
	await(t, p.Store, 2*time.Minute)
	jobs, err := p.Store.Jobs(t.Context(), store.JobFilter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		var i int
		if _, err := fmt.Sscanf(j.Name, "j%d", &i); err != nil {
			t.Fatal(err)
		}
		want := schema.JobCompleted
		if i%2 == 1 {
			want = schema.JobFailed
		}
		if j.State != want || j.Attempt != 1 || j.ExitCode == nil || *j.ExitCode != i%2 {
			t.Errorf("%s is %s after attempt %d, want %s: %s", j.Name, j.State, j.Attempt, want, j.Cause)
		}
		runs, err := p.Store.ClusterRuns(t.Context(), j.ID)
		if err != nil || len(runs) != 1 || runs[0].Native == "" || runs[0].NativeState == "" {
			t.Errorf("%s: the cluster's runs are %+v (%v)", j.Name, runs, err)
		}
		rows, err := p.Store.Ledger(t.Context(), j.ID)
		if err != nil || len(rows) != j.Nodes*2 {
			t.Errorf("%s: %d ledger rows for %d accelerators (%v)", j.Name, len(rows), j.Nodes*2, err)
		}
	}
}

func TestJobsRunOnKubernetesThroughTheWholeSystem(t *testing.T) {
	c := kubetest.Start(t)
	for _, n := range []string{"k1", "k2"} {
		var devices []string
		for i := range 8 {
			devices = append(devices, fmt.Sprintf("GPU-%s-%d", n, i))
		}
		c.Node(n, devices)
	}
	p := on(t, fmt.Sprintf("[{name: prod, kind: kubernetes, kubeconfig: %s, image: 'example.net/train:1'}]", c.Kubeconfig), "prod", "kubernetes", "k1", "k2")
	jobsSettle(t, p, 12)
}

func TestJobsRunOnSlurmThroughTheWholeSystem(t *testing.T) {
	c := slurmtest.Start(t, []string{"h1", "h2"}, nil, 8)
	p := on(t, fmt.Sprintf("[{name: alps, kind: slurm, url: '%s', jwt_key_file: %s, user: %s, conf: %s, partition: pool, log_dir: %s}]", c.URL, c.KeyFile, c.User, c.Conf, c.LogDir), "alps", "slurm", "h1", "h2")
	jobsSettle(t, p, 12)
}
