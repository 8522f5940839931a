// Package kube runs the pool's jobs on a Kubernetes cluster: each node's part of a run is a Job pinned to its node, made
// suspended and let go once the record has it. A service's replica is a Deployment of one pod in the same way, made with none.
//
// It reads through informers and writes through the API; names are made of job, attempt and rank, so that asking twice is
// asking once. Invariant: only objects with the owner's labels are ever changed, and of nodes only what its own methods
// name. Not here: what is to be done (activities/cluster).
package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"gpupool/activities/cluster"
	"gpupool/schema"
)

// Labels and annotations of what the pool makes and marks.
const (
	labelManager = "app.kubernetes.io/managed-by"
	manager      = "gpupool"
	labelOwner   = "gpupool.dev/owner"
	labelRun     = "gpupool.dev/run"  // the name all parts share
	labelRank    = "gpupool.dev/rank" // of a part
	noteJob      = "gpupool.dev/job"
	noteAttempt  = "gpupool.dev/attempt"
	noteNodes    = "gpupool.dev/nodes"   // how many parts the run has
	noteDrained  = "gpupool.dev/drained" // on a node: that the pool cordoned it, and why
	// Taint keeps others' pods off nodes of the pool; its value is the owner.
	Taint = "gpupool.dev/pool"
)

// Config is how a cluster is reached.
type Config struct {
	Owner      string // marks this pool's objects; empty = gpupool
	Kubeconfig string // empty = the pod's service account
	Context    string // of the kubeconfig; empty = its current one
	Namespace  string // of the jobs; empty = gpupool
	Image      string // that jobs run in
	// Resources are the extended resources of accelerators, by vendor; what is missing is of Resources, the variable.
	Resources map[schema.Vendor]string
}

// Resources are what the vendors' device plugins call their devices.
var Resources = map[schema.Vendor]string{
	schema.VendorNVIDIA: "nvidia.com/gpu", schema.VendorAMD: "amd.com/gpu", schema.VendorIntel: "gpu.intel.com/i915", schema.VendorHuawei: "huawei.com/Ascend910",
}

// gaudi is what Intel's plugin for Gaudi calls its devices, which are not those of its GPUs.
const gaudi = "habana.ai/gaudi"

// Kube is a cluster.Backend.
type Kube struct {
	cfg     Config
	api     kubernetes.Interface
	factory []informers.SharedInformerFactory
	synced  []cache.InformerSynced
	jobs    batchlisters.JobLister
	serves  appslisters.DeploymentLister
	pods    corelisters.PodLister
	nodes   corelisters.NodeLister
	changed chan struct{}
	stop    chan struct{}
}

// Open begins to follow the cluster, which need not answer yet.
func Open(c Config) (*Kube, error) {
	if c.Owner == "" {
		c.Owner = manager
	}
	if c.Namespace == "" {
		c.Namespace = "gpupool"
	}
	if c.Image == "" {
		return nil, schema.Invalid("image", "", "the container image that jobs run in")
	}
	rc, err := restConfig(c)
	if err != nil {
		return nil, &schema.Error{Code: schema.CodeInvalid, Field: "kubeconfig", Message: "can't be used", Hint: "see that the file and the context exist", Err: err}
	}
	rc.QPS, rc.Burst, rc.UserAgent = 200, 400, "gpupool"
	api, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, err
	}
	return follow(c, api)
}

func restConfig(c Config) (*rest.Config, error) {
	if c.Kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}, &clientcmd.ConfigOverrides{CurrentContext: c.Context}).ClientConfig()
}

