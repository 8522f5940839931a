package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// Resource is what the nodes' accelerators are asked for by.
const Resource = "nvidia.com/gpu"

// Kubelet is a node. It runs pods' commands as processes, without a container around them.
type Kubelet struct {
	c       *Cluster
	name    string
	devices []string // UUIDs, by index
	logs    *httptest.Server
	die     func() // ends it and what it runs; once

	mu      sync.Mutex
	pods    map[string]*pod // by UID
	forgets bool
}

// Forget has the node's device plugin not know any more what it has given out, as one does that lost its state.
func (k *Kubelet) Forget(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgets = on
}

type pod struct {
	devices  []string
	out      *buffer
	started  meta.Time
	cmd      *exec.Cmd
	ended    *core.ContainerStateTerminated
	last     *core.ContainerStateTerminated // how the container before this one ended
	restarts int32
	deadline time.Time // when what was asked to end is killed; zero = it was not asked
	told     string    // the status last written
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Node registers a node with such devices, and runs what is bound to it until the test ends.
func (c *Cluster) Node(name string, devices []string) *Kubelet {
	c.t.Helper()
	k := &Kubelet{c: c, name: name, devices: devices, pods: map[string]*pod{}}
	k.logs = httptest.NewTLSServer(http.HandlerFunc(k.serveLogs))
	host, port, err := net.SplitHostPort(strings.TrimPrefix(k.logs.URL, "https://"))
	c.must(err)
	n, err := strconv.Atoi(port)
	c.must(err)
	_, err = c.API.CoreV1().Nodes().Create(c.t.Context(), &core.Node{ObjectMeta: meta.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}}}, meta.CreateOptions{})
	c.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := errors.Join(k.heartbeat(ctx, host, n), k.sync(ctx)); err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) {
				<-time.After(200 * time.Millisecond) // the API server is away
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	k.die = sync.OnceFunc(func() {
		cancel()
		<-done
		k.logs.Close()
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, p := range k.pods {
			if p.cmd != nil && p.ended == nil {
				_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
			}
		}
	})
	c.t.Cleanup(k.die)
	return k
}

// Die ends the node with all that it runs, as a loss of power does, and has Kubernetes know: the node lifecycle controller
// would say so when the heartbeats have been missing for a while.
func (k *Kubelet) Die() {
	k.c.t.Helper()
	k.die()
	n, err := k.c.API.CoreV1().Nodes().Get(context.Background(), k.name, meta.GetOptions{})
	k.c.must(err)
	n.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.", LastTransitionTime: meta.Now()}}
	_, err = k.c.API.CoreV1().Nodes().UpdateStatus(context.Background(), n, meta.UpdateOptions{})
	k.c.must(err)
}

var lastBeat sync.Map // node -> time.Time

func (k *Kubelet) heartbeat(ctx context.Context, host string, port int) error {
	if at, ok := lastBeat.Load(k); ok && time.Since(at.(time.Time)) < 5*time.Second {
		return nil
	}
	n, err := k.c.API.CoreV1().Nodes().Get(ctx, k.name, meta.GetOptions{})
	if err != nil {
		return err
	}
	now := meta.Now()
	have := core.ResourceList{core.ResourceCPU: resource.MustParse("64"), core.ResourceMemory: resource.MustParse("512Gi"), core.ResourcePods: resource.MustParse("110"), Resource: *resource.NewQuantity(int64(len(k.devices)), resource.DecimalSI)}
	n.Status.Capacity, n.Status.Allocatable = have, have
	n.Status.Addresses = []core.NodeAddress{{Type: core.NodeInternalIP, Address: host}, {Type: core.NodeHostName, Address: host}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	n.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now}}
	if _, err := k.c.API.CoreV1().Nodes().UpdateStatus(ctx, n, meta.UpdateOptions{}); err != nil {
		return err
	}
	lastBeat.Store(k, time.Now())
	return nil
}

