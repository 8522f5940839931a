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
//
// A job's process starts at its first allocation: until then the queue is the record's and the allocator's alone, and
// nothing is due that a process would do. So a job that waits costs Temporal nothing, however long the queue is.
func (r Routes) Route(e schema.Event) (deliver.Delivery, bool) {
	switch e.Kind {
	case schema.EventJobAllocated, schema.EventJobStop, schema.EventJobAttemptEnded, schema.EventJobLimit, schema.EventJobUnattended:
		news := JobNews{Kind: e.Kind}
		_ = json.Unmarshal(e.Data, &news)
		news.Kind = e.Kind
		if news.Attempt == 0 {
			return deliver.Delivery{}, false // it was never allocated: no process waits for it
		}
		d := deliver.Delivery{Workflow: JobID(e.Job), Queue: CoreQueue}
		in := r.Job
		in.Job = e.Job
		if e.Kind == schema.EventJobAllocated && news.Attempt == 1 {
			in.Attempt = 1
			d.Start, d.StartArg = RunJob, in
			return d, true
		}
		in.Resumed = true
		d.Signal, d.Arg, d.Revive, d.ReviveArg = JobSignal, news, RunJob, in
		return d, true
	case schema.EventBMCAsked:
		var v struct {
			Site string `json:"site"`
		}
		if json.Unmarshal(e.Data, &v) != nil || v.Site == "" {
			return deliver.Delivery{}, false
		}
		return deliver.Delivery{Workflow: BMCActID(e.Subject), Queue: CoreQueue, Start: ActOnBMC, StartArg: BMCActInput{Act: e.Subject, Site: v.Site}}, true
	default:
		return RouteServer(e)
	}
}