func follow(c Config, api kubernetes.Interface) (*Kube, error) {
	k := &Kube{cfg: c, api: api, changed: make(chan struct{}, 1), stop: make(chan struct{})}
	ours := informers.NewSharedInformerFactoryWithOptions(api, 10*time.Minute, informers.WithNamespace(c.Namespace),
		informers.WithTweakListOptions(func(o *meta.ListOptions) {
			o.LabelSelector = labelManager + "=" + manager + "," + labelOwner + "=" + c.Owner
		}))
	all := informers.NewSharedInformerFactory(api, 10*time.Minute)
	k.factory = []informers.SharedInformerFactory{ours, all}
	k.serves = ours.Apps().V1().Deployments().Lister()
	k.jobs, k.pods, k.nodes = ours.Batch().V1().Jobs().Lister(), all.Core().V1().Pods().Lister(), all.Core().V1().Nodes().Lister()
	wake := func() {
		select {
		case k.changed <- struct{}{}:
		default:
		}
	}
	news := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { wake() }, DeleteFunc: func(any) { wake() }, UpdateFunc: func(old, now any) {
		if before, ok := old.(*core.Node); ok && !nodeChanged(before, now.(*core.Node)) {
			return // a heartbeat
		}
		wake()
	}}
	for _, i := range []cache.SharedIndexInformer{ours.Batch().V1().Jobs().Informer(), ours.Apps().V1().Deployments().Informer(), all.Core().V1().Pods().Informer(), all.Core().V1().Nodes().Informer()} {
		if err := i.SetTransform(slim); err != nil {
			return nil, err
		}
		if _, err := i.AddEventHandler(news); err != nil {
			return nil, err
		}
		k.synced = append(k.synced, i.HasSynced)
	}
	for _, f := range k.factory {
		f.Start(k.stop)
	}
	return k, nil
}

// slim drops what is kept of every object of a big cluster and read by nobody here.
func slim(obj any) (any, error) {
	if o, err := apimeta.Accessor(obj); err == nil {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

func nodeChanged(a, b *core.Node) bool {
	x, _ := ready(a)
	y, _ := ready(b)
	return x != y || a.Spec.Unschedulable != b.Spec.Unschedulable || a.Annotations[noteDrained] != b.Annotations[noteDrained] || len(a.Spec.Taints) != len(b.Spec.Taints)
}

// Close ends the informers.
func (k *Kube) Close() {
	close(k.stop)
	for _, f := range k.factory {
		f.Shutdown()
	}
}

// Changed tells of news from the informers.
func (k *Kube) Changed() <-chan struct{} { return k.changed }

// Observe reads what the informers hold. They hold it while the API server is away, so that is asked first.
func (k *Kube) Observe(ctx context.Context, _ []cluster.Ref) (cluster.View, error) {
	v := cluster.View{Definite: true, Nodes: map[string]cluster.Node{}}
	if d, ok := ctx.Deadline(); !ok || time.Until(d) > 10*time.Second {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
	}
	if _, err := k.api.CoreV1().Namespaces().Get(ctx, k.cfg.Namespace, meta.GetOptions{}); err != nil {
		return v, fmt.Errorf("reading namespace %s: %w", k.cfg.Namespace, err)
	}
	if !cache.WaitForCacheSync(ctx.Done(), k.synced...) {
		return v, errors.New("the API server's lists are not there yet")
	}
	pods, err := k.pods.List(labels.Everything())
	if err != nil {
		return v, err
	}
	nodes, err := k.nodes.List(labels.Everything())
	if err != nil {
		return v, err
	}
	jobs, err := k.jobs.List(labels.Everything())
	if err != nil {
		return v, err
	}
	serves, err := k.serves.List(labels.Everything())
	if err != nil {
		return v, err
	}
	ofPart := map[string]*core.Pod{}
	busy := map[string]bool{}
	for _, p := range pods {
		over := p.Status.Phase == core.PodSucceeded || p.Status.Phase == core.PodFailed
		if k.ours(p) {
			if name := part(p.Labels); ofPart[name] == nil || ofPart[name].CreationTimestamp.Before(&p.CreationTimestamp) {
				ofPart[name] = p
			}
		} else if n := k.accelerators(p); n > 0 && !over && p.Spec.NodeName != "" {
			v.Foreign = append(v.Foreign, cluster.Foreign{Node: p.Spec.NodeName, What: "kubernetes pod " + p.Namespace + "/" + p.Name, Count: n, Devices: k.devices(p)})
		}
		busy[p.Spec.NodeName] = busy[p.Spec.NodeName] || !over && (k.ours(p) || k.accelerators(p) > 0)
	}
	for _, n := range nodes {
		node := cluster.Node{Drained: n.Spec.Unschedulable, Idle: !busy[n.Name], Joined: k.tainted(n)}
		node.Ready, node.Why = ready(n)
		node.Reason, node.Ours = n.Annotations[noteDrained]
		v.Nodes[n.Name] = node
	}
	v.Runs = k.runs(k.parts(jobs, serves, ofPart), ofPart)
	return v, nil
}

func (k *Kube) ours(o meta.Object) bool {
	l := o.GetLabels()
	return o.GetNamespace() == k.cfg.Namespace && l[labelManager] == manager && l[labelOwner] == k.cfg.Owner
}

func part(l map[string]string) string { return l[labelRun] + "-" + l[labelRank] }

func ready(n *core.Node) (bool, string) {
	for _, c := range n.Status.Conditions {
		if c.Type == core.NodeReady {
			if c.Status == core.ConditionTrue {
				return true, ""
			}
			return false, strings.TrimSpace(c.Reason + " " + c.Message)
		}
	}
	return false, "its kubelet has not reported"
}

func (k *Kube) tainted(n *core.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t core.Taint) bool { return t.Key == Taint && t.Value == k.cfg.Owner })
}

