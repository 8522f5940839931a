package schema

import (
	"encoding/json"
	"math"
	"testing"
	"time"
)

func TestASettingIsSaidAsItIsTyped(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 45 * time.Second: "45s", 2 * time.Minute: "2m", 90 * time.Second: "1m30s", time.Hour: "1h", 90 * time.Minute: "1h30m",
		10 * time.Hour: "10h", time.Hour + time.Second: "1h0m1s", 168 * time.Hour: "7d", 36 * time.Hour: "1d12h", 24*time.Hour + 10*time.Minute: "1d10m",
	} {
		if got := Setting(d); got != want {
			t.Errorf("%v is %q, not %q", d, got, want)
		}
	}
}

func TestAnEmptyValueIsMissing(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"job.project: is missing (" + OneOf([]string{"main", "llm"}) + ")": Invalid("job.project", "", "one of main, llm"),
		"role: \"boss\" is not valid (there is none yet)":                  Invalid("role", "boss", OneOf([]string{})),
	} {
		if err.Error() != want {
			t.Errorf("%q, not %q", err, want)
		}
	}
}

func TestEveryListedChangeIsBetweenKnownStates(t *testing.T) {
	t.Parallel()
	checkLifecycle(t, Phases)
	checkLifecycle(t, Healths)
	checkLifecycle(t, JobStates)
	checkLifecycle(t, RepairStates)
	checkLifecycle(t, TaskStates)
}

func checkLifecycle[S ~string](t *testing.T, l Lifecycle[S]) {
	t.Helper()
	for from, tos := range l.next {
		for _, to := range tos {
			if !l.Valid(to) {
				t.Fatalf("%s: %s -> %s, which is no state", l.Name, from, to)
			}
			if from == to {
				t.Fatalf("%s: %s -> itself is listed", l.Name, from)
			}
		}
	}
}

func TestFailedHardwareReachesHealthyOnlyThroughSuspect(t *testing.T) {
	t.Parallel()
	if Healths.Allows(HealthFailed, HealthHealthy) || Healths.Allows(HealthAbsent, HealthHealthy) {
		t.Fatal("failed or absent hardware may become healthy without a burn-in")
	}
	if !Healths.Allows(HealthSuspect, HealthHealthy) {
		t.Fatal("suspect hardware can never be cleared")
	}
}

func TestOnlyDrainedServersAreRepairedRetiredOrInstalledAgain(t *testing.T) {
	t.Parallel()
	for _, to := range []Phase{PhaseRepairing, PhaseRetiring, PhaseEnrolled, PhaseOnboarding} {
		if Phases.Allows(PhaseAvailable, to) {
			t.Fatalf("an available server may become %s without draining", to)
		}
	}
	if err := Phases.Check("server r1s1", PhaseAvailable, PhaseOnboarding); !Is(err, CodeConflict) {
		t.Fatalf("got %v, want a conflict", err)
	}
}

func TestEveryErrorCodeHasAnOutcome(t *testing.T) {
	t.Parallel()
	for _, c := range []ErrorCode{CodeInvalid, CodeUnauthenticated, CodeForbidden, CodeNotFound, CodeConflict, CodeReused, CodeLimited, CodeUnavailable, CodeStale, CodeUnsafe, CodeInternal} {
		o, ok := Outcomes[c]
		if !ok || o.HTTP < 400 || o.Exit == 0 {
			t.Fatalf("%s: outcome %+v", c, o)
		}
	}
	if len(Outcomes) != 11 {
		t.Fatalf("%d outcomes for 11 codes", len(Outcomes))
	}
}

func TestInstantsKeepMillisecondsAndZeroIsNull(t *testing.T) {
	t.Parallel()
	i := At(time.Date(2026, 3, 29, 1, 59, 59, 987_654_321, time.FixedZone("x", 3600)))
	b, err := json.Marshal(map[string]Instant{"a": i, "z": 0})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(b), `{"a":"2026-03-29T00:59:59.987Z","z":null}`; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	var back map[string]Instant
	if err := json.Unmarshal(b, &back); err != nil || back["a"] != i || back["z"] != 0 {
		t.Fatalf("back %v %v", back, err)
	}
}

func TestBadValuesAreNamed(t *testing.T) {
	t.Parallel()
	err := Invalid("accelerators", int64(math.MaxInt64), "1 to 16")
	if got, want := err.Error(), "accelerators: 9223372036854775807 is not valid (1 to 16)"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}

// TestAnInstantsDistanceDoesNotTurnRound: RFC 3339 reaches further than a Duration holds.
func TestAnInstantsDistanceDoesNotTurnRound(t *testing.T) {
	t.Parallel()
	now, last := At(time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)), At(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC))
	const years = 292 * 365 * 24 * time.Hour
	if d := last.Sub(now); d < years {
		t.Errorf("from %s to %s are %s", now, last, d)
	}
	if d := now.Sub(last); d > -years {
		t.Errorf("from %s back to %s are %s", last, now, d)
	}
	if d := now.Add(time.Second).Sub(now); d != time.Second {
		t.Errorf("a second is %s", d)
	}
}

func TestAnEventNamesATenantItsOwnJobsOnly(t *testing.T) {
	t.Parallel()
	const own, other, server = "job_01m8pf00000000000000000own", "job_01m8pf000000000000000other", "srv_01m8pf00000000000000server"
	for code, want := range map[ReasonCode]string{
		ReasonDependency: `{"code":"DEPENDENCY","clears_when":"` + other + ` has ended on ` + AServer + `, then ` + own + `"}`,
		ReasonCapacity:   `{"code":"CAPACITY","clears_when":"` + AnotherJob + ` has ended on ` + AServer + `, then ` + own + `"}`,
	} {
		e := Event{Kind: EventJobReason, Job: own, Data: json.RawMessage(`{"code":"` + string(code) + `","clears_when":"` + other + ` has ended on ` + server + `, then ` + own + `"}`)}
		if got := string(e.ForTenant().Data); got != want {
			t.Errorf("%s reads %s, want %s", code, got, want)
		}
	}
}
