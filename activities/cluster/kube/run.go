package kube

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpupool/activities/cluster"
	"gpupool/schema"
)

// container is the name of the one container of a part's pod.
const container = "main"

// Margins: the pool ends jobs and cleans up after them. The cluster's own limits are there for when the pool can't.
const (
	limitMargin = 10 * time.Minute
	keptFor     = 7 * 24 * time.Hour
)

// RunName is what all parts of a run are called, before their rank: an RFC 1123 label.
func RunName(k cluster.Key) string {
	return strings.ReplaceAll(strings.ToLower(k.Job), "_", "-") + "-" + strconv.Itoa(k.Attempt)
}

// object is the head of what a part of a run is in Kubernetes, and of its pod.
func (k *Kube) object(r cluster.Run, rank int) meta.ObjectMeta {
	return meta.ObjectMeta{Name: RunName(r.Key) + "-" + strconv.Itoa(rank), Namespace: k.cfg.Namespace,
		Labels:      map[string]string{labelManager: manager, labelOwner: k.cfg.Owner, labelRun: RunName(r.Key), labelRank: strconv.Itoa(rank)},
		Annotations: map[string]string{noteJob: r.Job, noteAttempt: strconv.Itoa(r.Attempt), noteNodes: strconv.Itoa(len(r.Parts))}}
}

// pod is what a part of a run is to run.
func (k *Kube) pod(r cluster.Run, rank int) core.PodTemplateSpec {
	p := r.Parts[rank]
	env := map[string]string{}
	maps.Copy(env, r.Env)
	maps.Copy(env, p.Env)
	c := core.Container{Name: container, Image: cmp.Or(r.Image, k.cfg.Image), Command: r.Command, WorkingDir: r.WorkDir,
		Resources: core.ResourceRequirements{Limits: core.ResourceList{}, Requests: core.ResourceList{}}}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		c.Env = append(c.Env, core.EnvVar{Name: name, Value: strings.ReplaceAll(env[name], "$(", "$$(")}) // as it is: Kubernetes expands $(NAME)
	}
	for i, a := range c.Command {
		if strings.Contains(a, "$(") {
			c.Command = slices.Clone(c.Command)
			c.Command[i] = strings.ReplaceAll(a, "$(", "$$(")
		}
	}
	devices := resource.NewQuantity(int64(r.Accelerators), resource.DecimalSI)
	c.Resources.Limits[core.ResourceName(k.resource(r.Vendor, r.Model))] = *devices
	if r.CPUs > 0 {
		c.Resources.Requests[core.ResourceCPU] = *resource.NewQuantity(int64(r.CPUs), resource.DecimalSI)
	}
	if r.MemoryBytes > 0 {
		m := *resource.NewQuantity(r.MemoryBytes, resource.BinarySI)
		c.Resources.Requests[core.ResourceMemory], c.Resources.Limits[core.ResourceMemory] = m, m
	}
	grace := int64((r.Grace + time.Second - 1) / time.Second)
	pod := core.PodSpec{
		Containers: []core.Container{c}, RestartPolicy: core.RestartPolicyNever, TerminationGracePeriodSeconds: &grace,
		// Pinned, and still through the scheduler: a kubelet refuses what was given to it past the scheduler, for good.
		Affinity: &core.Affinity{NodeAffinity: &core.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &core.NodeSelector{NodeSelectorTerms: []core.NodeSelectorTerm{
			{MatchFields: []core.NodeSelectorRequirement{{Key: "metadata.name", Operator: core.NodeSelectorOpIn, Values: []string{p.Node}}}}}}}},
		Tolerations:                  []core.Toleration{{Key: Taint, Operator: core.TolerationOpEqual, Value: k.cfg.Owner, Effect: core.TaintEffectNoSchedule}},
		AutomountServiceAccountToken: new(bool),
	}
	mount(&pod, r)
	head := k.object(r, rank)
	return core.PodTemplateSpec{ObjectMeta: meta.ObjectMeta{Labels: head.Labels, Annotations: head.Annotations}, Spec: pod}
}

// mount gives a pod what it is to see. A claim stands before a folder of the node. Below the volume the kubelet goes through no
// link that leads out of it (subPath). A folder that is not there is not made.
func mount(pod *core.PodSpec, r cluster.Run) {
	names := map[string]string{}
	for _, m := range r.Mounts {
		key := "claim " + m.Claim
		if m.Claim == "" {
			key = "folder " + m.Volume
		}
		name, seen := names[key]
		if !seen {
			name = "volume-" + strconv.Itoa(len(names))
			names[key] = name
			v := core.Volume{Name: name}
			if m.Claim != "" {
				v.PersistentVolumeClaim = &core.PersistentVolumeClaimVolumeSource{ClaimName: m.Claim}
			} else {
				there := core.HostPathDirectory
				v.HostPath = &core.HostPathVolumeSource{Path: m.Volume, Type: &there}
			}
			pod.Volumes = append(pod.Volumes, v)
		}
		pod.Containers[0].VolumeMounts = append(pod.Containers[0].VolumeMounts, core.VolumeMount{Name: name, MountPath: m.Target, SubPath: m.Folder, ReadOnly: m.ReadOnly})
	}
	if r.User != 0 {
		id, no := int64(r.User), false
		pod.SecurityContext = &core.PodSecurityContext{RunAsUser: &id, RunAsGroup: &id}
		pod.Containers[0].SecurityContext = &core.SecurityContext{AllowPrivilegeEscalation: &no} // a file of root's in the image makes no root
	}
}

