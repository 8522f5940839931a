package bmc_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	tlog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/credential"
	"gpupool/activities/bmc/record"
	"gpupool/schema"
	"gpupool/schema/secret"
	"gpupool/schema/store"
)

// ipmiOperator is what the process that is killed in a verb over IPMI is told by its environment: database, act.
const ipmiOperator = "GPUPOOL_TEST_IPMI_OPERATOR"

// keysBeside is the ring of a database that several processes open.
func keysBeside(file string) (*secret.Ring, error) { return secret.LoadOrCreate(file + ".keys") }

// operateOverIPMI is one try of an act's activity by a process of its own.
func operateOverIPMI(ctx context.Context, file, act string) (err error) {
	db, err := store.Open(ctx, store.Config{Driver: "sqlite", DSN: file})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	keys, err := keysBeside(file)
	if err != nil {
		return err
	}
	timing := quick
	timing.Call, timing.Poll, timing.PowerRetry, timing.PowerChange = 4*time.Second, 20*time.Millisecond, 5*time.Second, 20*time.Second
	p := bmc.NewPool(bmc.Config{Timing: timing, Shared: record.NewShared(db, keys), Log: slog.New(slog.DiscardHandler)})
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	a := &bmc.Activities{Store: db, Pool: p, Credential: credential.NewStore(record.Rows{Store: db}, keys).For}
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(tlog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestActivityEnvironment()
	env.SetTestTimeout(time.Minute)
	env.RegisterActivity(a)
	_, err = env.ExecuteActivity(a.Operate, act)
	return err
}

// A process is killed (SIGKILL) in the middle of a power cycle over IPMI, while the BMC has a request and before it has done it, or
// after that and before anybody knew. Asked for again the cycle ends with the power on, and the power was taken away once.
func TestAPowerCycleOverIPMIThatIsKilledEndsOnceWhenItIsAskedAgain(t *testing.T) {
	t.Parallel()
	for _, hold := range []string{"before power 0", "after power 0", "before power 1", "after power 1"} {
		t.Run("killed "+hold, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			address, machine, _ := ipmiSim(t)
			set := func(name, text string) {
				t.Helper()
				if err := os.WriteFile(filepath.Join(machine, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			set("power", "1")
			set("hold", hold)
			file := filepath.Join(t.TempDir(), "record.db")
			keys, err := keysBeside(file)
			if err != nil {
				t.Fatal(err)
			}
			db, err := store.Open(ctx, store.Config{Driver: "sqlite", DSN: file})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := db.Close(); err != nil {
					t.Error(err)
				}
			})
			servers, err := db.EnrollServers(ctx, "test", keys, []store.NewServer{{Name: "r1s1", Region: "north", Site: "hall-1", Rack: "r1", Serial: "SN-1", MACs: []string{"0c:42:a1:00:00:01"},
				BMCAddress: "ipmi://" + address, BMCProtocol: "ipmi", BMCUsername: "admin", BMCPassword: "right-password", Model: "nvidia-h100-80gb", Accelerators: 8, CPUs: 112, MemoryBytes: 2 << 40}})
			if err != nil {
				t.Fatal(err)
			}
			act, err := db.AskBMC(ctx, servers[0].ID, schema.BMCPower, schema.BMCArgs{Want: "cycle", Hard: true}, "", "op")
			if err != nil {
				t.Fatal(err)
			}
			child := exec.CommandContext(ctx, os.Args[0])
			child.Env = append(os.Environ(), ipmiOperator+"="+file+"|"+act.ID)
			var said strings.Builder
			child.Stdout, child.Stderr = &said, &said
			if err := child.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- child.Wait() }()
			eventually(t, "the machine is at "+hold, func() bool {
				select {
				case err := <-ended:
					t.Fatalf("it ended before it came there: %v: %s", err, said.String())
				default:
				}
				_, err := os.Stat(filepath.Join(machine, "reached"))
				return err == nil
			})
			if err := child.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-ended
			if err := os.Remove(filepath.Join(machine, "hold")); err != nil {
				t.Fatal(err)
			}
			if err := operateOverIPMI(ctx, file, act.ID); err != nil {
				t.Fatal(err)
			}
			if act, err = db.BMCAct(ctx, act.ID); err != nil || act.Failure != "" || !strings.Contains(string(act.Result), `"now":"on"`) {
				t.Fatalf("ended with %s %s, %v", act.Failure, act.Result, err)
			}
			done, err := os.ReadFile(filepath.Join(machine, "done"))
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(string(done), "power 1\n") || strings.Count(string(done), "power 0\n") != 1 {
				t.Fatalf("the machine was told %q", done)
			}
		})
	}
}
