package usage

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpupool/schema"
)

// Reason is a code that a waiting job had from a moment on.
type Reason struct {
	Code schema.ReasonCode
	At   schema.Instant
}

// AtOnce stands in the place of a reason for a wait that had none: the first cycle that saw the attempt started it.
const AtOnce schema.ReasonCode = "STARTED_AT_ONCE"

// atOnce is how long the first cycle may be in coming: a wait that is longer was one for the allocator.
const atOnce = 2 * time.Second

// Longest is the reason that took most of a wait; of equal ones the later. Until the first is told it is NOT_EVALUATED, and
// where none was told and the start came as soon as it could, AtOnce.
func Longest(reasons []Reason, wait Interval) schema.ReasonCode {
	told := slices.ContainsFunc(reasons, func(r Reason) bool { return r.At >= wait.Start && r.At <= wait.End })
	if !told && wait.Milliseconds() <= atOnce.Milliseconds() {
		return AtOnce
	}
	sums := map[schema.ReasonCode]int64{}
	best, most := schema.ReasonNotEvaluated, int64(-1)
	code, since := schema.ReasonNotEvaluated, wait.Start
	count := func(until schema.Instant) {
		sums[code] += Interval{since, until}.Cut(wait).Milliseconds()
		if sums[code] >= most {
			best, most = code, sums[code]
		}
	}
	for _, r := range reasons {
		if r.At > wait.End {
			break
		}
		if r.At < wait.Start {
			continue // what was told of an earlier attempt's wait says nothing of this one's
		}
		count(r.At)
		since, code = r.At, r.Code
	}
	count(wait.End)
	return best
}

// Cause is why a job ended as it did, in one word, for counting.
func Cause(state schema.JobState, last schema.AttemptOutcome) string {
	switch state {
	case schema.JobCompleted:
		return "completed"
	case schema.JobCancelled:
		return "cancelled"
	case schema.JobTimeout:
		return "time-limit"
	case schema.JobExpired:
		return "queue-limit"
	case schema.JobFailed:
		switch last {
		case schema.AttemptLost:
			return "hardware"
		case schema.AttemptUnstarted:
			return "launch"
		case schema.AttemptLive:
			return "never-started"
		case schema.AttemptCompleted, schema.AttemptFailed, schema.AttemptCancelled, schema.AttemptTimeout, schema.AttemptPreempted:
		}
		return "exit-code"
	case schema.JobQueued, schema.JobStarting, schema.JobRunning, schema.JobStopping:
	}
	return "none"
}

// Waits are queue waits of started attempts in milliseconds: percentiles by the nearest rank.
type Waits struct {
	Attempts int64 `json:"attempts"`
	P50      int64 `json:"p50_ms"`
	P90      int64 `json:"p90_ms"`
	P99      int64 `json:"p99_ms"`
	Max      int64 `json:"max_ms"`
}

// Counts are the four counts of one period and key, as the sums that they rest on.
type Counts struct {
	Period string `json:"period"`
	Key    string `json:"key"`

	Wait   Waits            `json:"wait"`
	WaitBy map[string]Waits `json:"wait_by_reason"` // by the reason that held an attempt up longest

	// Of a period that is not over: jobs that wait still, and those of them that have for LongWait or longer. The waits of
	// starts alone would hide a queue that doesn't move.
	Waiting int64 `json:"waiting"`
	Overdue int64 `json:"overdue"`

	// When jobs waited, and accelerators of what they asked for were idle; nil where it is not known or not asked for.
	Queue *Queue `json:"queue,omitempty"`

	Allocated int64   `json:"allocated_gpu_ms"`
	Capacity  Balance `json:"capacity"` // of the models or regions that the key stands for

	Known int64 `json:"known_gpu_ms"` // allocated time of which the utilization is known
	Idle  int64 `json:"idle_gpu_ms"`  // of that, under the threshold

	Jobs map[string]int64 `json:"jobs"`           // ended jobs by cause; see Cause
	GPU  map[string]int64 `json:"outcome_gpu_ms"` // by the outcome of the attempt
}

// share is a part of a whole; ok is false where the whole is nothing.
func share(part, whole int64) (v float64, ok bool) {
	if whole <= 0 {
		return 0, false
	}
	return float64(part) / float64(whole), true
}

// AllocatedShare is the share of available accelerator time that was allocated to what the key stands for. Available is allocated, idle or reserved.
func (c Counts) AllocatedShare() (float64, bool) { return share(c.Allocated, c.Capacity.Available()) }

// Full is the share of available accelerator time that anybody had allocated: of a tenant's or a spec's counts too, whose own
// share says nothing of what others left.
func (c Counts) Full() (float64, bool) { return share(c.Capacity.Allocated, c.Capacity.Available()) }

// IdleRate is the share of the known allocated time in which an accelerator did nothing.
func (c Counts) IdleRate() (float64, bool) { return share(c.Idle, c.Known) }