// job is one node's part of a run. It is never tried again by Kubernetes: an attempt is the pool's.
func (k *Kube) job(r cluster.Run, rank int) *batch.Job {
	yes, none, one, kept := true, int32(0), int32(1), int32(keptFor/time.Second)
	failed := batch.Failed
	j := &batch.Job{
		ObjectMeta: k.object(r, rank),
		Spec: batch.JobSpec{Suspend: &yes, BackoffLimit: &none, Completions: &one, Parallelism: &one, TTLSecondsAfterFinished: &kept, PodReplacementPolicy: &failed,
			Template: k.pod(r, rank)},
	}
	if r.Limit > 0 {
		s := int64((r.Limit + r.Grace + limitMargin) / time.Second)
		j.Spec.ActiveDeadlineSeconds = &s
	}
	return j
}

// deployment is a service's replica, of no pods until it is started. The pod is made anew in its place, never beside it: the
// devices are one pod's.
func (k *Kube) deployment(r cluster.Run) *apps.Deployment {
	none := int32(0)
	pod := k.pod(r, 0)
	pod.Spec.RestartPolicy = core.RestartPolicyAlways
	return &apps.Deployment{ObjectMeta: k.object(r, 0), Spec: apps.DeploymentSpec{Replicas: &none, RevisionHistoryLimit: &none, Strategy: apps.DeploymentStrategy{Type: apps.RecreateDeploymentStrategyType},
		Selector: &meta.LabelSelector{MatchLabels: pod.Labels}, Template: pod}}
}

func held(d *apps.Deployment) bool {
	return d.Spec.Replicas != nil && *d.Spec.Replicas == 0 && d.DeletionTimestamp == nil
}

// parts are all that is there of runs: Jobs, Deployments, and pods whose Job or Deployment was deleted without them.
func (k *Kube) parts(jobs []*batch.Job, serves []*apps.Deployment, pods map[string]*core.Pod) []meta.Object {
	var out []meta.Object
	owned := map[string]bool{}
	for _, j := range jobs {
		out, owned[part(j.Labels)] = append(out, j), true
	}
	for _, d := range serves {
		out, owned[part(d.Labels)] = append(out, d), true
	}
	for name, p := range pods {
		over := p.Status.Phase == core.PodSucceeded || p.Status.Phase == core.PodFailed
		if !owned[name] && !(over && p.DeletionTimestamp != nil) { // how it ended then says nothing of the job: it was made to
			out = append(out, p)
		}
	}
	return out
}

// runs puts the parts together.
func (k *Kube) runs(all []meta.Object, pods map[string]*core.Pod) []cluster.Seen {
	byRun := map[string][]meta.Object{}
	for _, o := range all {
		byRun[o.GetLabels()[labelRun]] = append(byRun[o.GetLabels()[labelRun]], o)
	}
	var out []cluster.Seen
	for name, parts := range byRun {
		notes := parts[0].GetAnnotations()
		attempt, err1 := strconv.Atoi(notes[noteAttempt])
		n, err2 := strconv.Atoi(notes[noteNodes])
		if err1 != nil || err2 != nil || n < 1 || n > 1<<16 {
			continue // the labels are ours and the notes are not: somebody's copy
		}
		s := cluster.Seen{Key: cluster.Key{Job: notes[noteJob], Attempt: attempt}, Ref: cluster.Ref{Native: name}, Held: true, Parts: make([]cluster.SeenPart, n)}
		there := make([]bool, n)
		for _, o := range parts {
			rank, err := strconv.Atoi(o.GetLabels()[labelRank])
			if err != nil || rank < 0 || rank >= n {
				continue
			}
			there[rank] = true
			pod := pods[part(o.GetLabels())]
			if pod != nil && pod.CreationTimestamp.Time.Before(o.GetCreationTimestamp().Time) {
				pod = nil // of an earlier Job of the same name
			}
			switch o := o.(type) {
			case *batch.Job:
				s.Held = s.Held && o.Spec.Suspend != nil && *o.Spec.Suspend && o.DeletionTimestamp == nil
				s.Parts[rank] = k.part(&s, o, pod)
			case *apps.Deployment:
				s.Held = s.Held && held(o)
				s.Parts[rank] = k.replica(&s, pod)
			case *core.Pod:
				s.Held = false
				s.Parts[rank] = k.left(&s, o)
			}
		}
		for rank := range there {
			if !there[rank] {
				s.Partial = true
				// Made later, or deleted by somebody: the API server forgets it when its pods are gone.
				s.Parts[rank] = cluster.SeenPart{State: schema.TaskCancelled, NoneLeft: true}
			}
		}
		s.State = state(s)
		out = append(out, s)
	}
	return out
}

