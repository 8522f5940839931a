package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

func or(s string) string { return words.Or(s) }

func contains(list []string, s string) bool { return slices.Contains(list, s) }

// firstFew is list, shortened with how many more there are.
func firstFew(list []string, n int) []string {
	if len(list) <= n {
		return list
	}
	return append(slices.Clone(list[:n]), fmt.Sprintf("and %d more", len(list)-n))
}

func barLabel(m contract.ModelOverview) string {
	var out []string
	for _, p := range parts(m) {
		if p.Count > 0 {
			out = append(out, fmt.Sprintf("%d %s", p.Count, p.Name))
		}
	}
	return strings.Join(out, ", ")
}

func jobName(j contract.Job) string {
	if j.Name != "" {
		return j.Name
	}
	return j.Id
}

func limitWords(ms int64) string {
	if ms == 0 {
		return "none"
	}
	return words.Duration(time.Duration(ms) * time.Millisecond)
}

// waited is the time from submit to the first start, to the end where it never started, or to now.
func waited(v *visit, j contract.Job) string {
	until := j.StartedAt
	if until.IsZero() {
		until = j.EndedAt
	}
	return v.took(j.SubmittedAt, until)
}

func endKind(s schema.JobState) string {
	switch s {
	case schema.JobCompleted:
		return "good"
	case schema.JobCancelled:
		return "info"
	default:
		return "bad"
	}
}

func classWords(class string) string {
	switch class {
	case "fix the request":
		return "You: the request has to change."
	case "ask an admin":
		return "An admin."
	case "wait":
		return "Nobody has to: it clears by itself."
	case "in progress":
		return "Nobody has to: it is happening now."
	}
	return class
}

func place(s contract.Server) string {
	out := strings.Trim(strings.Join([]string{s.Region, s.Site, s.Rack}, " / "), " /")
	if s.Unit > 0 {
		out += fmt.Sprintf(" / U%d", s.Unit)
	}
	return out
}

func serials(r schema.Repair) string {
	if r.OldSerial == "" && r.NewSerial == "" {
		return ""
	}
	return fmt.Sprintf(": %s out, %s in", words.Or(r.OldSerial), words.Or(r.NewSerial))
}

// slotOf says a fault's device as the technician knows it; the part that was taken out is no longer listed.
func slotOf(d repairDetail, id string) string {
	if id == "" || id != d.Accelerator {
		return id
	}
	return strings.TrimSpace(strings.TrimPrefix(d.Part, "accelerator ") + " " + d.expected())
}

// pageAfter is the address of the next page, with the same filters.
func pageAfter(v *visit, next string) string {
	q := v.r.URL.Query()
	q.Del("said")
	q.Del("shape")
	q.Set("after", next)
	return v.r.URL.Path + "?" + q.Encode()
}

// stoppedWords names the step that stopped, where a step did.
func stoppedWords(s contract.Server) string {
	if s.Failure.Step == "" {
		return "Waits for a person"
	}
	return "Stopped at " + string(s.Failure.Step)
}
