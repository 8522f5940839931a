package words

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpupool/schema"
)

func TestDurationsAreSaidInTwoUnits(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 850 * time.Millisecond: "850ms", 42 * time.Second: "42s", 192 * time.Second: "3m12s",
		5*time.Hour + 4*time.Minute + 59*time.Second: "5h04m", 51 * time.Hour: "2d03h", -time.Minute: "-1m00s",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v is %q, not %q", d, got, want)
		}
	}
}

func TestGPUHoursHaveTheDecimalsThatTheyAreWorth(t *testing.T) {
	t.Parallel()
	for ms, want := range map[int64]string{
		0: "0.0000", 179: "0.0000", 180: "0.0001", -179: "0.0000", -360: "-0.0001", 3_599_999: "1.0000", 3_600_000: "1.00", 5_418_000: "1.51",
		99*3_600_000 + 3_590_000: "100.00", 100 * 3_600_000: "100.0", 1<<62 - 1: "1281023894007.6",
	} {
		if got := GPUHours(ms); got != want {
			t.Errorf("%d ms: got %s, want %s", ms, got, want)
		}
	}
	if got := GPUHoursTo(3_600_000_001, 6); got != "1000.000000" {
		t.Errorf("got %s", got)
	}
}

func TestBytesAreBinaryAndZeroIsUnknown(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "-", 500: "500 B", 80 << 30: "80 GiB", 2 << 40: "2 TiB", 1536 << 30: "1.5 TiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d is %q, not %q", n, got, want)
		}
	}
}

func TestEveryReasonCodeHasASentence(t *testing.T) {
	t.Parallel()
	for _, c := range schema.ReasonCodes {
		if headlines[c] == "" {
			t.Errorf("no sentence for %s", c)
		}
		// With no numbers at all the sentence must still stand.
		if s := headline(c, nil, 0); strings.Contains(s, "?") || strings.Contains(s, "[") {
			t.Errorf("%s without numbers reads %q", c, s)
		}
	}
	if len(headlines) != len(schema.ReasonCodes) {
		t.Errorf("%d sentences for %d codes", len(headlines), len(schema.ReasonCodes))
	}
}

func TestAReasonIsReadWithItsNumbers(t *testing.T) {
	t.Parallel()
	now := schema.At(time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC))
	doc := schema.ReasonDoc{
		Code: schema.ReasonCapacity, Class: "wait",
		Detail:     json.RawMessage(`{"free": 8, "needed": 16, "next_release": {"job": "job_7", "at": "2026-11-30T10:05:00Z"}}`),
		Position:   json.RawMessage(`{"project": 0, "spec": 2, "ahead_gpus": 24.0}`),
		ETA:        json.RawMessage(`{"p50": "2026-11-30T10:05:00Z", "p90": "2026-11-30T10:20:00Z", "basis": "time limits"}`),
		Blockers:   json.RawMessage(`[{"kind": "job", "id": "job_7", "gpus": 8}, {"kind": "job", "id": "", "gpus": 16}, {"kind": "job", "id": "another tenant's job", "gpus": 8}, {"kind": "server", "id": "a server"}]`),
		ClearsWhen: "8 more accelerators are free",
		Also:       json.RawMessage(`[{"code": "BEHIND", "detail": {"ahead_jobs": 1, "ahead_gpus": 24}}]`),
	}
	want := Why{
		Code: "CAPACITY", Class: "wait",
		Headline: "not enough free accelerators: 8 free, 16 needed; next release: job_7 at 10:05:00Z (in 5m00s)",
		Clears:   "8 more accelerators are free",
		Position: "2 ahead, asking for 24 accelerators",
		Start:    "likely 10:05:00Z (in 5m00s), 9 in 10 by 10:20:00Z (in 20m00s) (time limits)",
		Blockers: []string{"job_7 (8 accelerators)", "another tenant's job (16 accelerators)", "another tenant's job (8 accelerators)", "a server"},
		Also:     []string{"others are ahead in the queue: 1 job, asking for 24 accelerators"},
		Numbers:  []Number{{"free", "8"}, {"needed", "16"}, {"next release", "at 2026-11-30T10:05:00Z, job job_7"}},
	}
	if d := cmp.Diff(want, Reason(doc, now)); d != "" {
		t.Fatal(d)
	}
}