// state is a word for the whole run.
func state(s cluster.Seen) string {
	switch {
	case s.Held:
		return "Suspended"
	case s.Over():
		for _, p := range s.Parts {
			if p.State != schema.TaskDone {
				return "Failed"
			}
		}
		return "Complete"
	case s.Began != 0:
		return "Running"
	default:
		return "Pending"
	}
}

// replica reads a service's part from its pod, which may be the last of several: it runs from its first container on, also
// while the next one is waited for.
func (k *Kube) replica(s *cluster.Seen, pod *core.Pod) cluster.SeenPart {
	p, _ := k.process(s, pod)
	if pod == nil {
		return p
	}
	for _, c := range pod.Status.ContainerStatuses {
		p.Instance = string(pod.UID) + "/" + strconv.Itoa(int(c.RestartCount))
		if t := c.LastTerminationState.Terminated; t != nil {
			p.State = schema.TaskRunning
			s.Began = max(s.Began, schema.At(t.StartedAt.Time))
			p.Last = strings.TrimSuffix(fmt.Sprintf("exited with code %d, %s", t.ExitCode, t.Reason), ", Error")
		}
		if p.State == schema.TaskPending {
			p.Instance = ""
		}
	}
	s.Ended = 0
	return p
}

// left reads a part of which nothing but its pod is there any more.
func (k *Kube) left(s *cluster.Seen, pod *core.Pod) cluster.SeenPart {
	p, ended := k.process(s, pod)
	s.Why = cmp.Or(s.Why, "its Job or Deployment was deleted without it")
	switch {
	case pod.Status.Phase != core.PodSucceeded && pod.Status.Phase != core.PodFailed:
		if p.State == schema.TaskPending && pod.DeletionTimestamp == nil && s.Began == 0 {
			return p
		}
		p.State = schema.TaskRunning
	default:
		p.State, p.NoneLeft = schema.TaskFailed, true
		if pod.Status.Phase == core.PodSucceeded {
			p.State = schema.TaskDone
		}
		if ended != nil {
			exit := int(ended.ExitCode)
			p.Exit = &exit
		}
	}
	return p
}

// part reads one part from its Job and pod, and notes in s what is of the whole run.
func (k *Kube) part(s *cluster.Seen, j *batch.Job, pod *core.Pod) cluster.SeenPart {
	p, ended := k.process(s, pod)
	why := func(text string) { s.Why = cmp.Or(s.Why, strings.TrimSpace(text)) }
	for _, c := range j.Status.Conditions {
		if c.Status != core.ConditionTrue {
			continue
		}
		switch c.Type {
		case batch.JobComplete:
			p.State, p.NoneLeft, p.Exit = schema.TaskDone, true, new(int)
		case batch.JobFailed:
			p.State = schema.TaskFailed
			p.NoneLeft = pod == nil || pod.Status.Phase == core.PodFailed || pod.Status.Phase == core.PodSucceeded
			if ended != nil {
				exit := int(ended.ExitCode)
				p.Exit = &exit
				if ended.Signal != 0 {
					p.Signal = strconv.Itoa(int(ended.Signal))
				}
				if ended.Reason != "" && ended.Reason != "Error" {
					why(ended.Reason)
				}
			} else if pod == nil || pod.Status.Reason == "" {
				why(c.Reason + ": " + c.Message)
			} else {
				why(fmt.Sprintf("%s: %s", pod.Status.Reason, pod.Status.Message))
			}
		}
	}
	return p
}

// process reads what a pod says of its one container; ended is how that ended, where it has.
func (k *Kube) process(s *cluster.Seen, pod *core.Pod) (p cluster.SeenPart, ended *core.ContainerStateTerminated) {
	p.State = schema.TaskPending
	if pod == nil {
		return p, nil
	}
	why := func(text string) { s.Why = cmp.Or(s.Why, strings.TrimSpace(text)) }
	p.Devices = k.devices(pod)
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == core.PodScheduled && c.Status == core.ConditionFalse:
			why(c.Reason + ": " + c.Message)
		case c.Type == core.DisruptionTarget && c.Status == core.ConditionTrue:
			why(c.Reason + ": " + c.Message)
			if s.Interrupted = schema.AttemptLost; c.Reason == core.PodReasonPreemptionByScheduler || c.Reason == "EvictionByEvictionAPI" {
				s.Interrupted = schema.AttemptPreempted
			}
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		switch {
		case c.State.Running != nil:
			p.State = schema.TaskRunning
			s.Began = max(s.Began, schema.At(c.State.Running.StartedAt.Time))
		case c.State.Waiting != nil:
			why(c.State.Waiting.Reason + ": " + c.State.Waiting.Message)
		case c.State.Terminated != nil:
			ended = c.State.Terminated
			p.State = schema.TaskRunning // until the Job says so
			s.Began, s.Ended = max(s.Began, schema.At(ended.StartedAt.Time)), max(s.Ended, schema.At(ended.FinishedAt.Time))
		}
	}
	return p, ended
}
