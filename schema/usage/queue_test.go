package usage_test

import (
	"encoding/csv"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/shared"
	"gpupool/schema/usage"
)

// pool is what an accelerator of these tests belongs to.
type pool struct{ region, model string }

// sums are a pool's own, its model's, its region's and all together.
func sums(p pool) []pool { return []pool{p, {"", p.model}, {p.region, ""}, {}} }

func TestWaitingWhileAcceleratorsAreIdle(t *testing.T) {
	t.Parallel()
	w := usage.Interval{Start: 0, End: 100}
	eu, us, old := pool{"eu", "new"}, pool{"us", "new"}, pool{"eu", "old"}
	of := map[string]pool{"a": eu, "b": eu, "c": us, "d": old, "e": old}
	spans := []usage.Span{
		{Accelerator: "a", State: usage.StateIdle, Start: -50, End: 60}, {Accelerator: "a", State: usage.StateReserved, Start: 60, End: 70}, {Accelerator: "a", State: usage.StateIdle, Start: 70},
		{Accelerator: "b", State: usage.StateUnhealthy, Start: 0},
		{Accelerator: "c", State: usage.StateIdle, Start: 0},
		{Accelerator: "d", State: usage.StateDraining, Start: 0},
	}
	held := []usage.Held{ // in no order, and two at once
		{Accelerator: "a", Start: 30, End: 50}, {Accelerator: "a", Start: 10, End: 40}, {Accelerator: "a", Start: 80, End: 0},
		{Accelerator: "c", Start: -10, End: 90}, {Accelerator: "d", Start: 20, End: 30},
	}
	idle := usage.Idle(spans, held, w, func(acc string) pool { return of[acc] })
	for p, want := range map[pool][]usage.Interval{eu: {{0, 10}, {50, 60}, {70, 80}}, us: {{90, 100}}, old: nil} {
		if fmt.Sprint(idle[p]) != fmt.Sprint(want) {
			t.Errorf("%v was idle in %v, want %v", p, idle[p], want)
		}
	}
	waits := map[pool][]usage.Interval{
		eu:  {{5, 20}, {15, 55}, {55, 55}, {78, 200}}, // 5-55 and 78-100: 72, of which 5-10, 50-55 and 78-80 are 12
		us:  {{0, 20}, {85, 95}},                      // 30, of which 90-95
		old: {{56, 58}},                               // 2; what is idle is not what it asks for
	}
	got := usage.Queues(waits, idle, w, sums)
	want := map[pool]usage.Queue{eu: {72, 12}, us: {30, 5}, old: {2, 0},
		{"", "new"}: {77, 17}, {"", "old"}: {2, 0}, {"eu", ""}: {74, 12}, {"us", ""}: {30, 5}, {}: {79, 17}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%v\nwant %v", got, want)
	}
	// The parts of a time sum to it.
	for cut := schema.Instant(1); cut < w.End; cut++ {
		for k, whole := range want {
			var sum usage.Queue
			for _, part := range []usage.Interval{{Start: w.Start, End: cut}, {Start: cut, End: w.End}} {
				sum.Add(usage.Queues(waits, usage.Idle(spans, held, part, func(acc string) pool { return of[acc] }), part, sums)[k])
			}
			if sum != whole {
				t.Fatalf("%v cut at %d: %v, want %v", k, cut, sum, whole)
			}
		}
	}
	if got := usage.Queues(map[pool][]usage.Interval{eu: {{100, 120}}}, idle, w, sums); len(got) != 0 {
		t.Fatalf("%v: nobody waited in this time", got)
	}
}

