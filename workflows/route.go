package workflows

import (
	"encoding/json"

	"gpupool/activities/deliver"
	"gpupool/schema"
)

// JobID and ServerID are workflow ids: one process at a time for each job and each server.
func JobID(job string) string       { return "job/" + job }
func ServerID(server string) string { return "server/" + server }

// Routes says which stored event goes to which workflow.
type Routes struct {
	Job RunJobInput // its timeouts go to every job
}

// Route is deliver's table. An event that no process waits for has none.
func (r Routes) Route(e schema.Event) (deliver.Delivery, bool) {
	switch e.Kind {
	case schema.EventJobSubmitted:
		in := r.Job
		in.Job = e.Job
		return deliver.Delivery{Workflow: JobID(e.Job), Queue: CoreQueue, Start: RunJob, StartArg: in}, true
	case schema.EventJobAllocated, schema.EventJobStop, schema.EventJobAttemptEnded, schema.EventJobLimit:
		news := JobNews{Kind: e.Kind}
		// An event without data about the attempt (a new limit) leaves it 0.
		_ = json.Unmarshal(e.Data, &news)
		news.Kind = e.Kind
		again := r.Job
		again.Job, again.Resumed = e.Job, true
		return deliver.Delivery{Workflow: JobID(e.Job), Queue: CoreQueue, Signal: JobSignal, Arg: news, Revive: RunJob, ReviveArg: again}, true
	default:
		return RouteServer(e)
	}
}
