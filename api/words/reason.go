package words

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpupool/schema"
)

// Why is a reason as a person reads it.
type Why struct {
	Code     schema.ReasonCode
	Class    string   // who can do something about it
	Headline string   // one sentence, with its numbers
	Clears   string   // what would clear it
	Position string   // where in the queue; empty where it is not known
	Start    string   // the estimated start, or why there is none
	Blockers []string // what stands in the way, as far as the reader may see it
	Also     []string // headlines of the reasons that apply too
	Numbers  []Number // every number the reason rests on, for those who want to check
}

// Number is one named value of a reason's detail.
type Number struct{ Name, Value string }

// Reason says why a job waits.
func Reason(d schema.ReasonDoc, now schema.Instant) Why {
	det := parse(d.Detail)
	w := Why{Code: d.Code, Class: d.Class, Headline: headline(d.Code, det, now), Clears: d.ClearsWhen, Numbers: det.numbers()}
	if p := parse(d.Position); len(p) > 0 {
		w.Position = position(p)
	}
	w.Start = start(d.ETA, now)
	var blockers []struct {
		Kind, ID string
		GPUs     json.Number
	}
	if json.Unmarshal(d.Blockers, &blockers) == nil {
		for _, b := range blockers {
			who := b.Kind + " " + b.ID
			switch {
			case b.ID == "": // not the reader's to see
				who = "another tenant's " + b.Kind
			case strings.Contains(b.ID, " "): // words in the place of an id that is not the reader's to see
				who = b.ID
			case strings.HasPrefix(b.ID, b.Kind+"_"): // the id says what it is of
				who = b.ID
			}
			if n := number(b.GPUs); n != "" && n != "0" {
				who += " (" + n + " accelerators)"
			}
			w.Blockers = append(w.Blockers, who)
		}
	}
	var also []struct {
		Code   schema.ReasonCode
		Detail json.RawMessage
	}
	if json.Unmarshal(d.Also, &also) == nil {
		for _, a := range also {
			w.Also = append(w.Also, headline(a.Code, parse(a.Detail), now))
		}
	}
	return w
}

// serverID is an id of a server in a reason's texts.
var serverID = regexp.MustCompile(`srv_[0-9a-z]{26}`)

// NamesServers reports whether the reason has ids of servers in it, so that a reader would rather have their names.
func NamesServers(d schema.ReasonDoc) bool {
	return serverID.Match(d.Detail) || serverID.Match(d.Also) || serverID.Match(d.Blockers)
}

// Named is the reason with servers by their names in place of their ids, as far as they are known. Ids and names hold no
// character that JSON escapes.
func Named(d schema.ReasonDoc, names map[string]string) schema.ReasonDoc {
	name := func(text json.RawMessage) json.RawMessage {
		return serverID.ReplaceAllFunc(text, func(id []byte) []byte {
			if n := names[string(id)]; n != "" {
				return []byte(n)
			}
			return id
		})
	}
	d.Detail, d.Also, d.Blockers, d.ClearsWhen = name(d.Detail), name(d.Also), name(d.Blockers), string(name(json.RawMessage(d.ClearsWhen)))
	return d
}

// detail is a reason's numbers, read tolerantly: what is missing is left out of the sentence.
type detail map[string]any

func parse(raw json.RawMessage) detail {
	if len(raw) == 0 {
		return nil
	}
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	var d detail
	if dec.Decode(&d) != nil {
		return nil
	}
	return d
}