// sync brings processes in line with the pods that are bound to the node, and the pods' status with the processes.
func (k *Kubelet) sync(ctx context.Context) error {
	list, err := k.c.API.CoreV1().Pods(meta.NamespaceAll).List(ctx, meta.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", k.name).String()})
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	there := map[string]bool{}
	var errs []error
	for i := range list.Items {
		p := &list.Items[i]
		there[string(p.UID)] = true
		errs = append(errs, k.syncPod(ctx, p))
	}
	for uid, p := range k.pods {
		if !there[uid] {
			if p.cmd != nil && p.ended == nil {
				_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
			}
			delete(k.pods, uid)
		}
	}
	return errors.Join(errs...)
}

func (k *Kubelet) syncPod(ctx context.Context, p *core.Pod) error {
	own := k.pods[string(p.UID)]
	if own == nil {
		if p.Status.Phase == core.PodSucceeded || p.Status.Phase == core.PodFailed {
			own = &pod{out: &buffer{}, ended: &core.ContainerStateTerminated{}}
		} else {
			own = k.begin(p)
		}
		k.pods[string(p.UID)] = own
	}
	if own.ended != nil && p.Spec.RestartPolicy == core.RestartPolicyAlways && p.DeletionTimestamp == nil && time.Since(own.ended.FinishedAt.Time) >= restartAfter(own.restarts) {
		before := own
		own = &pod{devices: before.devices, out: &buffer{}, started: meta.Now(), last: before.ended, restarts: before.restarts + 1}
		k.spawn(own, p.Spec.Containers[0])
		k.pods[string(p.UID)] = own
	}
	if p.DeletionTimestamp != nil && own.cmd != nil && own.ended == nil {
		grace := time.Second
		if p.DeletionGracePeriodSeconds != nil {
			grace = time.Duration(*p.DeletionGracePeriodSeconds) * time.Second
		}
		if own.deadline.IsZero() {
			_ = syscall.Kill(-own.cmd.Process.Pid, syscall.SIGTERM)
		}
		if until := p.DeletionTimestamp.Time; own.deadline.IsZero() || until.Before(own.deadline) {
			own.deadline = until
		}
		if grace == 0 || time.Now().After(own.deadline) {
			_ = syscall.Kill(-own.cmd.Process.Pid, syscall.SIGKILL)
		}
	}
	if p.DeletionTimestamp != nil && own.ended != nil {
		// The kubelet says that nothing is left: the object goes.
		if err := k.status(ctx, p, own); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		zero := int64(0)
		err := k.c.API.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, meta.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: meta.NewUIDPreconditions(string(p.UID))})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	return k.status(ctx, p, own)
}

// begin chooses devices, the last free ones first, and starts the process.
func (k *Kubelet) begin(p *core.Pod) *pod {
	own := &pod{out: &buffer{}, started: meta.Now()}
	c := p.Spec.Containers[0]
	taken := map[string]bool{}
	for _, o := range k.pods {
		if o.ended == nil && !k.forgets {
			for _, d := range o.devices {
				taken[d] = true
			}
		}
	}
	want := c.Resources.Limits[Resource]
	for _, d := range slices.Backward(k.devices) {
		if !taken[d] && int64(len(own.devices)) < want.Value() {
			own.devices = append(own.devices, d)
		}
	}
	k.spawn(own, c)
	return own
}

// restartAfter is how long a container that has ended waits for its restart: a tenth of what a kubelet gives it.
func restartAfter(restarts int32) time.Duration {
	if restarts == 0 {
		return 0
	}
	return min(time.Second<<min(restarts-1, 10), 30*time.Second)
}

