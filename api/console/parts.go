package console

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/a-h/templ"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

// partsPage is what went back to its maker, and what comes back here too often.
func partsPage(v *visit) {
	ctx := v.r.Context()
	rmas, err := call.Do[contract.RMAList](v.api.ListRMAs(ctx, &contract.ListRMAsParams{}))
	if err != nil {
		v.fail(err)
		return
	}
	lemons, err := call.Do[contract.LemonList](v.api.ListLemons(ctx))
	if err != nil {
		v.fail(err)
		return
	}
	v.show(page{title: "Parts", path: "/ui/repairs"}, rmasView(v, rmas, lemons), nil)
}

func rmaPage(v *visit) { v.showRMA(v.r.PathValue("rma"), nil, contract.RMAChange{}) }

func (v *visit) showRMA(id string, n *notice, typed contract.RMAChange) {
	l, err := call.Do[contract.RMAList](v.api.ListRMAs(v.r.Context(), &contract.ListRMAsParams{}))
	if err != nil {
		v.fail(err)
		return
	}
	for _, m := range l.Items {
		if m.ID == id {
			v.show(page{title: "Part " + m.SerialOut, path: "/ui/repairs", at: "/ui/parts/" + m.ID, shape: string(m.State), notice: n}, rmaView(v, m), rmaForm(v, m, typed))
			return
		}
	}
	v.fail(schema.NotFound("RMA", id))
}

// rmaDo keeps what became of a part.
func rmaDo(v *visit) {
	id := v.r.PathValue("rma")
	field := func(name string) string { return strings.TrimSpace(v.r.PostFormValue(name)) }
	in := contract.RMAChange{State: schema.RMAState(field("state")), VendorCase: field("vendor_case"), SerialIn: field("serial_in"), Note: field("note")}
	v.do(map[string]func() (*http.Response, error){
		"set": func() (*http.Response, error) { return v.api.ChangeRMA(v.r.Context(), id, in) },
	}, "/ui/parts/"+id, func(n *notice) { v.showRMA(id, n, in) })
}

// timesPage is how long repairs took and what that cost.
func timesPage(v *visit) {
	ctx := v.r.Context()
	t, err := call.Do[schema.HealthTimes](v.api.GetHealthTimes(ctx, &contract.GetHealthTimesParams{}))
	if err != nil {
		v.fail(err)
		return
	}
	rules, err := call.Do[contract.HealthRuleList](v.api.ListHealthRules(ctx))
	if err != nil && !schema.Is(err, schema.CodeUnavailable) { // an API without rules still knows the times
		v.fail(err)
		return
	}
	v.show(page{title: "Times of repairs", path: "/ui/repairs"}, timesView(v, t, rules.Items), nil)
}

func repairURL(d repairDetail, verb string) templ.SafeURL {
	return templ.URL("/ui/repairs/" + d.ID + "/" + verb)
}

func claimed(v *visit, r schema.Repair) string {
	if r.ClaimedBy == v.me.Name {
		return "By you"
	}
	return "By " + r.ClaimedBy
}

func didWords(r schema.Repair) string {
	if r.Did == "" {
		return ""
	}
	return ", " + workWords(r.Did)
}

func workWords(w schema.RepairWork) string {
	return map[schema.RepairWork]string{schema.WorkReplaced: "replaced", schema.WorkReseated: "reseated", schema.WorkCleaned: "cleaned", schema.WorkFirmware: "flashed with firmware",
		schema.WorkCabling: "cabled anew", schema.WorkNothing: "looked at, nothing found", schema.WorkOther: "something else, see the note"}[w]
}

func photoWords(p schema.RepairPhoto) string {
	return cmp.Or(p.Note, "Photo") + " by " + p.By
}

func rmaWords(m schema.RMA) string {
	s := m.SerialOut + ", " + string(m.State)
	if m.VendorCase != "" {
		s += ", case " + m.VendorCase
	}
	if m.SerialIn != "" {
		s += ", came back as " + m.SerialIn
	}
	return s
}

func lemonOf(l schema.Lemon) string {
	if l.Serial != "" {
		return "Device " + l.Serial
	}
	return "Slot " + l.Slot + " of " + l.Server
}

func lemonWords(l schema.Lemon) string {
	s := fmt.Sprintf("score %d: %s, %s that failed, %s in 28 days", l.Score, words.Count(l.Repairs, "repair"), words.Count(l.Unproven, "proof"), words.Count(l.Faults, "fault"))
	if l.Slot != "" && l.Devices > 1 {
		s += fmt.Sprintf(", of %d different devices: look at the slot itself", l.Devices)
	}
	return s
}

func mtbfWords(t schema.HealthTimes) string {
	if t.Repairs == 0 {
		return "no repair yet"
	}
	return fmt.Sprintf("%.0f hours of a server", t.MTBFHours)
}

func shareWords(v float64, of int) string {
	if of == 0 {
		return "not known yet"
	}
	return fmt.Sprintf("%.0f %%", 100*v)
}

func secondsWords(s float64, count int) string {
	if count == 0 {
		return "–"
	}
	return words.Duration((time.Duration(s*1000) * time.Millisecond).Round(time.Second))
}

func stepWords(step string) string {
	return cmp.Or(map[string]string{"detect": "First sign to cordon", "drain": "Cordon to drained", "reset": "Resets", "wait": "Waiting for a technician", "hands-on": "Hands on",
		"prove": "Proof", "whole": "Cordon to return"}[step], step)
}

func falseOf(rules []schema.HealthRule, rule string) string {
	for _, r := range rules {
		if r.Name == rule {
			return itoa(r.FalsePositives)
		}
	}
	return "–"
}