// str is the value of name as text, or "" where there is none. A dot goes into a value: victims.count.
func (d detail) str(name string) string {
	if outer, inner, ok := strings.Cut(name, "."); ok {
		sub, _ := d[outer].(map[string]any)
		return detail(sub).str(inner)
	}
	switch v := d[name].(type) {
	case nil:
		return ""
	case string:
		return v
	case json.Number:
		return number(v)
	case bool:
		return strconv.FormatBool(v)
	case []any:
		parts := make([]string, 0, len(v))
		for _, e := range v {
			parts = append(parts, detail{"v": e}.str("v"))
		}
		return strings.Join(parts, ", ")
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		parts := make([]string, 0, len(v))
		if lists(v) { // who, and then what all of them have
			for _, k := range keys {
				parts = append(parts, detail(v).str(k)+": "+k)
			}
			return strings.Join(parts, "; ")
		}
		for _, k := range keys {
			if s := detail(v).str(k); s != "" {
				parts = append(parts, k+" "+s)
			}
		}
		return strings.Join(parts, ", ")
	}
	return ""
}

// lists reports whether every value is a list.
func lists(m map[string]any) bool {
	for _, v := range m {
		if _, is := v.([]any); !is {
			return false
		}
	}
	return true
}

// number is n without a fraction where it has none, else with two digits of it, or as many as show three of a small number:
// 12.35, 0.267, 0.125. The exact number is in the reason itself.
func number(n json.Number) string {
	f, err := n.Float64()
	switch size := math.Abs(f); {
	case err != nil || size >= 1e15:
		return n.String()
	case f == math.Trunc(f):
		return strconv.FormatInt(int64(f), 10)
	case size >= 1:
		return strconv.FormatFloat(math.Round(f*100)/100, 'f', -1, 64)
	default:
		short, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'g', 3, 64), 64)
		return strconv.FormatFloat(short, 'f', -1, 64)
	}
}

// moment is the value of name as a time of day with how far away it is, or "".
func (d detail) moment(name string, now schema.Instant) string {
	s := d.str(name)
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return s
	}
	return Clock(schema.At(t), now) + " (" + Ago(schema.At(t), now) + ")"
}

