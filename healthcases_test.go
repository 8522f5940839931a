package gpupool_test

import (
	"maps"
	"os"
	"regexp"
	"strconv"
	"testing"

	"gpupool/schema/shared"
)

// held is a part of a case and the test that holds it.
type held struct{ what, folder, test string }

// healthCases are the cases on health (reported faults of other systems, and real inputs), by their number.
var healthCases = map[int][]held{
	1: {
		{"one fault of a whole kernel log, on the device that the lines before it name", "worker/agent/accelerator/kmsg", "TestARealLog"},
		{"119: drain and reset; again within 7 days a technician", "activities/health/rules", "TestCases"},
	},
	2: {
		{"fallen off the bus over three lines, with an XID and without, in each form of the address; two devices mixed; one that can't be read", "worker/agent/accelerator/kmsg", "TestLogs"},
		{"falling again later is another fault", "worker/agent/accelerator/kmsg", "TestADeviceThatFallsAgainLaterIsASecondFault"},
	},
	4: {
		{"63 is read", "worker/agent/accelerator/kmsg", "TestLogs"},
		{"the job goes on; when idle a reset, a burn-in, the return", "workflows", "TestARowToBeRemappedStopsNoJobAndTheDeviceIsResetWhenItIsIdle"},
	},
	5: {
		{"94 is read", "worker/agent/accelerator/kmsg", "TestLogs"},
		{"observed; three within 24 hours cordon; 64 beside it is the stronger", "activities/health/rules", "TestCases"},
		{"the stronger of two, one session", "workflows", "TestTheStrongerOfTwoFaultsWinsInOneSession"},
	},
	7: {{"fatal, unknown, cut and unreadable lines of switches", "worker/agent/accelerator/kmsg", "TestLogs"}, {"a fatal one is of the whole baseboard", "activities/health/rules", "TestCases"}},
	8: {
		{"a gauge that stays is one observation", "worker/agent/accelerator/exporter", "TestAGaugeThatStaysIsOneObservation"},
		{"62 is acted on, 45 follows", "activities/health/rules", "TestCases"},
	},
	10: {{"the storm is named, its silent neighbours are unknown", "worker", "TestAStormOfCorrectableErrorsIsNamedAndItsSilentNeighboursAreNot"}, {"a rate over a window", "worker/agent/accelerator", "TestRatesAndStates"}},
	11: {{"a counter that was reset is no burst, over restarts of the agent too", "worker/agent/accelerator", "TestAResetCounterIsNoBurst"}, {"the real tree", "worker/agent/accelerator/infiniband", "TestPortsAreReadByTheirFiles"}},
	13: {{"each version by its own layout", "worker/agent/accelerator/amd", "TestTablesAreReadByTheirOwnVersion"}, {"a torn table", "worker/agent/accelerator/amd", "TestATornTableIsCountedAndTheDeviceStillRead"}, {"captured devices", "worker/agent/accelerator/amd", "TestCapturedDevicesSayWhatTheirFilesSay"}},
	14: {{"sixteen cards", "worker/agent/accelerator/amd", "TestAllOfSixteenCardsAreFoundAndNoneIsTwice"}},
	16: {{"amdgpu's lines", "worker/agent/accelerator/kmsg", "TestLogs"}, {"an uncorrectable error drains and reboots; several devices of one cause have one repair", "activities/health/rules", "TestCases"}},
	18: {
		{"four GPUs by serial, a remap, health not overruled", "activities/bmc", "TestACapturedGB300TellsItsRemapsBySerial"},
		{"durations, and errors by lane", "activities/bmc", "TestDurationsAndLanesOfACapturedGB300"}, {"lane 13 is told, once", "activities/bmc/watch", "TestWhatIsNewsAndWhatIsNot"}, {"and only observed", "activities/health/rules", "TestCases"},
		{"evidence goes on while the system is down", "activities/bmc/watch", "TestEvidenceComesFromOutsideAndABMCThatHangsDelaysNoOther"},
		{"its values stand beside the agent's, and go on alone", "activities/bmc/watch", "TestOutOfBandValuesStandBesideInBandOnesAndGoOnAlone"},
		{"one event by two paths is one fault", "activities/health", "TestTheSameEventThroughTwoPathsIsOneFaultOneCordonAndOneRepair"},
	},
	20: {
		{"the detector's own word", "activities/bmc", "TestALeakIsTheDetectorsOwnWord"},
		{"of a captured machine only the leak is evidence", "activities/bmc", "TestOfACapturedGB200OnlyTheLeakIsEvidenceUntilTheDeadline"},
		{"a BMC that calls a busy device idle is shown, and believed by nobody", "activities/bmc/watch", "TestOutOfBandValuesStandBesideInBandOnesAndGoOnAlone"},
		{"a leak is told once, and drains", "activities/bmc/watch", "TestWhatIsNewsAndWhatIsNot"}, {"drained, whatever else holds", "activities/health/rules", "TestCases"},
	},
	22: {
		{"a verdict by what each device did", "worker/agent/burnin", "TestAVerdictIsReadFromWhatEachDeviceDidAndNothingElse"},
		{"one rerun, then it counts", "worker/agent", "TestTestProgramsDecideADevicesFateByTheirSecondWord"},
		{"one that hangs proves nothing", "worker/agent/burnin", "TestAProgramThatHangsIsKilledWithItsChildren"},
		{"floors that a data sheet contradicts are refused", "worker/agent/burnin", "TestFloorsAreHeldAgainstTheDataSheetWhenTheyAreLoaded"},
		{"inconclusive twice is a technician's", "workflows", "TestWhatIsNotProvenGoesBackToTheTechnicianWithTheReason"},
	},
	24: {{"each session, with the controller killed behind each event", "activities/health", "TestSessions"}, {"a clear takes only its own", "workflows", "TestAClearTakesOnlyItsOwn"}, {"old events open nothing", "workflows", "TestOldEventsOpenNothing"}},
	25: {
		{"who is to blame for failing jobs", "activities/health/rules", "TestWhatFailingJobsBlame"}, {"a black hole is cordoned", "activities/health", "TestAServerThatSwallowsStartsIsCordoned"},
		{"over the limit only a person goes on", "activities/health", "TestOverTheBlastRadiusNothingIsCordonedUntilAPersonResetsIt"},
	},
}

// TestEveryCaseOnHealthHasItsTests: the tests that are said to hold a case are there, and no case is left out.
func TestEveryCaseOnHealthHasItsTests(t *testing.T) {
	t.Parallel()
	allHeld(t, healthCases, "health.md", `(?m)^### (\d+)\.`, func(int) bool { return true })
}

// allHeld holds a table against the packages that it names, and against the cases of a page: those that are meant and no other.
func allHeld(t *testing.T, table map[int][]held, page, heading string, meant func(n int) bool) {
	t.Helper()
	have := map[string]map[string]bool{}
	for n, parts := range table {
		for _, h := range parts {
			if have[h.folder] == nil {
				_, have[h.folder] = functions(t, h.folder)
			}
			if !have[h.folder][h.test] {
				t.Errorf("case %d, %s: %s has no %s", n, h.what, h.folder, h.test)
			}
		}
	}
	text, err := os.ReadFile(shared.Path(t, "cases", page))
	if err != nil {
		t.Fatal(err)
	}
	left := maps.Clone(table)
	for _, m := range regexp.MustCompile(heading).FindAllSubmatch(text, -1) {
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		if meant(n) && len(left[n]) == 0 {
			t.Errorf("case %d is in no test", n)
		}
		delete(left, n)
	}
	for n := range left {
		t.Errorf("%s has no case %d", page, n)
	}
}
