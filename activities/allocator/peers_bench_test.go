package allocator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"

	"golang.org/x/sync/errgroup"

	"gpupool/activities/cluster/kube/kubetest"
	"gpupool/activities/cluster/slurm/slurmtest"
)

// slurmStarts is how many trivial jobs of one accelerator Slurm starts a second, until none is pending.
func slurmStarts(b *testing.B) float64 {
	const jobs = 300
	c := slurmtest.Start(b, []string{"h1", "h2", "h3", "h4"}, nil, 8)
	c.Must("scontrol", "update", "partitionname=pool", "state=DOWN")
	c.Must("sbatch", "--array=1-300", "--gres=gpu:1", "--output=/dev/null", "--wrap=true")
	began := time.Now()
	c.Must("scontrol", "update", "partitionname=pool", "state=UP")
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for strings.TrimSpace(c.Must("squeue", "-h", "-r", "-t", "PENDING", "-o", "%i")) != "" {
		select {
		case <-tick.C:
		case <-deadline.C:
			b.Fatalf("Slurm has not started %d jobs in 2 minutes", jobs)
		}
	}
	return jobs / time.Since(began).Seconds()
}

// kubeBinds is how many pods of one accelerator kube-scheduler binds a second, from the first to the last of those that
// wait for it as it starts. The nodes are entries in its API that nothing runs behind: binding is all that is measured.
func kubeBinds(b *testing.B) float64 {
	const nodes, per, pods = 16, 64, 1000
	ctx := b.Context()
	ok := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	c := kubetest.Start(b)
	c.Kill("scheduler")
	rc, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	ok(err)
	rc.QPS, rc.Burst = 5000, 5000
	api, err := kubernetes.NewForConfig(rc)
	ok(err)
	for i := range nodes {
		ok(readyNode(b, api, fmt.Sprint("node", i), per))
	}
	var many errgroup.Group
	many.SetLimit(16)
	one := core.ResourceList{kubetest.Resource: resource.MustParse("1")}
	for i := range pods {
		many.Go(func() error {
			_, err := api.CoreV1().Pods("gpupool").Create(ctx, &core.Pod{ObjectMeta: meta.ObjectMeta{Name: fmt.Sprint("pod", i)},
				Spec: core.PodSpec{Containers: []core.Container{{Name: "main", Image: "none", Resources: core.ResourceRequirements{Limits: one, Requests: one}}}}}, meta.CreateOptions{})
			return err
		})
	}
	ok(many.Wait())
	// Heard of as controllers do: it begins again by itself where the API server ends a watch.
	heard := make(chan struct{}, pods)
	bound := map[string]bool{} // of the informer's one goroutine
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithNamespace("gpupool"))
	_, err = factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, o any) {
		if p, is := o.(*core.Pod); is && p.Spec.NodeName != "" && !bound[p.Name] {
			bound[p.Name] = true
			heard <- struct{}{}
		}
	}})
	ok(err)
	end := make(chan struct{})
	defer factory.Shutdown()
	defer close(end)
	factory.Start(end)
	factory.WaitForCacheSync(end)
	c.StartScheduler(5000)
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	var first time.Time
	for n := range pods {
		select {
		case <-heard:
			if n == 0 {
				first = time.Now()
			}
		case <-deadline.C:
			b.Fatalf("kube-scheduler has bound %d of %d pods in 2 minutes", n, pods)
		}
	}
	return (pods - 1) / time.Since(first).Seconds()
}

// readyNode makes a node with accelerators that the scheduler may use: the taint that a new one has is taken off.
func readyNode(b *testing.B, api kubernetes.Interface, name string, accelerators int64) error {
	have := core.ResourceList{core.ResourceCPU: resource.MustParse("640"), core.ResourceMemory: resource.MustParse("2Ti"), core.ResourcePods: resource.MustParse("1000"), kubetest.Resource: *resource.NewQuantity(accelerators, resource.DecimalSI)}
	n, err := api.CoreV1().Nodes().Create(b.Context(), &core.Node{ObjectMeta: meta.ObjectMeta{Name: name}}, meta.CreateOptions{})
	if err != nil {
		return err
	}
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error { // the controller manager labels it at the same time
		if n, err = api.CoreV1().Nodes().Get(b.Context(), name, meta.GetOptions{}); err != nil {
			return err
		}
		now := meta.Now()
		n.Status.Capacity, n.Status.Allocatable = have, have
		n.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now}}
		n, err = api.CoreV1().Nodes().UpdateStatus(b.Context(), n, meta.UpdateOptions{})
		return err
	}); err != nil {
		return err
	}
	deadline := time.Now().Add(time.Minute)
	for len(n.Spec.Taints) > 0 {
		if time.Now().After(deadline) {
			return fmt.Errorf("node %s still has %v", name, n.Spec.Taints)
		}
		<-time.After(50 * time.Millisecond)
		if n, err = api.CoreV1().Nodes().Get(b.Context(), name, meta.GetOptions{}); err != nil {
			return err
		}
	}
	return nil
}
