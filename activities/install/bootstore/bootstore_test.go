package bootstore_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpupool/activities/install"
	"gpupool/activities/install/bootstore"
	"gpupool/activities/temporalerr"
	"gpupool/pxe/boot"
	"gpupool/pxe/lease"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// armed is a server whose attempt 1 may install it.
func armed(t *testing.T) (*store.Store, *bootstore.Store, schema.Server) {
	t.Helper()
	db := storetest.Open(t)
	all, err := db.EnrollServers(t.Context(), "test", storetest.Ring(t), []store.NewServer{storetest.NewServer(1, "nvidia-h100-80gb", 8)})
	ok(t, err)
	v, err := db.BeginOnboarding(t.Context(), all[0].ID, "ann")
	ok(t, err)
	ok(t, db.Arm(t.Context(), v.ID, 1, time.Hour, 0))
	return db, bootstore.New(db, time.Hour), v
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mint(t *testing.T, b *bootstore.Store, server string, attempt int, p schema.BootPurpose) string {
	t.Helper()
	token, err := b.Mint(t.Context(), server, attempt, p)
	ok(t, err)
	if len(token) != 43 {
		t.Fatalf("a token has %d characters, want 43: 32 bytes in base64url", len(token))
	}
	return token
}

func register(t *testing.T, db *store.Store, token, server string, attempt int, key ed25519.PublicKey) error {
	t.Helper()
	return db.RegisterAgent(t.Context(), store.HashToken(token), agentproto.Register{Server: server, Attempt: attempt, BootID: "b1", PublicKey: base64.StdEncoding.EncodeToString(key)})
}

func newKey(t *testing.T) ed25519.PublicKey {
	t.Helper()
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	ok(t, err)
	return pub
}

func TestAnArmingIsSeenByTheNextPacketAndOnlyWhileTheAttemptLives(t *testing.T) {
	t.Parallel()
	db, b, v := armed(t)
	m, found, err := b.ByMAC(t.Context(), v.MACs)
	ok(t, err)
	if !found || m.ID != v.ID || m.Armed == nil || m.Armed.Attempt != 1 {
		t.Fatalf("an armed server is seen as %+v", m)
	}
	const uuid = "4c4c4544-0039-4a10-8052-b8c04f4e3332"
	if _, _, found, err := b.ByUUID(t.Context(), uuid); err != nil || found {
		t.Fatalf("a UUID that nobody has: %v %v", found, err)
	}
	ok(t, db.Identified(t.Context(), v.ID, uuid, "", ""))
	if m, mac, found, err := b.ByUUID(t.Context(), "44454c4c-3900-104a-8052-b8c04f4e3332", uuid); err != nil || !found || m.ID != v.ID || mac != v.MACs || m.Armed == nil {
		t.Fatalf("by its UUID it is %+v, %s, %v, %v", m, mac, found, err)
	}
	if all, err := b.MACs(t.Context()); err != nil || !slices.Contains(all, v.MACs) {
		t.Fatalf("MACs: %v %v, want %s among them", all, err, v.MACs)
	}
	if _, found, err := b.ByMAC(t.Context(), "02:00:00:00:00:99"); err != nil || found {
		t.Fatalf("an unknown MAC is found: %v %v", found, err)
	}
	ok(t, db.Protect(t.Context(), v.ID, true, "ann"))
	if m, _, err := b.ByID(t.Context(), v.ID); err != nil || m.Armed != nil {
		t.Fatalf("a protected server is armed: %+v %v", m, err)
	}
	ok(t, db.Protect(t.Context(), v.ID, false, "ann"))
	ok(t, db.AbortOnboarding(t.Context(), v.ID, 1, "ann", "stop"))
	if m, _, err := b.ByID(t.Context(), v.ID); err != nil || m.Armed != nil {
		t.Fatalf("an aborted attempt is armed: %+v %v", m, err)
	}
}

// TestASystemInMemoryRegistersAnewAfterEachBoot: what a server runs is seen by its boots; a token for it is had without an arming;
// nobody registers in the place of an agent that lives; and what the server did before has ended.
func TestASystemInMemoryRegistersAnewAfterEachBoot(t *testing.T) {
	t.Parallel()
	var later atomic.Int64
	db := storetest.OpenAt(t, func() time.Time { return time.Now().Add(time.Duration(later.Load())) })
	all, err := db.EnrollServers(t.Context(), "test", storetest.Ring(t), []store.NewServer{storetest.NewServer(1, "nvidia-h100-80gb", 8)})
	ok(t, err)
	v, err := db.BeginOnboarding(t.Context(), all[0].ID, "ann")
	ok(t, err)
	b := bootstore.New(db, time.Hour)
	if _, err := b.Mint(t.Context(), v.ID, 1, schema.PurposeScript); !schema.Is(err, schema.CodeStale) {
		t.Fatalf("a token without an arming: %v", err)
	}
	_, err = db.SetInstallChoice(t.Context(), "ann", schema.InstallChoice{Scope: schema.InstallServer, Name: v.ID, Profile: "live"}, map[string]string{"console": "ttyS1"})
	ok(t, err)
	ok(t, db.Arm(t.Context(), v.ID, 1, time.Hour, 0))
	ok(t, register(t, db, mint(t, b, v.ID, 1, schema.PurposePhoneHome), v.ID, 1, newKey(t)))
	m, _, err := b.ByID(t.Context(), v.ID)
	ok(t, err)
	if m.Armed != nil || m.Runs == nil || m.Runs.Attempt != 1 || m.Runs.Profile != "live" || m.Runs.Vals != `{"console":"ttyS1"}` {
		t.Fatalf("it is seen as %+v, runs %+v", m, m.Runs)
	}
	for _, id := range []string{"begun", "not-begun"} {
		ok(t, db.QueueTask(t.Context(), schema.Task{ID: id, Server: v.ID, Kind: schema.TaskDrivers, Attempt: 1, Payload: "{}"}))
		if id == "begun" {
			_, err := db.ClaimTasks(t.Context(), v.ID)
			ok(t, err)
		}
	}
	second := newKey(t)
	token := mint(t, b, v.ID, 1, schema.PurposePhoneHome)
	if err := register(t, db, token, v.ID, 1, second); !schema.Is(err, schema.CodeLimited) {
		t.Fatalf("another agent beside one that was just heard of: %v", err)
	}
	later.Store(int64(time.Minute))
	ok(t, register(t, db, token, v.ID, 1, second))
	if key, err := db.AgentKey(t.Context(), v.ID); err != nil || !key.Equal(second) {
		t.Fatalf("its agent's key is not the new one (%v)", err)
	}
	for id, want := range map[string]schema.TaskState{"begun": schema.TaskFailed, "not-begun": schema.TaskPending} {
		if task, err := db.Task(t.Context(), id); err != nil || task.State != want {
			t.Errorf("task %s is %s (%v), want %s", id, task.State, err, want)
		}
	}
	ok(t, db.AbortOnboarding(t.Context(), v.ID, 1, "ann", "stop"))
	if m, _, err := b.ByID(t.Context(), v.ID); err != nil || m.Runs != nil {
		t.Fatalf("an enrolled server boots what an earlier attempt brought: %+v %v", m.Runs, err)
	}
	if _, err := b.Mint(t.Context(), v.ID, 1, schema.PurposeScript); !schema.Is(err, schema.CodeStale) {
		t.Fatalf("a token for a server that is enrolled: %v", err)
	}
}

func TestASecretIsFetchedOnceHoweverManyAskAtOnce(t *testing.T) {
	t.Parallel()
	_, b, v := armed(t)
	token := mint(t, b, v.ID, 1, schema.PurposeScript)
	var won, used atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			switch _, err := b.Use(t.Context(), token, install.UserDataName); {
			case err == nil:
				won.Add(1)
			case errors.Is(err, boot.ErrTokenUsed):
				used.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || used.Load() != 7 {
		t.Fatalf("%d fetched the secret and %d were refused, want 1 and 7", won.Load(), used.Load())
	}
	// What is no secret is still served: cloud-init asks for more than one document.
	if g, err := b.Check(t.Context(), token); err != nil || g.Server != v.ID || g.Attempt != 1 || g.Purpose != schema.PurposeScript {
		t.Fatalf("the token stands for %+v, %v", g, err)
	}
	if _, err := b.Use(t.Context(), token, "vendor-data"); err != nil {
		t.Fatal(err)
	}
}

func TestPhoneHomeEarlyTwiceForgedAndLate(t *testing.T) {
	t.Parallel()
	db, b, v := armed(t)
	script := mint(t, b, v.ID, 1, schema.PurposeScript)
	home := mint(t, b, v.ID, 1, schema.PurposePhoneHome)
	key := newKey(t)

	if err := register(t, db, script, v.ID, 1, key); !schema.Is(err, schema.CodeForbidden) {
		t.Fatalf("a script's token enrolled an agent: %v", err)
	}
	if err := register(t, db, home, "srv_other", 1, key); !schema.Is(err, schema.CodeForbidden) {
		t.Fatalf("one server's token enrolled another: %v", err)
	}
	ok(t, register(t, db, home, v.ID, 1, key)) // before anyone waits: it is stored
	if in, err := db.PhonedHome(t.Context(), v.ID, 1); err != nil || !in {
		t.Fatalf("the phone-home is not on record: %v", err)
	}
	ok(t, register(t, db, home, v.ID, 1, key)) // its answer was lost
	if err := register(t, db, home, v.ID, 1, newKey(t)); !schema.Is(err, schema.CodeForbidden) {
		t.Fatalf("a second agent took a used token: %v", err)
	}
	// From here on nothing of the attempt is served, and it installs no more.
	if _, err := b.Check(t.Context(), script); !errors.Is(err, boot.ErrToken) {
		t.Fatalf("the script's token lives on after the phone-home: %v", err)
	}
	if _, err := b.Use(t.Context(), script, install.UserDataName); !errors.Is(err, boot.ErrToken) {
		t.Fatalf("user data is served after the phone-home: %v", err)
	}
	if err := db.MayDestroy(t.Context(), v.ID, 1); !schema.Is(err, schema.CodeStale) {
		t.Fatalf("an attempt that has installed may wipe again: %v", err)
	}
	if err := db.Arm(t.Context(), v.ID, 1, time.Hour, 0); !schema.Is(err, schema.CodeStale) {
		t.Fatalf("an attempt that has installed is armed again: %v", err)
	}
	events, _, err := db.Events(t.Context(), 0, 1000, store.EventFilter{Kinds: []schema.EventKind{schema.EventServerPhonedHome}})
	if err != nil || len(events) != 1 {
		t.Fatalf("%d phone-homes were told, want 1: %v", len(events), err)
	}
}

func TestATokenOfThePreviousAttemptIsWorthNothing(t *testing.T) {
	t.Parallel()
	db, b, v := armed(t)
	script, home := mint(t, b, v.ID, 1, schema.PurposeScript), mint(t, b, v.ID, 1, schema.PurposePhoneHome)
	ok(t, db.AbortOnboarding(t.Context(), v.ID, 1, "ann", "again"))
	_, err := db.BeginOnboarding(t.Context(), v.ID, "ann")
	ok(t, err)
	ok(t, db.Arm(t.Context(), v.ID, 2, time.Hour, 0))
	if _, err := b.Check(t.Context(), script); !errors.Is(err, boot.ErrToken) {
		t.Fatalf("attempt 1's script token: %v", err)
	}
	if err := register(t, db, home, v.ID, 1, newKey(t)); !schema.Is(err, schema.CodeForbidden) {
		t.Fatalf("attempt 1's phone-home in attempt 2: %v", err)
	}
	if _, err := b.Mint(t.Context(), v.ID, 1, schema.PurposeScript); !schema.Is(err, schema.CodeStale) {
		t.Fatalf("attempt 1 still gets tokens: %v", err)
	}
	if _, err := b.Check(t.Context(), "not-a-token"); !errors.Is(err, boot.ErrToken) {
		t.Fatalf("a guess: %v", err)
	}
}

// A BMC may take its whole limit for each of the acts that give a machine power, and the machine the whole wait to boot: until
// then it is armed. Who comes later is told why nothing installs it.
func TestAMachineIsArmedForAsLongAsItsBMCAndItsBootMayTake(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	db := storetest.OpenAt(t, func() time.Time { return now })
	all, err := db.EnrollServers(t.Context(), "test", storetest.Ring(t), []store.NewServer{storetest.NewServer(1, "nvidia-h100-80gb", 8)})
	ok(t, err)
	v, err := db.BeginOnboarding(t.Context(), all[0].ID, "ann")
	ok(t, err)
	acts, b := &install.Activities{Store: db, Timing: install.Timing{PhoneHome: 10 * time.Minute, BMC: 15 * time.Minute}}, bootstore.New(db, time.Hour)
	_, err = acts.ArmServer(t.Context(), install.EndInput{Server: v.ID, Attempt: 1})
	ok(t, err)
	for _, at := range []struct {
		after time.Duration
		armed bool
	}{{0, true}, {3*15*time.Minute + 10*time.Minute, true}, {3 * time.Hour, false}} {
		now = now.Add(at.after)
		m, _, err := b.ByMAC(t.Context(), v.MACs)
		ok(t, err)
		a, why := m.InstallAt(db.Now().Time())
		if (a != nil) != at.armed || !at.armed && !strings.HasPrefix(why, "the attempt's arming ended at 2026-03-01T09:05:00") {
			t.Fatalf("%s later: armed %v: %q", at.after, a, why)
		}
		if _, err := b.Mint(t.Context(), v.ID, 1, schema.PurposeScript); (err == nil) != at.armed || err != nil && !schema.Is(err, schema.CodeStale) {
			t.Fatalf("%s later, a token: %v", at.after, err)
		}
	}
}

func TestASiteInstallsOnlySoManyAtATime(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	var in []store.NewServer
	for n := range 3 {
		in = append(in, storetest.NewServer(n+1, "nvidia-h100-80gb", 8))
	}
	all, err := db.EnrollServers(t.Context(), "test", storetest.Ring(t), in)
	ok(t, err)
	for _, v := range all {
		_, err := db.BeginOnboarding(t.Context(), v.ID, "ann")
		ok(t, err)
	}
	ok(t, db.Arm(t.Context(), all[0].ID, 1, time.Hour, 2))
	ok(t, db.Arm(t.Context(), all[1].ID, 1, time.Hour, 2))
	ok(t, db.Arm(t.Context(), all[1].ID, 1, time.Hour, 2)) // renews
	if err := db.Arm(t.Context(), all[2].ID, 1, time.Hour, 2); !schema.Is(err, schema.CodeLimited) {
		t.Fatalf("a third install began: %v", err)
	}
	ok(t, db.Disarm(t.Context(), all[0].ID, 1))
	ok(t, db.Arm(t.Context(), all[2].ID, 1, time.Hour, 2))
}

func TestEvidenceIsKeptInOrderWithItsOwnMoments(t *testing.T) {
	t.Parallel()
	db, b, v := armed(t)
	at := time.UnixMilli(time.Now().UnixMilli()).Add(-time.Minute)
	ok(t, b.Record(t.Context(), []time.Time{at, at.Add(time.Second)}, []schema.BootEvidence{{Kind: boot.KindDiscover, Server: v.ID}, {Kind: boot.KindAck, Server: v.ID, IP: "10.0.0.5"}}))
	events, err := db.BootEvidence(t.Context(), v.ID, schema.At(at))
	ok(t, err)
	if len(events) != 2 || events[0].At != schema.At(at) || events[1].At != schema.At(at.Add(time.Second)) {
		t.Fatalf("the evidence is %+v", events)
	}
}

// TestLeasesAreWhatTheModelSays plays random batches against the record and against the boot service's own model.
func TestLeasesAreWhatTheModelSays(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	got, want := bootstore.Leases{DB: db}, lease.NewMemory()
	rnd := mathrand.New(mathrand.NewPCG(1, 2))
	now := time.UnixMilli(1_700_000_000_000)
	states := []schema.LeaseState{schema.LeaseBound, schema.LeaseBound, schema.LeaseOffered, schema.LeaseReleased, schema.LeaseDeclined}
	for round := range 300 {
		now = now.Add(time.Duration(rnd.IntN(40)) * time.Second)
		var batch []schema.Lease
		for range 1 + rnd.IntN(9) {
			l := schema.Lease{Subnet: fmt.Sprintf("10.%d.0.0/24", rnd.IntN(2)), MAC: fmt.Sprintf("02:00:00:00:00:0%d", rnd.IntN(5)), State: states[rnd.IntN(len(states))], BoundAt: schema.At(now), ExpiresAt: schema.At(now.Add(time.Duration(rnd.IntN(60)) * time.Second))}
			l.IP = fmt.Sprintf("10.%c.0.%d", l.Subnet[3], 1+rnd.IntN(4))
			batch = append(batch, l)
		}
		gotErrs, err := got.Commit(t.Context(), now, batch)
		ok(t, err)
		wantErrs, err := want.Commit(t.Context(), now, batch)
		ok(t, err)
		for i := range batch {
			if !errors.Is(gotErrs[i], wantErrs[i]) || (gotErrs[i] == nil) != (wantErrs[i] == nil) {
				t.Fatalf("round %d, %+v: %v, want %v", round, batch[i], gotErrs[i], wantErrs[i])
			}
		}
		for _, subnet := range []string{"10.0.0.0/24", "10.1.0.0/24"} {
			g, err := got.List(t.Context(), subnet)
			ok(t, err)
			w, err := want.List(t.Context(), subnet)
			ok(t, err)
			if diff := cmp.Diff(byIP(w), byIP(g)); diff != "" {
				t.Fatalf("round %d, after %+v, %s (-model +record):\n%s", round, batch, subnet, diff)
			}
			for _, l := range w {
				if l.State == schema.LeaseDeclined {
					continue
				}
				if row, found, err := find(got, subnet, l.MAC); err != nil || !found || row.IP != l.IP {
					t.Fatalf("by MAC: %+v %v %v, want %s", row, found, err, l.IP)
				}
			}
		}
	}
}

// find is the MAC's row in the subnet, as the boot service asks for it.
func find(s lease.Store, subnet, mac string) (schema.Lease, bool, error) {
	rows, err := s.Find(context.Background(), []lease.Key{{Subnet: subnet, MAC: mac}})
	for _, l := range rows {
		if l.Subnet == subnet && l.State != schema.LeaseDeclined {
			return l, true, err
		}
	}
	return schema.Lease{}, false, err
}

func byIP(all []schema.Lease) map[string]schema.Lease {
	m := map[string]schema.Lease{}
	for _, l := range all {
		m[l.IP] = l
	}
	return m
}

func TestADiskIsWrittenOnceByAnAttemptAndAnInstallerThatGivesUpIsHeard(t *testing.T) {
	t.Parallel()
	db, b, v := armed(t)
	acts := &install.Activities{Store: db}
	home := func() error {
		_, err := acts.PhonedHome(t.Context(), install.EndInput{Server: v.ID, Attempt: 1})
		return err
	}
	tell := func(attempt int, state schema.InstallState, text string) error {
		return b.ReportInstall(t.Context(), v.ID, attempt, schema.InstallReport{State: state, Text: text})
	}
	may := func() string {
		m, _, err := b.ByID(t.Context(), v.ID)
		ok(t, err)
		_, why := m.InstallAt(time.Now())
		return why
	}
	ok(t, db.SetStep(t.Context(), v.ID, 1, schema.StepProvision, schema.StepRunning, "waits"))
	ok(t, tell(1, schema.InstallRunning, "writing: 40 %"))
	if runs, err := db.StepRuns(t.Context(), v.ID, 1); err != nil || len(runs) != 1 || runs[0].Detail != "installing: writing: 40 %" {
		t.Fatalf("the step shows %+v, %v", runs, err)
	}
	if why := may(); why != "" {
		t.Fatalf("while it is written it may not be installed: %s", why)
	}
	ok(t, tell(1, schema.InstallFailed, "no disk is there"))
	err := home()
	if temporalerr.Reason(err) != string(schema.FailInstaller) || !strings.Contains(err.Error(), "no disk is there") {
		t.Fatalf("the wait for an installer that gave up: %v", err)
	}
	ok(t, db.Arm(t.Context(), v.ID, 1, time.Hour, 0)) // a person retried
	ok(t, home())
	ok(t, tell(1, schema.InstallDone, "done"))
	ok(t, home())
	if why := may(); !strings.Contains(why, "its disk was written by this attempt") {
		t.Fatalf("a disk that is written may be written again: %q", why)
	}
	ok(t, tell(1, schema.InstallRunning, "writing: 80 %")) // late
	if why := may(); why == "" {
		t.Fatal("a late report of progress took back that the disk is written")
	}
	for name, err := range map[string]error{"another attempt's": tell(2, schema.InstallDone, ""), "an unknown state's": tell(1, "half", "")} {
		if err == nil {
			t.Errorf("%s report was taken", name)
		}
	}
	ok(t, db.Arm(t.Context(), v.ID, 1, time.Hour, 0)) // the installed system did not start, and a person retried
	if why := may(); why != "" {
		t.Fatalf("a retry may not install: %s", why)
	}
}