func (d detail) numbers() []Number {
	out := make([]Number, 0, len(d))
	for k := range d {
		if v := d.str(k); v != "" {
			out = append(out, Number{strings.ReplaceAll(k, "_", " "), v})
		}
	}
	slices.SortFunc(out, func(a, b Number) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// phrase fills {name} in a template; a clause in [..] is left out where one of its names has no value.
func (d detail) phrase(template string, now schema.Instant) string {
	var out strings.Builder
	for template != "" {
		i := strings.IndexByte(template, '[')
		if i < 0 {
			s, _ := d.fill(template, now)
			out.WriteString(s)
			break
		}
		s, _ := d.fill(template[:i], now)
		out.WriteString(s)
		end := strings.IndexByte(template[i:], ']')
		if clause, ok := d.fill(template[i+1:i+end], now); ok {
			out.WriteString(clause)
		}
		template = template[i+end+1:]
	}
	return out.String()
}

func (d detail) fill(t string, now schema.Instant) (string, bool) {
	all := true
	var out strings.Builder
	for {
		i := strings.IndexByte(t, '{')
		if i < 0 {
			out.WriteString(t)
			return out.String(), all
		}
		end := i + strings.IndexByte(t[i:], '}')
		out.WriteString(t[:i])
		name := t[i+1 : end]
		var v string
		if n, isTime := strings.CutPrefix(name, "@"); isTime {
			v = d.moment(n, now)
		} else {
			v = d.str(name)
		}
		if v == "" {
			all = false
			v = "?"
		}
		out.WriteString(v)
		t = t[end+1:]
	}
}

// headlines has one sentence for each code of the fixed list; a test proves it complete.
var headlines = map[schema.ReasonCode]string{
	schema.ReasonSpecUnavailable:  "the spec[ {spec}] takes no jobs[, it was retired {@retired_at}][; in use are: {known_specs}]",
	schema.ReasonNeverFits:        "this can never fit[: it asks for {asked.total} accelerators][, at most possible are {max_possible.pool} in the pool][, {max_possible.server} in one server][, {max_possible.quota} by the limit of its tenant or project][; nearest that fits: {nearest_ok.nodes} nodes with {nearest_ok.accelerators} accelerators]",
	schema.ReasonDependencyFailed: "a job it depends on did not complete[: {jobs}][ ({states})]",
	schema.ReasonHeld:             "it is held[ by {by}][: {why}][ ({note})]",
	schema.ReasonQueueStopped:     "the queue is stopped[ for {scope}][ by {by}][ until {@until}][: {note}]",
	schema.ReasonNotBefore:        "it must not start yet[, not before {@until}][: {why}]",
	schema.ReasonDependency:       "it waits for other jobs[: {jobs}][ ({states})]",
	schema.ReasonJobLimit:         "as many jobs run as are allowed[ for the {level}][: {running} of {limit}][, and {reserved} more once jobs that are told to end for them have ended]",
	schema.ReasonQuota:            "over the limit[ of the {level}][: {used} in use][ and {reserved} reserved][, {asked} asked][, limit {limit}][ (over by {over_by})]",
	schema.ReasonGuaranteeOnly:    "only guaranteed capacity may be used[: guaranteed {guaranteed}][, {nonpreemptible_used} of it in use][, {asked} asked]",
	schema.ReasonBudget:           "the budget does not cover it[: {remaining} of {amount} accelerator-hours left][, {reserved} of it kept for jobs that others are told to end for][, overdrawn by {overdrawn}][, {asked} asked][; it resets {@resets_at}]",
	schema.ReasonWindow:           "its time limit reaches into a planned window[ that starts {@starts}][: your limit is {your_limit}][, at most {max_limit_that_starts_now} would start now]",
	schema.ReasonBehind:           "others are ahead in the queue[: {ahead_jobs} jobs][, asking for {ahead_gpus} accelerators][, next to start is {head_job}]",
	schema.ReasonUnhealthy:        "it would fit if unhealthy hardware were back[; out of the pool: {servers_by_cause}][; it comes back once an admin has seen to it: {to_decide}]",
	schema.ReasonFragmented:       "enough is free, but not together[: {free_total} free][ of {model}][, at most {largest_block} together][ in one {level}][, {needed_block} needed][; what is short beside them is {limited_by}]",
	schema.ReasonCapacity:         "not enough free accelerators[ of {model}][: {free} free][, {needed} needed][; next release: {next_release.job}][ at {@next_release.at}]",
	schema.ReasonPreempting:       "room is being made[: to stop are {victims.count} jobs with {victims.gpus} accelerators][, at the latest {@grace_until}]",
	schema.ReasonDispatching:      "it has its accelerators and is being started[ on {backend}][ ({cluster})][: {native_reason}]",
	schema.ReasonNotEvaluated:     "it was just submitted and has not been looked at yet",
}

func headline(c schema.ReasonCode, d detail, now schema.Instant) string {
	t, ok := headlines[c]
	if !ok {
		return "it waits: " + string(c)
	}
	return one.ReplaceAllString(d.phrase(t, now), "${1}1 ${2}")
}

// one finds a count of one before a plural.
var one = regexp.MustCompile(`(^|[^\d.])1 (accelerator|job|node)s\b`)

func position(p detail) string {
	spec, ahead := p.str("spec"), p.str("ahead_gpus")
	switch {
	case spec == "" || spec == "0":
		return "next in the queue"
	case ahead == "" || ahead == "0":
		return spec + " ahead"
	default:
		return one.ReplaceAllString(spec+" ahead, asking for "+ahead+" accelerators", "${1}1 ${2}")
	}
}

func start(raw json.RawMessage, now schema.Instant) string {
	e := parse(raw)
	if len(e) == 0 {
		return ""
	}
	p50, p90 := e.moment("p50", now), e.moment("p90", now)
	switch {
	case p50 == "" && e.str("why") != "":
		return "no estimate: " + e.str("why")
	case p50 == "":
		return ""
	}
	s := "likely " + p50
	if p90 != "" {
		s += ", 9 in 10 by " + p90
	}
	if b := e.str("basis"); b != "" {
		s += fmt.Sprintf(" (%s)", b)
	}
	return s
}
