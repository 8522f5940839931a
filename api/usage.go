package api

import (
	"bytes"
	"encoding/csv"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/usage"
)

// GetUsage sums the ledger, as JSON or CSV.
func (s *Server) GetUsage(c *gin.Context, p contract.GetUsageParams) {
	t, pr, err := scope(c, p.Tenant, p.Project)
	if err != nil {
		s.fail(c, err)
		return
	}
	zone, err := s.zone(c, p.Zone)
	if err != nil {
		s.fail(c, err)
		return
	}
	now, err := s.c.Store.Metered(c.Request.Context())
	if err != nil {
		s.fail(c, err)
		return
	}
	q := store.UsageQuery{Tenant: t, Project: pr, To: now + 1, By: []string{}, Live: val(p.Live) || val(p.Parts), Parts: val(p.Parts), Every: usage.Every(val(p.Every)), Zone: zone}
	if p.From != nil {
		q.From = schema.At(*p.From)
	}
	if p.To != nil {
		if q.To, err = until(*p.To); err != nil {
			s.fail(c, err)
			return
		}
	}
	if p.By != nil {
		q.By = *p.By
	}
	if q.Every != usage.EveryNone && p.From == nil {
		s.fail(c, schema.Invalid("from", "", "a moment: a report in periods has a begin"))
		return
	}
	rows, err := s.c.Store.Usage(c.Request.Context(), q)
	if err != nil {
		s.fail(c, err)
		return
	}
	if q.Every != usage.EveryNone {
		q.By = append([]string{"period"}, q.By...)
	}
	if c.NegotiateFormat("application/json", "text/csv") == "text/csv" {
		b, err := usageCSV(q.By, rows, q.Parts)
		if err != nil {
			s.fail(c, err)
			return
		}
		attachment(c, "usage.csv", b)
		return
	}
	out := contract.Usage{From: q.From, To: q.To, Zone: zone.String(), By: q.By, Items: each(rows, toUsageRow)}
	for _, r := range rows {
		out.TotalGpuMs += r.Charged()
	}
	out.TotalGpuSeconds = seconds(out.TotalGpuMs)
	s.reply(c, http.StatusOK, out)
}

// attachment answers with a CSV file.
func attachment(c *gin.Context, name string, b []byte) {
	c.Header("Content-Disposition", `attachment; filename="`+name+`"`)
	c.Data(http.StatusOK, "text/csv; charset=utf-8", b)
}

// usageCSV has one column a key and then the sums in GPU-milliseconds, and in GPU-hours for people.
func usageCSV(by []string, rows []store.UsageRow, parts bool) ([]byte, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	head := append(slices.Clone(by), "gpu_ms", "used_gpu_ms", "launch_gpu_ms", "running_gpu_ms", "drain_gpu_ms", "credit_gpu_ms", "adjustment_gpu_ms", "intervals", "gpu_hours", "cost", "currency")
	if parts {
		head = append(head, "waited_ms", "known_gpu_ms", "idle_gpu_ms")
	}
	if err := w.Write(head); err != nil {
		return nil, err
	}
	for _, r := range rows {
		var line []string
		for _, k := range by {
			line = append(line, plain(r.Keys[k]))
		}
		for _, n := range []int64{r.Charged(), r.Used(), r.Launch, r.Run, r.Drain, r.Credit, r.Adjust, r.Rows} {
			line = append(line, strconv.FormatInt(n, 10))
		}
		line = append(line, strconv.FormatFloat(float64(r.Charged())/usage.Hour, 'f', 6, 64), micros(r.Cost), r.Currency)
		if parts {
			told := []string{"", "", ""} // what is not known is not 0
			if p := r.Parts; p != nil {
				told = []string{strconv.FormatInt(p.Waited, 10), strconv.FormatInt(p.Known, 10), strconv.FormatInt(p.Idle, 10)}
			}
			line = append(line, told...)
		}
		if err := w.Write(line); err != nil {
			return nil, err
		}
	}
	w.Flush()
	return b.Bytes(), w.Error()
}

// plain keeps a spreadsheet from taking a name for a formula.
func plain(s string) string {
	if s != "" && strings.ContainsAny(s[:1], "=+-@\t\r") {
		return "'" + s
	}
	return s
}

// hardware are the kinds of events that a technician reads.
var hardware = []schema.EventKind{schema.EventServerEnrolled, schema.EventServerDifference, schema.EventServerPause, schema.EventServerRetire, schema.EventServerDrive, schema.EventServerPhase, schema.EventServerStep, schema.EventServerFailure, schema.EventServerCordoned, schema.EventServerUncordoned,
	schema.EventServerProtected, schema.EventServerIdentified, schema.EventServerPhonedHome, schema.EventServerAgent, schema.EventServerDrained, schema.EventServerDiscovered,
	schema.EventAcceleratorSeen, schema.EventAcceleratorHealth, schema.EventAcceleratorGone, schema.EventFault, schema.EventFaultCleared, schema.EventRepairOpened, schema.EventRepairState,
	schema.EventRepairDone, schema.EventRepairPhoto, schema.EventBoot, schema.EventServerBMC, schema.EventBMCAsked, schema.EventBMCEnded}

// ListEvents gives events as a page, a long-poll or a stream.
func (s *Server) ListEvents(c *gin.Context, p contract.ListEventsParams) {
	id := me(c)
	t, _, err := scope(c, p.Tenant, nil)
	if err != nil {
		s.fail(c, err)
		return
	}
	f := store.EventFilter{Job: val(p.Job), Tenant: t}
	topic := store.TopicAll
	if id.Pool() {
		if f.Server, err = s.serverID(c.Request.Context(), p.Server); err != nil {
			s.fail(c, err)
			return
		}
	} else if val(p.Server) != "" {
		s.fail(c, schema.NotFound("server", *p.Server))
		return
	}
	if id.Project != "" && f.Job == "" { // events know the tenant, not the project: such a caller reads its jobs one by one
		s.fail(c, &schema.Error{Code: schema.CodeForbidden, Field: "job", Message: "this token sees one project, and events are by tenant", Hint: "name a job, or use /v1/jobs/{job}/events"})
		return
	}
	if f.Job != "" {
		j, err := s.job(c.Request.Context(), c, f.Job)
		if err != nil {
			s.fail(c, err)
			return
		}
		f.Job = j.ID
	}
	if p.Kind != nil {
		for _, k := range *p.Kind {
			if k != "" {
				f.Kinds = append(f.Kinds, schema.EventKind(k))
			}
		}
	}
	if auth.Kind(id.Role, id.Tenant) == auth.Technician {
		f.Kinds = within(f.Kinds, hardware)
	}
	switch {
	case f.Job != "":
		topic = store.TopicJob(f.Job)
	case f.Server != "":
		topic = store.TopicServer(f.Server)
	case f.Tenant != "":
		topic = store.TopicTenant(f.Tenant)
	}
	s.events(c, eventsOf{topic: topic, filter: f, after: p.After, tail: val(p.Tail), wait: p.Wait, limit: p.Limit})
}

// within is what of asked is allowed; all that is allowed where nothing is asked. Where they have nothing in common it
// is a kind that no event has.
func within(asked, allowed []schema.EventKind) []schema.EventKind {
	if len(asked) == 0 {
		return allowed
	}
	var out []schema.EventKind
	for _, k := range asked {
		for _, a := range allowed {
			if k == a {
				out = append(out, k)
			}
		}
	}
	if len(out) == 0 {
		return []schema.EventKind{"none"}
	}
	return out
}
