package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// TestAServerThatSwallowsStartsIsCordoned goes the whole way: jobs that fail at once, the ledger, the fault, the verdict.
func TestAServerThatSwallowsStartsIsCordoned(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := newClock()
	s := storetest.OpenAt(t, c.now)
	v := storetest.Available(t, s, 1, model, 8)
	_, err := s.CreateTenant(ctx, "ann", "ml", 100)
	ok(t, err)
	_, err = s.CreateProject(ctx, "ann", "ml", "main")
	ok(t, err)
	_, err = s.CreateSpec(ctx, "ann", store.NewSpec{Name: "h1", Model: model, Accelerators: 1, CPUs: 8, MemoryBytes: 1 << 30})
	ok(t, err)
	devices, err := s.Accelerators(ctx, store.AcceleratorFilter{Server: v.ID})
	ok(t, err)
	epoch, err := s.TakeEpoch(ctx, v.Region, "test")
	ok(t, err)
	for i := range 5 {
		j, _, err := s.SubmitJob(ctx, "bob", "", "", store.NewJob{Tenant: "ml", Project: "main", Spec: "h1", Nodes: 1, Region: v.Region, Command: []string{"train", fmt.Sprint(i)}})
		ok(t, err)
		refused, err := s.CommitCycle(ctx, v.Region, epoch, store.Cycle{Number: int64(i + 1), Starts: []store.Start{{Job: j.ID, Attempt: 1, Places: []store.Place{{Server: v.ID, Accelerators: []string{devices[i].ID}}}}}})
		if err != nil || len(refused) > 0 {
			t.Fatal(refused, err)
		}
		ok(t, s.DispatchAttempt(ctx, j.ID, 1))
		tasks, err := s.ClaimTasks(ctx, v.ID)
		ok(t, err)
		c.pass(10 * time.Second)
		one := 1
		for _, task := range tasks {
			_, err := s.Report(ctx, v.ID, agentproto.Report{Tasks: []agentproto.TaskReport{{Task: task.ID, Seq: 1, State: schema.TaskFailed, ExitCode: &one, Output: "starting\nRuntimeError: NVML: GPU is lost\n", NoneLeft: true}}})
			ok(t, err)
		}
		_, err = s.SettleAttempt(ctx, j.ID, 1, nil)
		ok(t, err)
		if i == 3 {
			ok(t, blameJobs(ctx, s))
			if all, err := s.Faults(ctx, v.ID); err != nil || len(all) != 0 {
				t.Fatalf("four jobs blame %+v, %v", all, err)
			}
		}
	}
	for range 2 {
		ok(t, blameJobs(ctx, s))
	}
	all, err := s.Faults(ctx, v.ID)
	ok(t, err)
	if len(all) != 1 || all[0].Kind != "black-hole" || all[0].Accelerator != "" {
		t.Fatalf("the faults are %+v", all)
	}
	ok(t, Judge(ctx, s, all[0].ID))
	f, err := s.Fault(ctx, all[0].ID)
	ok(t, err)
	cordons, err := s.Cordons(ctx, v.ID)
	ok(t, err)
	if f.Verdict != "cordon" || len(cordons) != 1 || cordons[0].Accelerator != "" {
		t.Fatalf("the verdict is %q, cordons %+v; it said %s", f.Verdict, cordons, f.Text)
	}
}

func FuzzQuote(f *testing.F) {
	f.Add("RuntimeError: CUDA error: uncorrectable ECC error encountered\nlast line")
	f.Add("\xff\n\n")
	f.Fuzz(func(t *testing.T, said string) {
		if got := quote(said); len(got) > 300 || !strings.Contains(said, got) {
			t.Errorf("%q is quoted as %q", said, got)
		}
	})
}