func TestAnUnhealthyReasonNamesServersAndWhatItTakes(t *testing.T) {
	t.Parallel()
	sick, other := "srv_"+strings.Repeat("a", 26), "srv_"+strings.Repeat("b", 26)
	doc := schema.ReasonDoc{
		Code: schema.ReasonUnhealthy, Class: "ask an admin", ClearsWhen: "a server that could hold the job is schedulable again",
		Detail:   json.RawMessage(`{"servers_by_cause": {"cordoned: XID 79": ["` + sick + `"]}, "to_decide": ["breaker brk_1 is reset", "the operator's cordon of ` + other + ` is lifted"]}`),
		Blockers: json.RawMessage(`[{"kind": "server", "id": "` + sick + `", "gpus": 0}]`),
	}
	if !NamesServers(doc) {
		t.Fatal("its ids are not seen")
	}
	got := Reason(Named(doc, map[string]string{sick: "r1s3"}), 0)
	if want := "it would fit if unhealthy hardware were back; out of the pool: r1s3: cordoned: XID 79; it comes back once an admin has seen to it: breaker brk_1 is reset, the operator's cordon of " + other + " is lifted"; got.Headline != want {
		t.Errorf("it reads %q, want %q", got.Headline, want)
	}
	if len(got.Blockers) != 1 || got.Blockers[0] != "server r1s3" {
		t.Errorf("in the way are %v", got.Blockers)
	}
}

func TestARepairSaysWhomItWaitsFor(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]schema.Repair{
		"waits for a technician": {Owner: schema.OwnerTechnicians},
		"waits for a technician: the proof failed once after what was tried by itself": {Owner: schema.OwnerTechnicians, Returns: 1, DoneBy: schema.OwnerPlatform},
		"waits for a technician again: the proof failed twice":                         {Owner: "tom", Returns: 2, DoneBy: "tom"},
		"could not be fixed: waits for an operator to decide":                          {Owner: schema.OwnerOperators, Returns: 1, DoneBy: "tom"},
	} {
		r.State = schema.RepairWaiting
		if got := Repair(r); got != want {
			t.Errorf("%+v reads %q, want %q", r, got, want)
		}
	}
}

func TestANestedNumberIsFound(t *testing.T) {
	t.Parallel()
	doc := schema.ReasonDoc{Code: schema.ReasonNeverFits, Detail: json.RawMessage(`{"asked": {"total": 64}, "max_possible": {"server": 8, "pool": 32}, "nearest_ok": {"nodes": 4, "accelerators": 32}}`)}
	limited := schema.ReasonDoc{Code: schema.ReasonNeverFits, Detail: json.RawMessage(`{"asked": {"total": 16}, "max_possible": {"server": 8, "pool": 24, "quota": 12}, "nearest_ok": {"nodes": 1, "accelerators": 8}}`)}
	if got, want := headline(limited.Code, parse(limited.Detail), 0), "this can never fit: it asks for 16 accelerators, at most possible are 24 in the pool, 8 in one server, 12 by the limit of its tenant or project; nearest that fits: 1 node with 8 accelerators"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	want := "this can never fit: it asks for 64 accelerators, at most possible are 32 in the pool, 8 in one server; nearest that fits: 4 nodes with 32 accelerators"
	if got := Reason(doc, 0).Headline; got != want {
		t.Fatal(got)
	}
}

func TestControlCharactersDoNotReachATerminal(t *testing.T) {
	t.Parallel()
	if got := Printable("a\x1b[2Jb\nc\td\u202e", true); got != "a?[2Jb\nc\td?" {
		t.Fatalf("%q", got)
	}
	if got := Printable("a\nb", false); got != "a?b" {
		t.Fatalf("%q", got)
	}
}

func TestANumberIsShownWithTheDigitsThatItIsWorth(t *testing.T) {
	t.Parallel()
	for n, want := range map[json.Number]string{
		"0": "0", "8.0": "8", "0.26666666666666666": "0.267", "12.345678": "12.35", "0.125": "0.125", "-0.5": "-0.5", "100000.5": "100000.5",
		"1000000": "1000000", "0.0000277": "0.0000277", "99.999": "100", "1e30": "1e30",
	} {
		if got := number(n); got != want {
			t.Errorf("%s is %q, not %q", n, got, want)
		}
	}
}