func (k *Kube) resource(v schema.Vendor, model string) string {
	if v == schema.VendorIntel && strings.Contains(model, "gaudi") {
		return gaudi
	}
	if r := k.cfg.Resources[v]; r != "" {
		return r
	}
	if r := Resources[v]; r != "" {
		return r
	}
	return string(v) + ".com/gpu"
}

// isAccelerator reports whether an extended resource is one of those that accelerators are asked for by.
func (k *Kube) isAccelerator(name core.ResourceName) bool {
	if name == gaudi {
		return true
	}
	for v, r := range Resources {
		if string(name) == r || string(name) == k.cfg.Resources[v] {
			return true
		}
	}
	return false
}

// accelerators is how many a pod asks for.
func (k *Kube) accelerators(p *core.Pod) int {
	n := 0
	for _, c := range p.Spec.Containers {
		for r, q := range c.Resources.Limits {
			if k.isAccelerator(r) {
				n += int(q.Value())
			}
		}
	}
	return n
}

// devices is what the device plugin chose, as the kubelet tells it in the pod's status (KEP-4680); nil = it doesn't.
func (k *Kube) devices(p *core.Pod) []cluster.Device {
	var out []cluster.Device
	for _, s := range p.Status.ContainerStatuses {
		for _, r := range s.AllocatedResourcesStatus {
			if !k.isAccelerator(r.Name) {
				continue
			}
			for _, d := range r.Resources {
				out = append(out, cluster.Device{UUID: string(d.ResourceID)})
			}
		}
	}
	return out
}

// Submit makes the run's Jobs, suspended, or a service's Deployment, of no pods. Those that are there already stay.
func (k *Kube) Submit(ctx context.Context, r cluster.Run) error {
	if r.Network != "" {
		return schema.Invalid("network", r.Network, "left out on Kubernetes: pods' networks are the cluster's to give")
	}
	if r.Service {
		_, err := k.api.AppsV1().Deployments(k.cfg.Namespace).Create(ctx, k.deployment(r), meta.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return domain(err)
		}
		return nil
	}
	for rank := range r.Parts {
		_, err := k.api.BatchV1().Jobs(k.cfg.Namespace).Create(ctx, k.job(r, rank), meta.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return domain(err)
		}
	}
	return nil
}

// domain tells what asking again can't better.
func domain(err error) error {
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return &schema.Error{Code: schema.CodeInvalid, Message: err.Error()}
	case apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "quota"):
		return &schema.Error{Code: schema.CodeForbidden, Message: err.Error()}
	default:
		return err
	}
}

