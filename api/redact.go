package api

import (
	"encoding/json"
	"regexp"

	"gpupool/schema"
)

// What stands in the place of a name that is not the reader's to know.
const (
	anotherJob = "another tenant's job"
	aServer    = "a server"
)

var (
	jobID    = regexp.MustCompile(`job_[0-9a-z]{26}`)
	serverID = regexp.MustCompile(`srv_[0-9a-z]{26}`)
)

type blocker struct {
	Kind   string      `json:"kind"`
	ID     string      `json:"id"`
	GPUs   json.Number `json:"gpus"`
	Tenant string      `json:"tenant,omitempty"`
}

// redact leaves a reason's counts and takes other tenants' names out of it: ids of their jobs, wherever they stand, and
// of servers. A job id that is not known to be the reader's counts as another's.
func redact(r schema.ReasonDoc, tenant string) schema.ReasonDoc {
	own := map[string]bool{}
	var bs []blocker
	if len(r.Blockers) > 0 && json.Unmarshal(r.Blockers, &bs) != nil {
		r.Blockers = nil // not of the known form: better none than a name
	}
	dependency := r.Code == schema.ReasonDependency || r.Code == schema.ReasonDependencyFailed
	for i, b := range bs {
		switch {
		case b.Tenant == tenant, b.Tenant == "" && b.Kind == "job" && dependency: // a job depends on its own tenant's only
			own[b.ID] = true
		case b.Tenant != "":
			bs[i].ID, bs[i].Tenant = anotherJob, ""
		case b.Kind == "server":
			bs[i].ID = aServer
		}
	}
	if bs != nil {
		r.Blockers, _ = json.Marshal(bs) // strings and numbers: can't fail
	}
	clean := func(text string) string {
		text = serverID.ReplaceAllString(text, aServer)
		return jobID.ReplaceAllStringFunc(text, func(id string) string {
			if own[id] {
				return id
			}
			return anotherJob
		})
	}
	// Ids hold no character that JSON escapes, so they can be replaced in the document as it is.
	for _, doc := range []*json.RawMessage{&r.Detail, &r.Position, &r.ETA, &r.Also} {
		if len(*doc) > 0 {
			*doc = json.RawMessage(clean(string(*doc)))
		}
	}
	r.ClearsWhen = clean(r.ClearsWhen)
	return r
}

// redactEvent does the same for an event of the reader's own tenant.
func redactEvent(e schema.Event) schema.Event {
	if e.Kind == schema.EventJobReason && len(e.Data) > 0 {
		data := serverID.ReplaceAllString(string(e.Data), aServer)
		e.Data = json.RawMessage(jobID.ReplaceAllStringFunc(data, func(id string) string {
			if id == e.Job {
				return id
			}
			return anotherJob
		}))
	}
	return e
}