// spawn starts a container's process.
func (k *Kubelet) spawn(own *pod, c core.Container) {
	cmd := exec.Command(c.Command[0], c.Command[1:]...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "NVIDIA_VISIBLE_DEVICES=" + strings.Join(own.devices, ",")}
	for _, e := range c.Env {
		cmd.Env = append(cmd.Env, e.Name+"="+strings.ReplaceAll(e.Value, "$$(", "$("))
	}
	for i := range cmd.Args {
		cmd.Args[i] = strings.ReplaceAll(cmd.Args[i], "$$(", "$(")
	}
	cmd.Dir = c.WorkingDir
	cmd.Stdout, cmd.Stderr = own.out, own.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		own.ended = &core.ContainerStateTerminated{ExitCode: 127, Reason: "StartError", Message: err.Error(), StartedAt: own.started, FinishedAt: meta.Now()}
		return
	}
	own.cmd = cmd
	go func() {
		_ = cmd.Wait()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left behind
		k.mu.Lock()
		defer k.mu.Unlock()
		code := cmd.ProcessState.ExitCode()
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			code = 128 + int(ws.Signal())
		}
		own.ended = &core.ContainerStateTerminated{ExitCode: int32(code), Reason: map[bool]string{true: "Completed", false: "Error"}[code == 0], StartedAt: own.started, FinishedAt: meta.Now()}
	}()
}

func (k *Kubelet) status(ctx context.Context, p *core.Pod, own *pod) error {
	c := core.ContainerStatus{Name: p.Spec.Containers[0].Name, Image: p.Spec.Containers[0].Image, RestartCount: own.restarts, LastTerminationState: core.ContainerState{Terminated: own.last}}
	phase := core.PodRunning
	if own.ended != nil && p.Spec.RestartPolicy == core.RestartPolicyAlways && p.DeletionTimestamp == nil {
		c.State.Waiting = &core.ContainerStateWaiting{Reason: "CrashLoopBackOff"}
		c.LastTerminationState.Terminated = own.ended
	} else if own.ended != nil {
		if own.ended.FinishedAt.IsZero() {
			return nil // ended before this kubelet was there
		}
		c.State.Terminated = own.ended
		if phase = core.PodSucceeded; own.ended.ExitCode != 0 {
			phase = core.PodFailed
		}
	} else {
		c.State.Running = &core.ContainerStateRunning{StartedAt: own.started}
		c.Ready = true
	}
	var chosen []core.ResourceHealth
	for _, d := range own.devices {
		chosen = append(chosen, core.ResourceHealth{ResourceID: core.ResourceID(d), Health: core.ResourceHealthStatusHealthy})
	}
	if len(chosen) > 0 {
		c.AllocatedResourcesStatus = []core.ResourceStatus{{Name: Resource, Resources: chosen}}
	}
	told := fmt.Sprint(phase, len(chosen), own.restarts, c.State.Waiting != nil)
	if own.told == told {
		return nil
	}
	u := p.DeepCopy()
	u.Status.Phase, u.Status.StartTime, u.Status.ContainerStatuses = phase, &own.started, []core.ContainerStatus{c}
	if _, err := k.c.API.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, u, meta.UpdateOptions{}); err != nil {
		return err
	}
	own.told = told
	return nil
}

// serveLogs answers what the API server asks for `kubectl logs`: /containerLogs/NAMESPACE/POD/CONTAINER?limitBytes=N.
func (k *Kubelet) serveLogs(w http.ResponseWriter, r *http.Request) {
	f := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(f) != 4 || f[0] != "containerLogs" {
		http.NotFound(w, r)
		return
	}
	p, err := k.c.API.CoreV1().Pods(f[1]).Get(r.Context(), f[2], meta.GetOptions{})
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	k.mu.Lock()
	own := k.pods[string(p.UID)]
	k.mu.Unlock()
	if own == nil {
		http.Error(w, "no such container", http.StatusNotFound)
		return
	}
	text := own.out.String()
	if n, err := strconv.Atoi(r.URL.Query().Get("limitBytes")); err == nil && n < len(text) {
		text = text[:n]
	}
	_, _ = w.Write([]byte(text))
}