// of are the Jobs of a run, or the Deployments. Its name is never used again by the pool.
func (k *Kube) of(ref cluster.Ref) ([]*batch.Job, []*apps.Deployment, error) {
	its := k.marked(ref)
	jobs, err := k.jobs.Jobs(k.cfg.Namespace).List(its)
	if err != nil {
		return nil, nil, err
	}
	serves, err := k.serves.Deployments(k.cfg.Namespace).List(its)
	return jobs, serves, err
}

// marked selects what is of a run.
func (k *Kube) marked(ref cluster.Ref) labels.Selector {
	return labels.SelectorFromSet(labels.Set{labelRun: ref.Native, labelOwner: k.cfg.Owner, labelManager: manager})
}

// Start lets the run's Jobs or Deployment go.
func (k *Kube) Start(ctx context.Context, ref cluster.Ref) error {
	all, serves, err := k.of(ref)
	if err != nil {
		return err
	}
	for _, d := range serves {
		if !held(d) || d.DeletionTimestamp != nil {
			continue
		}
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"spec":{"replicas":1}}`, d.UID)
		if _, err := k.api.AppsV1().Deployments(k.cfg.Namespace).Patch(ctx, d.Name, types.MergePatchType, patch, meta.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	for _, j := range all {
		if j.Spec.Suspend == nil || !*j.Spec.Suspend || j.DeletionTimestamp != nil {
			continue
		}
		// With the UID it is this very Job, or none.
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"spec":{"suspend":false}}`, j.UID)
		if _, err := k.api.BatchV1().Jobs(k.cfg.Namespace).Patch(ctx, j.Name, types.MergePatchType, patch, meta.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

// Stop deletes the run's Jobs or Deployment and with them their pods, which are given their time; these stay until the
// kubelets have said that the pods are gone. kill shortens the time to the least a kubelet still confirms. Pods whose Job or
// Deployment somebody deleted without them are deleted themselves.
func (k *Kube) Stop(ctx context.Context, ref cluster.Ref, kill bool) error {
	there, err := k.remove(ctx, ref, meta.DeletePropagationForeground)
	if err != nil || there && !kill {
		return err
	}
	pods, err := k.pods.Pods(k.cfg.Namespace).List(k.marked(ref))
	if err != nil {
		return err
	}
	if !there && len(pods) > 0 { // what a Deployment leaves behind would make the pods again
		how := meta.DeletePropagationForeground
		if err := k.api.AppsV1().ReplicaSets(k.cfg.Namespace).DeleteCollection(ctx, meta.DeleteOptions{PropagationPolicy: &how}, meta.ListOptions{LabelSelector: k.marked(ref).String()}); err != nil {
			return err
		}
	}
	for _, p := range pods {
		least := int64(1)
		if !kill {
			if p.DeletionTimestamp != nil {
				continue
			}
			least = *cmp.Or(p.Spec.TerminationGracePeriodSeconds, &least)
		}
		if p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds <= least {
			continue
		}
		err := k.api.CoreV1().Pods(k.cfg.Namespace).Delete(ctx, p.Name, meta.DeleteOptions{GracePeriodSeconds: &least, Preconditions: meta.NewUIDPreconditions(string(p.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

// Clean deletes what is left of a run that is over.
func (k *Kube) Clean(ctx context.Context, ref cluster.Ref) error {
	there, err := k.remove(ctx, ref, meta.DeletePropagationBackground)
	if err != nil || there {
		return err
	}
	pods, err := k.pods.Pods(k.cfg.Namespace).List(k.marked(ref))
	for _, p := range pods { // whose Job was deleted without them
		if err := k.api.CoreV1().Pods(k.cfg.Namespace).Delete(ctx, p.Name, meta.DeleteOptions{Preconditions: meta.NewUIDPreconditions(string(p.UID))}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return err
}

// remove deletes the run's Jobs and Deployments; there says that it has some, deleted by now or not.
func (k *Kube) remove(ctx context.Context, ref cluster.Ref, how meta.DeletionPropagation) (there bool, err error) {
	all, serves, err := k.of(ref)
	if err != nil {
		return false, err
	}
	deleted := func(o meta.Object, del func(context.Context, string, meta.DeleteOptions) error) error {
		if o.GetDeletionTimestamp() != nil {
			return nil
		}
		err := del(ctx, o.GetName(), meta.DeleteOptions{PropagationPolicy: &how, Preconditions: meta.NewUIDPreconditions(string(o.GetUID()))})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	}
	var errs []error
	for _, j := range all {
		errs = append(errs, deleted(j, k.api.BatchV1().Jobs(k.cfg.Namespace).Delete))
	}
	for _, d := range serves {
		errs = append(errs, deleted(d, k.api.AppsV1().Deployments(k.cfg.Namespace).Delete))
	}
	return len(errs) > 0, errors.Join(errs...)
}

// Output reads the log of a part's pod, through the API server from its kubelet. That has no offset: what was read before
// is read again and dropped, which is why the pool keeps a megabyte at most.
func (k *Kube) Output(ctx context.Context, ref cluster.Ref, _ cluster.Key, rank int, offset int64) ([]byte, error) {
	pods, err := k.pods.Pods(k.cfg.Namespace).List(labels.SelectorFromSet(labels.Set{labelRun: ref.Native, labelRank: strconv.Itoa(rank), labelOwner: k.cfg.Owner}))
	if err != nil || len(pods) == 0 {
		return nil, err
	}
	pod := slices.MaxFunc(pods, func(x, y *core.Pod) int { return x.CreationTimestamp.Compare(y.CreationTimestamp.Time) })
	if pod.Status.Phase == core.PodPending {
		return nil, nil
	}
	const most = 64 << 10
	limit := offset + most
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := k.api.CoreV1().Pods(k.cfg.Namespace).GetLogs(pod.Name, &core.PodLogOptions{Container: container, LimitBytes: &limit}).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	if n, err := io.CopyN(io.Discard, s, offset); err != nil {
		if errors.Is(err, io.EOF) && n <= offset {
			return nil, nil
		}
		return nil, err
	}
	return io.ReadAll(io.LimitReader(s, most))
}

// Join taints a node that its kubelet has registered, so that others' pods stay off.
func (k *Kube) Join(ctx context.Context, node string) error {
	n, err := k.api.CoreV1().Nodes().Get(ctx, node, meta.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &schema.Error{Code: schema.CodeNotFound, Message: fmt.Sprintf("the cluster has no node %q", node), Hint: "its kubelet registers it, under this name"}
	}
	if err != nil || k.tainted(n) {
		return err
	}
	n.Spec.Taints = append(n.Spec.Taints, core.Taint{Key: Taint, Value: k.cfg.Owner, Effect: core.TaintEffectNoSchedule})
	_, err = k.api.CoreV1().Nodes().Update(ctx, n, meta.UpdateOptions{})
	return err
}

// Drain cordons a node and notes that it was the pool.
func (k *Kube) Drain(ctx context.Context, node, reason string) error {
	return k.cordon(ctx, node, &reason)
}

// Resume lifts the pool's own cordon.
func (k *Kube) Resume(ctx context.Context, node string) error { return k.cordon(ctx, node, nil) }

func (k *Kube) cordon(ctx context.Context, node string, reason *string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{noteDrained: reason}}, "spec": map[string]any{"unschedulable": reason != nil}})
	if err != nil {
		return err
	}
	_, err = k.api.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, meta.PatchOptions{})
	return err
}

// Leave takes a node out of the cluster. A kubelet that still runs registers it again.
func (k *Kube) Leave(ctx context.Context, node string) error {
	err := k.api.CoreV1().Nodes().Delete(ctx, node, meta.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
