package slurm

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpupool/activities/cluster"
	"gpupool/schema"
)

// job is a Slurm job as squeue, scontrol, slurmrestd or sacct tell of it. Moments are Unix seconds, 0 = not yet.
type job struct {
	ID                      uint32
	Comment, User           string
	State, Reason           string // RUNNING, JobHeldUser
	TRES                    string // what it asks for a node: gres:gpu:h100:2
	Submitted, Began, Ended int64
	Exit, Signal            int
	Restarts                int
	Nodes                   []string         // it runs on
	Devices                 map[string][]int // node -> indices; only of a running job, and only from scontrol and slurmrestd
	Asked                   []string         // nodes it is pinned to
}

func (j job) ref() cluster.Ref {
	return cluster.Ref{Native: strconv.FormatUint(uint64(j.ID), 10), Submitted: seconds(j.Submitted)}
}

func seconds(s int64) schema.Instant { return schema.Instant(s * 1000) }

// running reports whether processes of it may be on nodes.
func (j job) running() bool {
	switch j.State {
	case "RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "SIGNALING", "STAGE_OUT":
		return true
	default:
		return false
	}
}

// pending reports whether it has not begun.
func (j job) pending() bool {
	switch j.State {
	case "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT":
		return true
	default:
		return false
	}
}

// seen is the job in the words of a run. All parts of it share its state: it is one job over all its nodes.
func (j job) seen(k cluster.Key, devices map[string][]int) cluster.Seen {
	s := cluster.Seen{Key: k, Ref: j.ref(), State: j.State, Why: j.Reason, Began: seconds(j.Began), Ended: seconds(j.Ended)}
	if j.Reason == "None" {
		s.Why = ""
	}
	p := cluster.SeenPart{}
	switch {
	case j.pending():
		p.State, s.Began = schema.TaskPending, 0
		s.Held = j.State == "PENDING" && (j.Reason == "JobHeldUser" || j.Reason == "JobHeldAdmin") && j.Restarts == 0
	case j.running():
		p.State = schema.TaskRunning
	case j.State == "COMPLETED":
		p.State, p.NoneLeft = schema.TaskDone, true
		p.Exit = new(int)
	case strings.HasPrefix(j.State, "CANCELLED"):
		p.State, p.NoneLeft = schema.TaskCancelled, true
		if len(j.Nodes) == 0 {
			s.Began = 0 // Slurm gives one that was cancelled before it began its end for its beginning
		}
	default:
		p.State = schema.TaskFailed
		p.NoneLeft = j.State != "NODE_FAIL" // slurmd there has not said that it ended
	}
	switch j.State {
	case "NODE_FAIL", "BOOT_FAIL":
		s.Interrupted = schema.AttemptLost
	case "PREEMPTED":
		s.Interrupted = schema.AttemptPreempted
	}
	if p.State == schema.TaskFailed {
		if exit := j.Exit; s.Interrupted == "" && s.Began != 0 {
			if j.Signal != 0 {
				exit = 128 + j.Signal
				p.Signal = strconv.Itoa(j.Signal)
			}
			p.Exit = &exit
		}
	}
	nodes := j.Nodes
	if len(nodes) == 0 {
		nodes = j.Asked
	}
	// The pool's ranks go by the names of the nodes; see store.DispatchAttempt.
	slices.Sort(nodes)
	for _, n := range nodes {
		part := p
		for _, i := range devices[n] {
			part.Devices = append(part.Devices, cluster.Device{Index: i})
		}
		s.Parts = append(s.Parts, part)
	}
	return s
}

// gres reads "gpu:h100:2(IDX:2-3),gpu:a100:1(IDX:5)": the indices of all GPUs.
func gres(text string) []int {
	var out []int
	for _, m := range regexp.MustCompile(`gpu[^()]*\(IDX:([0-9,-]+)\)`).FindAllStringSubmatch(text, -1) {
		out = append(out, numbers(m[1])...)
	}
	return out
}

// numbers reads "0,2-3".
func numbers(list string) []int {
	var out []int
	for _, part := range strings.Split(list, ",") {
		lo, hi, ranged := strings.Cut(part, "-")
		if !ranged {
			hi = lo
		}
		a, err1 := strconv.Atoi(lo)
		b, err2 := strconv.Atoi(hi)
		if err1 != nil || err2 != nil || b-a > 4096 {
			continue
		}
		for i := a; i <= b; i++ {
			out = append(out, i)
		}
	}
	return out
}

// hosts expands Slurm's list of hosts: "h[01-03,7],gpu1-[1-2]x". Brackets stand once in a name.
func hosts(list string) []string {
	var out []string
	for len(list) > 0 {
		end := strings.IndexByte(list, ',')
		if open := strings.IndexByte(list, '['); open >= 0 && (end < 0 || open < end) {
			shut := strings.IndexByte(list, ']')
			if shut < open {
				return out
			}
			if end = strings.IndexByte(list[shut:], ','); end >= 0 {
				end += shut
			}
			one := list
			if end >= 0 {
				one = list[:end]
			}
			for _, part := range strings.Split(one[open+1:shut], ",") {
				lo, hi, ranged := strings.Cut(part, "-")
				if !ranged {
					hi = lo
				}
				a, err1 := strconv.Atoi(lo)
				b, err2 := strconv.Atoi(hi)
				if err1 != nil || err2 != nil || b-a > 1<<16 {
					continue
				}
				for i := a; i <= b; i++ {
					out = append(out, fmt.Sprintf("%s%0*d%s", one[:open], len(lo), i, one[shut+1:]))
				}
			}
		} else {
			one := list
			if end >= 0 {
				one = list[:end]
			}
			if one != "" && one != "(null)" {
				out = append(out, one)
			}
		}
		if end < 0 {
			break
		}
		list = list[end+1:]
	}
	return out
}

// node is a node as sinfo tells of it.
type node struct {
	Name, User, Reason string
	States             []string // idle, drain, not_responding
}

func (n node) has(state string) bool { return slices.Contains(n.States, state) }

func (n node) node() cluster.Node {
	c := cluster.Node{Joined: true, Ready: true, Idle: n.has("idle") && !n.has("completing"), Drained: n.has("drain")}
	for _, bad := range []string{"down", "fail", "error", "unknown", "not_responding", "powered_down", "powering_down", "reboot_issued", "invalid_reg", "maint"} {
		if n.has(bad) {
			c.Ready, c.Idle, c.Why = false, false, strings.Join(n.States, "+")
			if n.Reason != "none" {
				c.Why += ": " + n.Reason
			}
		}
	}
	if c.Drained {
		c.Reason, c.Ours = strings.CutPrefix(n.Reason, reasonMark)
		c.By = n.User
	}
	return c
}
