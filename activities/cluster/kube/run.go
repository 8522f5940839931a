package kube

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

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

// runName is what all parts of a run are called, before their rank: an RFC 1123 label.
func runName(k cluster.Key) string {
	return strings.ReplaceAll(strings.ToLower(k.Job), "_", "-") + "-" + strconv.Itoa(k.Attempt)
}

// job is one node's part of a run. It is never tried again by Kubernetes: an attempt is the pool's.
func (k *Kube) job(r cluster.Run, rank int) *batch.Job {
	p := r.Parts[rank]
	marks := map[string]string{labelManager: manager, labelOwner: k.cfg.Owner, labelRun: runName(r.Key), labelRank: strconv.Itoa(rank)}
	notes := map[string]string{noteJob: r.Job, noteAttempt: strconv.Itoa(r.Attempt), noteNodes: strconv.Itoa(len(r.Parts))}
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
	yes, none, one, kept := true, int32(0), int32(1), int32(keptFor/time.Second)
	failed := batch.Failed
	j := &batch.Job{
		ObjectMeta: meta.ObjectMeta{Name: runName(r.Key) + "-" + strconv.Itoa(rank), Namespace: k.cfg.Namespace, Labels: marks, Annotations: notes},
		Spec: batch.JobSpec{Suspend: &yes, BackoffLimit: &none, Completions: &one, Parallelism: &one, TTLSecondsAfterFinished: &kept, PodReplacementPolicy: &failed,
			Template: core.PodTemplateSpec{ObjectMeta: meta.ObjectMeta{Labels: marks, Annotations: notes}, Spec: pod}},
	}
	if r.Limit > 0 {
		s := int64((r.Limit + r.Grace + limitMargin) / time.Second)
		j.Spec.ActiveDeadlineSeconds = &s
	}
	return j
}

// runs puts the parts together.
func (k *Kube) runs(jobs []*batch.Job, pods map[string]*core.Pod) []cluster.Seen {
	byRun := map[string][]*batch.Job{}
	for _, j := range jobs {
		byRun[j.Labels[labelRun]] = append(byRun[j.Labels[labelRun]], j)
	}
	var out []cluster.Seen
	for name, parts := range byRun {
		attempt, err1 := strconv.Atoi(parts[0].Annotations[noteAttempt])
		n, err2 := strconv.Atoi(parts[0].Annotations[noteNodes])
		if err1 != nil || err2 != nil || n < 1 || n > 1<<16 {
			continue // the labels are ours and the notes are not: somebody's copy
		}
		s := cluster.Seen{Key: cluster.Key{Job: parts[0].Annotations[noteJob], Attempt: attempt}, Ref: cluster.Ref{Native: name}, Held: true, Parts: make([]cluster.SeenPart, n)}
		there := make([]bool, n)
		for _, j := range parts {
			rank, err := strconv.Atoi(j.Labels[labelRank])
			if err != nil || rank < 0 || rank >= n {
				continue
			}
			there[rank] = true
			s.Held = s.Held && j.Spec.Suspend != nil && *j.Spec.Suspend && j.DeletionTimestamp == nil
			pod := pods[part(j.Labels)]
			if pod != nil && pod.CreationTimestamp.Time.Before(j.CreationTimestamp.Time) {
				pod = nil // of an earlier Job of the same name
			}
			s.Parts[rank] = k.part(&s, j, pod)
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

// part reads one part from its Job and pod, and notes in s what is of the whole run.
func (k *Kube) part(s *cluster.Seen, j *batch.Job, pod *core.Pod) cluster.SeenPart {
	p := cluster.SeenPart{State: schema.TaskPending}
	why := func(text string) { s.Why = cmp.Or(s.Why, strings.TrimSpace(text)) }
	var ended *core.ContainerStateTerminated
	if pod != nil {
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
	}
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
