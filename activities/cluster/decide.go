package cluster

import (
	"cmp"
	"slices"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

// act is what is to be done about a run now. Of the single acts at most one is set; reports are made with any.
type act struct {
	submit  bool
	bind    *Ref
	start   *Ref
	stop    *Ref // asked to end, in its own time
	kill    *Ref
	lost    bool   // the cluster does not know what is bound and may have run
	gone    bool   // the same, after it was asked to end
	unbind  bool   // the cluster does not know what is bound and never ran
	waits   string // why the cluster has not begun it, in its words
	reports []agentproto.TaskReport
	account *Seen
	extra   []Ref // the same run again: never to be started
}

// decide compares a run in the record with what the cluster has of it, all sharing the run's key. It is pure.
func decide(w store.ClusterWork, seen []Seen, resolve func(node string, d []Device) []string, now schema.Instant) act {
	var a act
	slices.SortFunc(seen, func(x, y Seen) int {
		return cmp.Or(cmp.Compare(x.Submitted, y.Submitted), cmp.Compare(len(x.Native), len(y.Native)), cmp.Compare(x.Native, y.Native))
	})
	var cur *Seen
	for i := range seen {
		s := &seen[i]
		switch {
		case w.Native != "" && s.Native == w.Native && s.Submitted == w.SubmittedAt, w.Native == "" && cur == nil && !s.Over():
			cur = s
		case !s.Over():
			a.extra = append(a.extra, s.Ref)
		}
	}
	stopAt, grace, stop, ran := stopOf(w)
	switch {
	case cur == nil && w.Native == "" && stop: // nothing of it is there, and nothing will be: it was never bound
		a.reports = ends(w, schema.TaskCancelled, "stopped before the cluster had it", true)
	case cur == nil && w.Native == "":
		a.submit = true
	case cur == nil && ran && stop:
		a.gone = true
	case cur == nil && ran:
		a.lost = true
	case cur == nil && stop:
		a.reports = ends(w, schema.TaskCancelled, "the cluster no longer knows it; it had not begun", true)
	case cur == nil:
		a.unbind = true
	case forgot(cur, ran) && stop:
		a.gone = true
	case forgot(cur, ran):
		a.lost = true
	case w.Native == "" && stop:
		a.kill = &cur.Ref
	case w.Native == "" && cur.Partial:
		a.submit = true
	case w.Native == "":
		a.bind = &cur.Ref
	default:
		a.reports = tell(w, cur, resolve)
		switch {
		case cur.Over():
			a.account = cur
		case stop && (cur.Held || now >= stopAt.Add(grace)):
			a.kill = &cur.Ref
		case stop:
			a.stop = &cur.Ref
		case cur.Held:
			a.start = &cur.Ref
		case cur.Began == 0:
			a.waits = cur.State
			if cur.Why != "" {
				a.waits = cur.State + ": " + cur.Why
			}
		}
	}
	return a
}

// forgot reports whether a run that has begun is held in the cluster: one that gives ids out again has come back as it was before,
// and does not know what became of the run. Held elsewhere, it is merely to be started again.
func forgot(s *Seen, ran bool) bool { return ran && s.Held && s.Submitted != 0 }

// stopOf says whether a run is asked to end: all parts of it are, or one was because another had failed.
func stopOf(w store.ClusterWork) (at schema.Instant, grace time.Duration, stop, ran bool) {
	for _, p := range w.Parts {
		ran = ran || p.Task.Running != 0
		if p.Task.StopAt != 0 && !p.Task.State.Ended() && (!stop || p.Task.StopAt < at) {
			at, grace, stop = p.Task.StopAt, time.Duration(p.Task.GraceMS)*time.Millisecond, true
		}
	}
	return at, grace, stop, ran
}

// ends reports the end of every open part. Reports are numbered last; see sequence.
func ends(w store.ClusterWork, state schema.TaskState, text string, noneLeft bool) []agentproto.TaskReport {
	var out []agentproto.TaskReport
	for _, p := range w.Parts {
		if !p.Task.State.Ended() {
			out = append(out, agentproto.TaskReport{Task: p.Task.ID, State: state, Text: text, NoneLeft: noneLeft})
		}
	}
	return out
}

// sameMoment is how far the cluster's word of an end, which may be in whole seconds and by another clock, can be from ours. A run
// that ended well within it of being asked to end counts as ended by that: to run it again is safe, to call its work done is not.
const sameMoment = 2 * time.Second

// tell reports what is new of each part: that it runs and on which devices, that it has ended and how.
func tell(w store.ClusterWork, s *Seen, resolve func(node string, d []Device) []string) []agentproto.TaskReport {
	var out []agentproto.TaskReport
	for rank, p := range w.Parts {
		if p.Task.State.Ended() || rank >= len(s.Parts) {
			continue
		}
		sp := s.Parts[rank]
		devices := resolve(p.Node, sp.Devices)
		began := sp.State == schema.TaskRunning || sp.State.Ended() && s.Began != 0
		again := sp.Instance != "" && sp.Instance != p.Task.Instance
		if began && (p.Task.Running == 0 || p.Task.Devices == "" && len(devices) > 0 || again) {
			r := agentproto.TaskReport{Task: p.Task.ID, State: schema.TaskRunning, Devices: devices, Instance: sp.Instance, Restarts: p.Task.Restarts}
			if again && p.Task.Instance != "" {
				r.Restarts, r.Text = p.Task.Restarts+1, cmp.Or(sp.Last, "its pod was replaced")
			}
			out = append(out, r)
		}
		if sp.State.Ended() {
			state := sp.State
			if state == schema.TaskDone && p.Task.StopAt != 0 && (s.Ended == 0 || s.Ended.Add(sameMoment) >= p.Task.StopAt) {
				state = schema.TaskCancelled // it tidied up, as it was asked to: its work is not done
			}
			out = append(out, agentproto.TaskReport{Task: p.Task.ID, State: state, ExitCode: sp.Exit, Signal: sp.Signal, Text: words(s), NoneLeft: sp.NoneLeft})
		}
	}
	return out
}

func words(s *Seen) string {
	if s.Why == "" {
		return s.State
	}
	return s.State + ": " + s.Why
}
