package gpupool_test

import "testing"

const bmcTests = "activities/bmc"

// bmcCases are the cases on BMCs (captured machines, and reported faults of other systems), by their number.
var bmcCases = map[int][]held{
	1: {
		{"the system that can be reset, as captured and reversed; nothing but reads goes to a baseboard; who it is comes from the chassis", bmcTests, "TestTheServerIsTheSystemThatCanBeResetWhateverTheOrder"},
		{"a GH200's", bmcTests, "TestAGH200BootsOverHTTPThoughItDoesNotListIt"},
		{"every captured tree", bmcTests, "TestEveryCapturedTreeIsDrivenWithNothingRefused"},
	},
	2: {
		{"one full triple on the settings resource with its own tag, off and on, the manager's reset with *; nothing refused", bmcTests, "TestADGXIsSetOnItsSettingsResourceAndCycledByOffAndOn"},
		{"the stand-in refuses all else", "deploy/lab/bmc", "TestADGXWantsItsOverrideOnTheSettingsResourceWithThatResourcesTag"},
	},
	3: {
		{"known though its vendor is null; the triple; its alias is equal", bmcTests, "TestSupermicroGetsTheTripleAndItsAliasIsAccepted"},
		{"boot-mode-reverted after one more try, without power", bmcTests, "TestABootModeThatRevertsIsPutRightOnceAndThenRefusedWithoutPoweringOn"},
		{"the stand-in reverts", "deploy/lab/bmc", "TestSupermicroTurnsToLegacyWithoutTheModeAndShowsPxeAsBootNext"},
	},
	5: {
		{"as served, and with only the leak left: one sign with its place; the baseboard only at its deadline", bmcTests, "TestOfACapturedGB200OnlyTheLeakIsEvidenceUntilTheDeadline"},
		{"up after five minutes is no news", "activities/bmc/watch", "TestABaseboardThatIsUpAfterFiveMinutesIsNoNews"},
		{"what is absent is no fault, what starts is unknown", bmcTests, "TestAGB200ShowsOneLeakAndABaseboardThatIsNotReady"},
		{"a leak takes the server out at once, in one incident", "worker", "TestPowerFansAndLeaksOfABMCAreJudged"},
	},
	8: {
		{"tried twice at most, a new secret is taken up", bmcTests, "TestAWrongPasswordNeverLocksTheAccount"},
		{"over Redfish and IPMI together", bmcTests, "TestRedfishAndIPMIOfOneBMCShareOneLoginBudget"},
		{"by two processes together", "activities/bmc/record", "TestTwoProcessesWithAWrongPasswordTryItTwiceAtMostInAll"},
		{"over restarts", "activities/bmc/record", "TestRestartsDoNotRenewTheLoginBudget"},
		{"a rotation killed anywhere: both are tried once", "activities/bmc/credential", "TestARotationKilledAnywhereIsRecovered"},
		{"by SIGKILL, in processes of their own", "activities/bmc/record", "TestAProcessThatIsKilledInARotationLocksNobodyOut"},
		{"the stand-in counts over every way in", "deploy/lab/bmc", "TestTheAccountLocksAfterTheThresholdOverEveryWayIn"},
	},
	10: {
		{"150 s an entry: it completes, and verbs take what they take otherwise", bmcTests, "TestAFirmwareInventoryOfMinutesCompletesBesideTheVerbs"},
		{"unreachable within a minute, a hundred times, nothing left behind", bmcTests, "TestABMCThatNeverAnswersIsUnreachableWithinAMinuteAHundredTimes"},
		{"the others' p99 is unchanged", bmcTests, "TestOneHungBMCDelaysNoOtherOfAWatchForAHundredRounds"},
	},
	11: {
		{"already off, an On that is lost, a POST of 90 s", bmcTests, "TestAServerIsPoweredAndBootedThroughItsPOSTWindow"},
		{"retries are bounded", bmcTests, "TestAPOSTThatNeverEndsIsToldOfInBoundedTime"},
		{"no Location, a task that vanished: the version decides, nothing is flashed beside it", bmcTests, "TestAnUpgradeThatCannotBeFollowedIsDecidedByTheVersion"},
		{"Exception with status OK has failed", bmcTests, "TestAnUpgradeThatEndsInExceptionHasFailedAtOnce"},
		{"whatever the version says", bmcTests, "TestATaskThatEndsInExceptionWithStatusOKHasFailedWhateverItsEffectSays"},
	},
}

// TestEveryCaseOnBMCsHasItsTests: the page's first eleven numbers are on BMCs; the others, on network boot and repair, are held elsewhere.
func TestEveryCaseOnBMCsHasItsTests(t *testing.T) {
	t.Parallel()
	allHeld(t, bmcCases, "baremetal.md", `(?m)^\*\*(\d+)\.`, func(n int) bool { return n <= 11 })
}