// UnknownShare is the share of the allocated time of which no utilization is known.
func (c Counts) UnknownShare() (float64, bool) {
	return share(max(0, c.Allocated-c.Known), c.Allocated)
}

// JobSuccess is the share of ended jobs that completed. What its owner cancelled is neither success nor failure.
func (c Counts) JobSuccess() (float64, bool) {
	var all int64
	for cause, n := range c.Jobs {
		if cause != "cancelled" {
			all += n
		}
	}
	return share(c.Jobs["completed"], all)
}

// GPUSuccess is the share of the accelerator time of ended attempts that was of completed ones. What its owner cancelled is neither,
// as in JobSuccess: a service ends no other way.
func (c Counts) GPUSuccess() (float64, bool) {
	var all int64
	for outcome, ms := range c.GPU {
		if outcome != string(schema.AttemptCancelled) {
			all += ms
		}
	}
	return share(c.GPU[string(schema.AttemptCompleted)], all)
}

// LongWait is, in milliseconds, from when a wait is long: by it the verdict judges one in ten.
const LongWait = 15 * 60 * 1000

// Verdict says in words what the counts mean together, with the numbers it rests on. The first sentence is the judgement.
func (c Counts) Verdict() string {
	const (
		full      = 0.90 // of what was available
		muchIdle  = 0.20 // of what was allocated and known
		lowShare  = 0.60
		manyFail  = 0.80 // success by GPU-hours under this
		muchBlind = 0.50
		oftenFree = 0.50
	)
	allocated, _ := c.AllocatedShare()
	taken, capacityKnown := c.Full()
	idle, idleKnown := c.IdleRate()
	blind, _ := c.UnknownShare()
	success, ended := c.GPUSuccess()
	waits := c.Wait.Attempts > 0 && c.Wait.P90 >= LongWait || c.Overdue > 0 && 10*c.Overdue >= c.Wait.Attempts+c.Waiting
	whileIdle, waited := 0.0, false
	if c.Queue != nil {
		whileIdle, waited = c.Queue.IdleShare()
	}
	var say []string
	switch {
	case !capacityKnown:
		return "Nothing to judge: no accelerator was available in this period."
	case waits && idleKnown && idle >= muchIdle:
		say = append(say, "Long queues and a high idle rate: a policy problem, not a capacity problem. Accelerators are held and not used while others wait; an idle limit, smaller requests or preemption would free them.")
	case waits && taken >= full:
		say = append(say, "Long queues and a full pool: a capacity problem. What is there is allocated, and jobs wait for more.")
		if whileIdle >= oftenFree {
			say = append(say, "Yet for most of the time in which jobs waited, some accelerators were idle: the waits by reason tell of quotas, fragmentation and unfit shapes.")
		}
	case waits:
		say = append(say, "Long queues and free accelerators: quotas, fragmentation or unfit shapes hold jobs back, not capacity. See the waits by reason.")
	case idleKnown && idle >= muchIdle:
		say = append(say, "Short queues and a high idle rate: nobody waits, and what is allocated is little used.")
	case taken < lowShare:
		say = append(say, "Short queues and a low allocated share: there is more capacity than demand.")
	default:
		say = append(say, "Healthy: queues are short and accelerators are in use.")
	}
	if ended && success < manyFail {
		say = append(say, "Much of the accelerator time goes to attempts that don't complete.")
	}
	if blind >= muchBlind {
		say = append(say, "Of most of the allocated time the utilization is not known: the idle rate says little.")
	}
	n := fmt.Sprintf("Wait p90 %s over %d starts; ", span(c.Wait.P90), c.Wait.Attempts)
	if c.Waiting > 0 {
		n += fmt.Sprintf("%d wait still, %d of them for %s or longer; ", c.Waiting, c.Overdue, span(LongWait))
	}
	if waited {
		n += fmt.Sprintf("for %s of the time in which jobs waited (%s) accelerators of what they asked for were idle; ", percent(whileIdle), span(c.Queue.Waited))
	}
	n += percent(allocated) + " of the available time allocated"
	if taken-allocated >= 0.0005 { // as far as one decimal shows it
		n += fmt.Sprintf(" (%s with what others hold)", percent(taken))
	}
	if idleKnown {
		n += fmt.Sprintf("; %s of the known allocated time idle", percent(idle))
	}
	n += fmt.Sprintf(", %s unknown", percent(blind))
	if ended {
		n += fmt.Sprintf("; %s of GPU-hours in completed attempts", percent(success))
	}
	if jobs, ok := c.JobSuccess(); ok {
		n += fmt.Sprintf(", %s of jobs completed", percent(jobs))
	}
	return strings.Join(append(say, n+"."), " ")
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

// span is a time for people: 45 s, 12 min, 3.5 h.
func span(ms int64) string {
	switch s := float64(ms) / 1000; {
	case s < 120:
		return fmt.Sprintf("%.0f s", s)
	case s < 7200:
		return fmt.Sprintf("%.0f min", s/60)
	default:
		return fmt.Sprintf("%.1f h", s/3600)
	}
}
