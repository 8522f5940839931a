package kube_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpupool/activities/cluster"
	"gpupool/activities/cluster/clustertest"
	"gpupool/activities/cluster/kube"
	"gpupool/activities/cluster/kube/kubetest"
	"gpupool/schema"
	"gpupool/schema/store"
)

var quick = cluster.Timing{Poll: 500 * time.Millisecond, Down: 2 * time.Second, Adopt: 2 * time.Second}

func open(c *kubetest.Cluster) func(context.Context) (cluster.Backend, error) {
	return func(context.Context) (cluster.Backend, error) {
		return kube.Open(kube.Config{Kubeconfig: c.Kubeconfig, Image: "example.net/train:1"})
	}
}

// devices are the UUIDs that the pool's inventory has of a node's accelerators.
func devices(node string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("GPU-%s-%d", node, i))
	}
	return out
}

func TestJobsOnARealKubernetes(t *testing.T) {
	c := kubetest.Start(t)
	nodes := []string{"k1", "k2"}
	for _, n := range nodes {
		c.Node(n, devices(n, 8))
	}
	p := clustertest.New(t, "prod", schema.ClusterKubernetes, nodes, 8)
	stop := p.Connect(open(c), quick)

	t.Run("nodes of the pool are marked as its", func(t *testing.T) {
		p.Await("k1 has the taint", func() bool {
			n, err := c.API.CoreV1().Nodes().Get(t.Context(), "k1", meta.GetOptions{})
			return err == nil && slices.ContainsFunc(n.Spec.Taints, func(t core.Taint) bool { return t.Key == kube.Taint })
		})
	})
	t.Run("a job runs, its output and exit code come back", func(t *testing.T) {
		j := p.Submit("x2", 1, `echo "$GREETING $GPUPOOL_RANK of $GPUPOOL_NODES"; sleep 1; exit 7`, func(n *store.NewJob) { n.Env = map[string]string{"GREETING": "$(HOME) 'me'"} })
		j = p.AwaitState(j.ID, schema.JobFailed)
		if j.ExitCode == nil || *j.ExitCode != 7 {
			t.Errorf("exit code %v, want 7", j.ExitCode)
		}
		if out := p.Output(j.ID, 0); out != "$(HOME) 'me' 0 of 1\n" {
			t.Errorf("output %q", out)
		}
		p.Sums(j)
		p.Await("nothing of it is left in the cluster", func() bool {
			jobs, err := c.API.BatchV1().Jobs("gpupool").List(t.Context(), meta.ListOptions{})
			return err == nil && len(jobs.Items) == 0
		})
	})
	t.Run("a job is given its volumes, as the user whose they are, and begins in its folder", func(t *testing.T) {
		for _, v := range []store.NewVolume{{Name: "sets", Path: "/mnt/sets"}, {Name: "models", Path: "/mnt/models", Claim: "models", Writable: true, User: 20001}} {
			if _, err := p.DB.CreateVolume(t.Context(), "test", v); err != nil {
				t.Fatal(err)
			}
		}
		j := p.Submit("x1", 1, "sleep 30", func(n *store.NewJob) {
			n.WorkDir = "/models/run7"
			n.Mounts = []schema.Mount{{Volume: "sets", Path: "a/b", Target: "/data"}, {Volume: "models", Target: "/models", Write: true}, {Volume: "sets", Target: "/all"}}
		})
		var pod core.PodSpec
		p.Await("it has a pod", func() bool {
			pods, err := c.API.CoreV1().Pods("gpupool").List(t.Context(), meta.ListOptions{})
			if err != nil {
				return false
			}
			i := slices.IndexFunc(pods.Items, func(o core.Pod) bool {
				return strings.HasPrefix(o.Name, kube.RunName(cluster.Key{Job: j.ID, Attempt: 1}))
			})
			if i >= 0 {
				pod = pods.Items[i].Spec
			}
			return i >= 0
		})
		if id := pod.SecurityContext.RunAsUser; id == nil || *id != 20001 || pod.Containers[0].WorkingDir != "/models/run7" {
			t.Errorf("it runs as user %v in %q", id, pod.Containers[0].WorkingDir)
		}
		shows := map[string]string{}
		for _, v := range pod.Volumes {
			switch {
			case v.HostPath != nil:
				shows[v.Name] = v.HostPath.Path
			case v.PersistentVolumeClaim != nil:
				shows[v.Name] = "claim " + v.PersistentVolumeClaim.ClaimName
			}
		}
		var got []string
		for _, m := range pod.Containers[0].VolumeMounts {
			got = append(got, fmt.Sprintf("%s/%s at %s read-only %t", shows[m.Name], m.SubPath, m.MountPath, m.ReadOnly))
		}
		if want := []string{"/mnt/sets/a/b at /data read-only true", "claim models/ at /models read-only false", "/mnt/sets/ at /all read-only true"}; !slices.Equal(got, want) {
			t.Errorf("it sees %q, not %q", got, want)
		}
		if err := p.DB.RequestStop(t.Context(), j.ID, 0, schema.AttemptCancelled, "test", "seen enough"); err != nil {
			t.Fatal(err)
		}
		p.AwaitState(j.ID, schema.JobCancelled)
	})
	t.Run("a gang runs once on each of its nodes", func(t *testing.T) {
		j := p.Submit("xall", 2, `echo "$GPUPOOL_RANK $GPUPOOL_PEERS"`, nil)
		j = p.AwaitState(j.ID, schema.JobCompleted)
		for rank := range 2 {
			if out, want := p.Output(j.ID, rank), fmt.Sprintf("%d k1,k2\n", rank); out != want {
				t.Errorf("rank %d wrote %q, want %q", rank, out, want)
			}
		}
		p.Sums(j)
	})
	t.Run("a cancelled job ends with time to tidy up, one that ignores it is killed", func(t *testing.T) {
		mark := filepath.Join(t.TempDir(), "mark")
		j := p.Submit("x1", 1, `trap 'sleep 0.2; echo tidy > $MARK; exit 0' TERM; echo up; while :; do sleep 0.1; done`, func(n *store.NewJob) { n.Env = map[string]string{"MARK": mark} })
		k := p.Submit("x1", 1, `trap '' TERM; echo up; while :; do sleep 0.1; done`, nil)
		for _, id := range []string{j.ID, k.ID} {
			p.Await("it runs", func() bool { return strings.Contains(p.Output(id, 0), "up") })
			if err := p.DB.RequestStop(t.Context(), id, 0, schema.AttemptCancelled, "somebody", ""); err != nil {
				t.Fatal(err)
			}
			p.AwaitState(id, schema.JobCancelled)
		}
		if b, err := os.ReadFile(mark); string(b) != "tidy\n" {
			t.Errorf("it was not asked to end: %q (%v)", b, err)
		}
		if why := p.Cordon("k1", schema.CordonRelease); why != "" {
			t.Errorf("their ends were confirmed, but the server is cordoned: %s", why)
		}
		p.Sums(j, k)
	})
	t.Run("what the device plugin chooses is what the record says", func(t *testing.T) {
		j := p.Submit("x2", 1, `sleep 300`, nil) // the pool says 0 and 1; this kubelet takes the last
		p.AwaitState(j.ID, schema.JobRunning)
		p.Await("the record has what was bound", func() bool { return slices.Equal(p.Held(j.ID, "k1"), []int{6, 7}) })
		if p.Drifts(schema.DriftDevices) == 0 {
			t.Error("nobody was told that other devices were bound")
		}
		if err := p.DB.RequestStop(t.Context(), j.ID, 0, schema.AttemptCancelled, "test", ""); err != nil {
			t.Fatal(err)
		}
		p.AwaitState(j.ID, schema.JobCancelled)
		p.Sums(j)
	})
	t.Run("other people's pods are seen and left alone", func(t *testing.T) {
		pod := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "notebook", Namespace: "default"}, Spec: core.PodSpec{
			Tolerations: []core.Toleration{{Operator: core.TolerationOpExists}}, NodeSelector: map[string]string{"kubernetes.io/hostname": "k1"}, RestartPolicy: core.RestartPolicyNever,
			Containers: []core.Container{{Name: "main", Image: "x", Command: []string{"sleep", "300"}, Resources: core.ResourceRequirements{Limits: core.ResourceList{kubetest.Resource: resource.MustParse("6")}}}}}}
		if _, err := c.API.CoreV1().Pods("default").Create(t.Context(), pod, meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Await("six are kept", func() bool { return slices.Equal(p.Kept("k1"), []int{2, 3, 4, 5, 6, 7}) })
		if p.Drifts(schema.DriftForeign) == 0 {
			t.Error("nobody was told of somebody's pod")
		}
		j := p.Submit("xall", 1, `true`, nil)
		p.AwaitState(j.ID, schema.JobCompleted)
		got, err := c.API.CoreV1().Pods("default").Get(t.Context(), "notebook", meta.GetOptions{})
		if err != nil || got.Status.Phase != core.PodRunning {
			t.Fatalf("somebody's pod is %s (%v)", got.Status.Phase, err)
		}
		if err := c.API.CoreV1().Pods("default").Delete(t.Context(), "notebook", meta.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Await("none is kept", func() bool { return len(p.Kept("k1")) == 0 })
	})
	t.Run("kubectl cordon is a cordon in the pool", func(t *testing.T) {
		cordon(t, c, "k2", true)
		p.Await("it is cordoned", func() bool { return p.Cordon("k2", schema.CordonCluster) != "" })
		if p.Drifts(schema.DriftDrained) == 0 {
			t.Error("nobody was told of the cordon")
		}
		cordon(t, c, "k2", false)
		p.Await("it is not any more", func() bool { return p.Cordon("k2", schema.CordonCluster) == "" })
	})
	t.Run("a cordon in the pool is one in Kubernetes, which comes back if it is lifted there", func(t *testing.T) {
		unschedulable := func() bool {
			n, err := c.API.CoreV1().Nodes().Get(t.Context(), "k2", meta.GetOptions{})
			return err == nil && n.Spec.Unschedulable
		}
		if _, err := p.DB.Cordon(t.Context(), p.Servers["k2"].ID, "", schema.CordonOperator, "me", "smoke"); err != nil {
			t.Fatal(err)
		}
		p.Await("it is cordoned", unschedulable)
		cordon(t, c, "k2", false)
		p.Await("it is cordoned again", unschedulable)
		if p.Drifts(schema.DriftUndrained) == 0 {
			t.Error("nobody was told that it was lifted")
		}
		if why := p.Cordon("k2", schema.CordonCluster); why != "" {
			t.Errorf("our own cordon came back: %s", why)
		}
		if err := p.DB.Uncordon(t.Context(), p.Servers["k2"].ID, "", schema.CordonOperator, "me"); err != nil {
			t.Fatal(err)
		}
		p.Await("it is a node like others", func() bool { return !unschedulable() })
	})
	for how, says := range map[meta.DeletionPropagation]string{meta.DeletePropagationForeground: "with its pod", meta.DeletePropagationBackground: "as kubectl does"} {
		t.Run("a job that somebody deletes "+says+" goes back to the queue", func(t *testing.T) {
			j := p.Submit("x1", 1, `sleep 300`, nil)
			p.AwaitState(j.ID, schema.JobRunning)
			p.Await("it runs there", func() bool { return len(jobs(t, c)) == 1 })
			before := p.Drifts(schema.DriftLost)
			if err := c.API.BatchV1().Jobs("gpupool").Delete(t.Context(), jobs(t, c)[0], meta.DeleteOptions{PropagationPolicy: &how}); err != nil {
				t.Fatal(err)
			}
			p.Await("it runs again", func() bool { j := p.Job(j.ID); return j.Attempt == 2 && j.State == schema.JobRunning })
			if p.Drifts(schema.DriftLost) == before {
				t.Error("nobody was told")
			}
			if err := p.DB.RequestStop(t.Context(), j.ID, 0, schema.AttemptCancelled, "test", ""); err != nil {
				t.Fatal(err)
			}
			p.AwaitState(j.ID, schema.JobCancelled)
			p.Sums(j)
		})
	}
	t.Run("the API server dies, and a job ends meanwhile", func(t *testing.T) {
		j := p.Submit("x1", 1, `sleep 4; exit 3`, nil)
		p.AwaitState(j.ID, schema.JobRunning)
		c.Kill("apiserver")
		p.Await("its servers are kept out, with the cause", func() bool {
			return strings.Contains(p.Cordon("k2", schema.CordonCluster), "prod does not answer")
		})
		if j := p.Job(j.ID); j.State != schema.JobRunning {
			t.Fatalf("a lost connection is not a lost job, but it is %s: %s", j.State, j.Cause)
		}
		c.StartAPI()
		j = p.AwaitState(j.ID, schema.JobFailed)
		if j.ExitCode == nil || *j.ExitCode != 3 || j.Attempt != 1 {
			t.Errorf("exit code %v after attempt %d, want 3 after 1", j.ExitCode, j.Attempt)
		}
		p.Await("the servers are used again", func() bool { return p.Cordon("k2", schema.CordonCluster) == "" })
	})
	t.Run("a job ends while nobody looks", func(t *testing.T) {
		j := p.Submit("x1", 1, `echo once; sleep 2; exit 4`, nil)
		p.Await("its output is read", func() bool { return p.Output(j.ID, 0) == "once\n" })
		stop()
		p.Await("Kubernetes is done with it", func() bool {
			list, err := c.API.BatchV1().Jobs("gpupool").List(t.Context(), meta.ListOptions{})
			return err == nil && len(list.Items) == 1 && list.Items[0].Status.Failed == 1
		})
		p.Connect(open(c), quick)
		j = p.AwaitState(j.ID, schema.JobFailed)
		if j.ExitCode == nil || *j.ExitCode != 4 {
			t.Errorf("exit code %v, want 4", j.ExitCode)
		}
		if out := p.Output(j.ID, 0); out != "once\n" {
			t.Errorf("another connector took over, and its output is %q", out)
		}
		p.Sums(j)
	})
	t.Run("a node that has left is none, which shows", func(t *testing.T) {
		b, err := open(c)(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		for range 2 { // again is no error
			if err := b.Leave(t.Context(), "k2"); err != nil {
				t.Fatal(err)
			}
		}
		p.Await("it is told", func() bool { return p.Drifts(schema.DriftMissing) > 0 })
		p.Await("no job comes to it", func() bool {
			return strings.Contains(p.Cordon("k2", schema.CordonCluster), "it is no node of its cluster prod")
		})
	})
}

func jobs(t *testing.T, c *kubetest.Cluster) []string {
	t.Helper()
	list, err := c.API.BatchV1().Jobs("gpupool").List(t.Context(), meta.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, j := range list.Items {
		out = append(out, j.Name)
	}
	return out
}

func cordon(t *testing.T, c *kubetest.Cluster, node string, on bool) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, on)
	if _, err := c.API.CoreV1().Nodes().Patch(t.Context(), node, "application/merge-patch+json", patch, meta.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestServicesOnARealKubernetes(t *testing.T) {
	c := kubetest.Start(t)
	nodes := []string{"k1", "k2", "k3"}
	kubelets := map[string]*kubetest.Kubelet{}
	for _, n := range nodes {
		kubelets[n] = c.Node(n, devices(n, 8))
	}
	p := clustertest.New(t, "prod", schema.ClusterKubernetes, nodes, 8)
	timing := quick
	timing.Lost = 2 * time.Second
	p.Connect(open(c), timing)
	ctx := t.Context()
	serve := func(command string, change func(*store.NewJob)) schema.Job {
		return p.Submit("xall", 1, command, func(n *store.NewJob) {
			n.Kind = schema.JobService
			if change != nil {
				change(n)
			}
		})
	}
	cancel := func(jobs ...schema.Job) {
		for _, j := range jobs {
			if err := p.DB.RequestStop(ctx, j.ID, 0, schema.AttemptCancelled, "test", ""); err != nil {
				t.Fatal(err)
			}
		}
		for _, j := range jobs {
			p.AwaitState(j.ID, schema.JobCancelled)
			p.Sums(p.Job(j.ID))
		}
		p.Await("nothing of them is left in the cluster", func() bool {
			d, err1 := c.API.AppsV1().Deployments("gpupool").List(ctx, meta.ListOptions{})
			pods, err2 := c.API.CoreV1().Pods("gpupool").List(ctx, meta.ListOptions{})
			return err1 == nil && err2 == nil && len(d.Items)+len(pods.Items) == 0
		})
	}
	deployment := func(j schema.Job) string { return kube.RunName(cluster.Key{Job: j.ID, Attempt: j.Attempt}) + "-0" }
	podOf := func(j schema.Job) *core.Pod {
		list, err := c.API.CoreV1().Pods("gpupool").List(ctx, meta.ListOptions{LabelSelector: "gpupool.dev/run=" + kube.RunName(cluster.Key{Job: j.ID, Attempt: j.Attempt})})
		if err != nil || len(list.Items) == 0 {
			return nil
		}
		return &list.Items[len(list.Items)-1]
	}
	where := func(j schema.Job) string {
		for _, n := range nodes {
			if len(p.Held(j.ID, n)) > 0 {
				return n
			}
		}
		return ""
	}

	t.Run("one that ends is begun again where it ran, with what it holds", func(t *testing.T) {
		runs := filepath.Join(t.TempDir(), "runs")
		j := serve(`echo x >> $RUNS; n=$(wc -l < $RUNS); echo "run $n"; [ $n -ge 3 ] && sleep 300; exit 3`, func(n *store.NewJob) { n.Env = map[string]string{"RUNS": runs} })
		p.Await("its third run is known", func() bool { return strings.Contains(p.Output(j.ID, 0), "run 3") })
		j = p.Job(j.ID)
		if j.State != schema.JobRunning || j.Attempt != 1 || j.Restarts < 1 {
			t.Errorf("it is %s in attempt %d after %d restarts", j.State, j.Attempt, j.Restarts)
		}
		if held := p.Held(j.ID, where(j)); len(held) != 8 {
			t.Errorf("it holds %v", held)
		}
		if strings.Count(p.Output(j.ID, 0), "run 3") != 1 {
			t.Errorf("its output is %q", p.Output(j.ID, 0))
		}
		cancel(j)
	})
	t.Run("its pod that somebody deletes is made again", func(t *testing.T) {
		j := serve(`sleep 300`, nil)
		j = p.AwaitState(j.ID, schema.JobRunning)
		old := podOf(j)
		if err := c.API.CoreV1().Pods("gpupool").Delete(ctx, old.Name, meta.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Await("the pool knows that it was begun again", func() bool {
			j := p.Job(j.ID)
			return j.Restarts == 1 && j.State == schema.JobRunning && j.Attempt == 1
		})
		cancel(j)
	})
	t.Run("one whose Deployment somebody deletes is placed anew, once its pod is gone", func(t *testing.T) {
		mark := filepath.Join(t.TempDir(), "alone")
		j := serve(`trap 'sleep 1; rmdir $MARK; exit 0' TERM; mkdir $MARK && echo "alone $GPUPOOL_ATTEMPT"; while :; do sleep 0.1; done`, func(n *store.NewJob) {
			n.Env, n.Grace = map[string]string{"MARK": mark}, 20*time.Second
		})
		p.Await("it runs", func() bool { return strings.Contains(p.Output(j.ID, 0), "alone 1") })
		background := meta.DeletePropagationBackground // what kubectl does
		if err := c.API.AppsV1().Deployments("gpupool").Delete(ctx, deployment(p.Job(j.ID)), meta.DeleteOptions{PropagationPolicy: &background}); err != nil {
			t.Fatal(err)
		}
		p.Await("it runs again, and nothing of the first was there any more", func() bool { return strings.Contains(p.Output(j.ID, 0), "alone 2") })
		if p.Drifts(schema.DriftLost) == 0 {
			t.Error("nobody was told")
		}
		cancel(p.Job(j.ID))
	})
	t.Run("a replica whose node dies is placed anew, the others are not touched", func(t *testing.T) {
		a, b := serve(`echo up; sleep 300`, nil), serve(`echo up; sleep 300`, nil)
		p.AwaitState(a.ID, schema.JobRunning)
		p.AwaitState(b.ID, schema.JobRunning)
		dead := where(p.Job(a.ID))
		kubelets[dead].Die()
		p.Await("it runs on another node", func() bool {
			j := p.Job(a.ID)
			return j.Attempt == 2 && j.State == schema.JobRunning && where(j) != dead
		})
		if j := p.Job(b.ID); j.Attempt != 1 || j.State != schema.JobRunning {
			t.Errorf("the other is %s in attempt %d", j.State, j.Attempt)
		}
		if why := p.Cordon(dead, schema.CordonRelease); why == "" {
			t.Error("what ran on the dead node may run there still, but it may be given out again")
		}
	})
}

// What the record and a real Kubernetes may come to disagree about, each with what is done and told; see schema.ClusterDrift.
// More of them are in TestJobsOnARealKubernetes: foreign, drained, undrained, lost, missing.
func TestDriftOnARealKubernetes(t *testing.T) {
	c := kubetest.Start(t)
	kubelet := c.Node("k1", devices("k1", 4))
	p := clustertest.New(t, "prod", schema.ClusterKubernetes, []string{"k1"}, 4)
	p.Connect(open(c), quick)
	ctx := t.Context()
	cancel := func(jobs ...schema.Job) {
		for _, j := range jobs {
			if err := p.DB.RequestStop(ctx, j.ID, 0, schema.AttemptCancelled, "test", ""); err != nil {
				t.Fatal(err)
			}
		}
		for _, j := range jobs {
			p.AwaitState(j.ID, schema.JobCancelled)
			p.Sums(j)
		}
	}
	// copied is a Job of the pool as somebody who copies it makes it: under another name, to run at once.
	copied := func(name, run string, change func(notes map[string]string)) {
		list, err := c.API.BatchV1().Jobs("gpupool").List(ctx, meta.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			t.Fatalf("there is no Job to copy (%v)", err)
		}
		j := list.Items[0].DeepCopy()
		now := false
		j.ObjectMeta = meta.ObjectMeta{Name: name, Namespace: j.Namespace, Labels: j.Labels, Annotations: j.Annotations}
		change(j.Annotations)
		j.Labels["gpupool.dev/run"] = run
		j.Spec.Selector, j.Spec.Suspend = nil, &now
		j.Spec.Template.Labels = map[string]string{}
		for k, v := range j.Labels {
			if strings.HasPrefix(k, "gpupool.dev/") || k == "app.kubernetes.io/managed-by" {
				j.Spec.Template.Labels[k] = v
			}
		}
		if _, err := c.API.BatchV1().Jobs("gpupool").Create(ctx, j, meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(name string) func() bool { return func() bool { return !slices.Contains(jobs(t, c), name) } }

	t.Run("duplicate: a run that is there again is ended, and the first goes on", func(t *testing.T) {
		j := p.Submit("x1", 1, `sleep 300`, nil)
		p.AwaitState(j.ID, schema.JobRunning)
		copied("copy-0", "copy", func(map[string]string) {})
		p.Await("the second is ended", gone("copy-0"))
		if p.Drifts(schema.DriftDuplicate) == 0 {
			t.Error("nobody was told of the second")
		}
		if j := p.Job(j.ID); j.State != schema.JobRunning || j.Attempt != 1 {
			t.Errorf("the job is %s in attempt %d: %s", j.State, j.Attempt, j.Cause)
		}
		cancel(j)
	})
	t.Run("orphan: a run that the record does not know is ended after a while", func(t *testing.T) {
		j := p.Submit("x1", 1, `sleep 300`, nil)
		p.AwaitState(j.ID, schema.JobRunning)
		copied("unknown-0", "unknown", func(notes map[string]string) { notes["gpupool.dev/job"] = "job_unknown" })
		p.Await("it is ended", gone("unknown-0"))
		if p.Drifts(schema.DriftOrphan) == 0 {
			t.Error("nobody was told of it")
		}
		if j := p.Job(j.ID); j.State != schema.JobRunning {
			t.Errorf("the other job is %s: %s", j.State, j.Cause)
		}
		cancel(j)
	})
	t.Run("contested: a device that two jobs were given is kept from the next", func(t *testing.T) {
		a := p.Submit("x1", 1, `sleep 300`, nil)
		p.AwaitState(a.ID, schema.JobRunning)
		p.Await("the record has its device", func() bool { return slices.Equal(p.Held(a.ID, "k1"), []int{3}) })
		kubelet.Forget(true)
		b := p.Submit("x1", 1, `sleep 300`, nil)
		p.AwaitState(b.ID, schema.JobRunning)
		p.Await("the device is kept", func() bool { return slices.Equal(p.Kept("k1"), []int{3}) })
		kubelet.Forget(false)
		if p.Drifts(schema.DriftContested) != 1 {
			t.Errorf("it was told %d times", p.Drifts(schema.DriftContested))
		}
		if held := p.Held(a.ID, "k1"); !slices.Equal(held, []int{3}) || slices.Equal(p.Held(b.ID, "k1"), held) {
			t.Errorf("both are booked on it: %v and %v", held, p.Held(b.ID, "k1"))
		}
		cancel(a, b)
		if kept := p.Kept("k1"); !slices.Equal(kept, []int{3}) {
			t.Errorf("after both have ended %v are kept, want the contested one until a person has looked", kept)
		}
		next := p.Submit("xall", 1, `true`, nil)
		if p.Job(next.ID).State != schema.JobQueued {
			t.Error("a job was given it")
		}
		cancel(next)
	})
}