func TestOnlyWhoWantsAcceleratorsWaitsForThem(t *testing.T) {
	t.Parallel()
	wait := usage.Interval{Start: 100, End: 200}
	for name, c := range map[string]struct {
		reasons []usage.Reason
		want    []usage.Interval
	}{
		"none told":                     {nil, []usage.Interval{{100, 200}}},
		"of other attempts":             {[]usage.Reason{{schema.ReasonHeld, 50}, {schema.ReasonHeld, 250}}, []usage.Interval{{100, 200}}},
		"quota":                         {[]usage.Reason{{schema.ReasonQuota, 110}}, []usage.Interval{{100, 200}}},
		"held from the begin":           {[]usage.Reason{{schema.ReasonHeld, 110}, {schema.ReasonCapacity, 150}}, []usage.Interval{{150, 200}}},
		"held later":                    {[]usage.Reason{{schema.ReasonCapacity, 110}, {schema.ReasonHeld, 150}, {schema.ReasonBehind, 180}}, []usage.Interval{{100, 150}, {180, 200}}},
		"not before, then a dependency": {[]usage.Reason{{schema.ReasonNotBefore, 100}, {schema.ReasonDependency, 150}}, nil},
		"never fits":                    {[]usage.Reason{{schema.ReasonNeverFits, 101}}, nil},
		"the clock was set back":        {[]usage.Reason{{schema.ReasonCapacity, 110}, {schema.ReasonHeld, 180}, {schema.ReasonCapacity, 150}}, []usage.Interval{{100, 180}, {180, 200}}},
	} {
		if got := usage.Demand(c.reasons, wait); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Case 25c: a month of a virtual cluster of 208 accelerators, minute by minute, as its operators counted it.
func TestTheHeliosMonthOfWaitingAndIdleAccelerators(t *testing.T) {
	t.Parallel()
	f, err := os.Open(shared.Path(t, "data", "traces", "cluster_sequence_vc.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := map[string]int{}
	for i, name := range lines[0] {
		column[name] = i
	}
	lines = lines[1:]
	const minute = 60_000
	begin, err := time.Parse(time.DateTime, lines[0][0])
	if err != nil {
		t.Fatal(err)
	}
	month := usage.Interval{Start: schema.At(begin), End: schema.At(begin) + schema.Instant(len(lines)*minute)}
	series := func(name string, scale float64) []int {
		out := make([]int, len(lines))
		for i, l := range lines {
			v, err := strconv.ParseFloat(l[column[name]], 64)
			if err != nil {
				t.Fatalf("%s in line %d: %v", name, i+2, err)
			}
			out[i] = int(v*scale + 0.5)
		}
		return out
	}
	at := func(i int) schema.Instant { return month.Start + schema.Instant(i*minute) }
	// record is a pool of n accelerators of which so many are held in each minute, the first ones first.
	record := func(n int, running []int) (spans []usage.Span, held []usage.Held) {
		for a := range n {
			id := fmt.Sprint(a)
			spans = append(spans, usage.Span{Accelerator: id, State: usage.StateIdle, Start: month.Start})
			for i := 0; i < len(running); i++ {
				if running[i] <= a {
					continue
				}
				from := i
				for i < len(running) && running[i] > a {
					i++
				}
				held = append(held, usage.Held{Accelerator: id, Start: at(from), End: at(i), By: id})
			}
		}
		return spans, held
	}
	share := func(spans []usage.Span, held []usage.Held) string {
		sums, found := usage.Conserve(spans, spans, held, month, func(string) string { return "" })
		if len(found) > 0 {
			t.Fatalf("%+v", found[0])
		}
		b := sums[""]
		v, _ := usage.Counts{Allocated: b.Allocated, Capacity: b}.AllocatedShare()
		return fmt.Sprintf("%.4f", v)
	}
	spans, held := record(208, series("running_gpu_num", 1))
	idle := usage.Idle(spans, held, month, func(string) string { return "" })
	waits := map[string][]usage.Interval{}
	for i, pending := range series("pending_gpu_num", 1) {
		if pending > 0 {
			waits[""] = append(waits[""], usage.Interval{Start: at(i), End: at(i + 1)})
		}
	}
	q := usage.Queues(waits, idle, month, func(p string) []string { return []string{p} })[""]
	if len(lines) != 44_640 || q != (usage.Queue{Waited: 24_423 * minute, WhileIdle: 20_404 * minute}) {
		t.Errorf("%d minutes, in %d of them somebody waited, in %d of those accelerators were idle: want 44640, 24423, 20404", len(lines), q.Waited/minute, q.WhileIdle/minute)
	}
	// The operators' own share has three decimals in each minute, and its mean is that of what was rounded: 0.90273, where
	// 208 accelerators give 0.90263.
	if got := share(record(1000, series("gpu_utilization", 1000))); got != "0.9027" {
		t.Errorf("%s allocated by the shares of each minute, want 0.9027", got)
	}
	if got := share(spans, held); got != "0.9026" {
		t.Errorf("%s allocated by the counts of each minute, want 0.9026", got)
	}
}

func TestSinceWhenAllLastsToTheEnd(t *testing.T) {
	t.Parallel()
	w := usage.Interval{Start: 10, End: 50}
	for _, c := range []struct {
		list  []usage.Interval
		since schema.Instant
		ok    bool
	}{
		{},
		{list: []usage.Interval{{Start: 10, End: 49}}},
		{list: []usage.Interval{{Start: 20, End: 50}}, since: 20, ok: true},
		{list: []usage.Interval{{Start: 40, End: 90}, {Start: 30, End: 40}, {Start: 12, End: 29}}, since: 30, ok: true},
		{list: []usage.Interval{{Start: 0, End: 60}}, since: 10, ok: true},
		{list: []usage.Interval{{Start: 50, End: 60}}},
	} {
		if since, ok := usage.Lasting(c.list, w); since != c.since || ok != c.ok {
			t.Errorf("%v: %d, %v, want %d, %v", c.list, since, ok, c.since, c.ok)
		}
	}
}
