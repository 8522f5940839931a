package api

import (
	"encoding/json"

	"gpupool/schema"
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
			bs[i].ID, bs[i].Tenant = schema.AnotherJob, ""
		case b.Kind == "server":
			bs[i].ID = schema.AServer
		}
	}
	if bs != nil {
		r.Blockers, _ = json.Marshal(bs) // strings and numbers: can't fail
	}
	clean := func(text string) string { return schema.WithoutNames(text, func(job string) bool { return own[job] }) }
	for _, doc := range []*json.RawMessage{&r.Detail, &r.Position, &r.ETA, &r.Also} {
		if len(*doc) > 0 {
			*doc = json.RawMessage(clean(string(*doc)))
		}
	}
	r.ClearsWhen = clean(r.ClearsWhen)
	return r
}
