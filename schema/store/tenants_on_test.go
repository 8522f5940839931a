package store_test

import (
	"strings"
	"testing"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

// TestTenantsDoNotMeetWhereJobsAreNotKeptApart: whatever an allocator's memory says, the record refuses the second tenant
// at the moment of the start; also within one commit.
func TestTenantsDoNotMeetWhereJobsAreNotKeptApart(t *testing.T) {
	t.Parallel()
	const why = "the agent is not root"
	for name, c := range map[string]struct {
		beat  agentproto.Heartbeat
		mixed bool
		once  bool // both starts in one commit
		want  string
	}{
		"kept apart":                           {agentproto.Heartbeat{Apart: true}, false, false, ""},
		"not kept apart":                       {agentproto.Heartbeat{Shared: why}, false, false, why},
		"not kept apart, both in one commit":   {agentproto.Heartbeat{Shared: why}, false, true, why},
		"by an agent that says nothing of it":  {agentproto.Heartbeat{}, false, false, "upgrade it"},
		"not kept apart, and that is accepted": {agentproto.Heartbeat{Shared: why}, true, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			_, err := b.CreateTenant(t.Context(), "test", "red", 50)
			b.must(err)
			_, err = b.CreateProject(t.Context(), "test", "red", "main")
			b.must(err)
			_, err = b.Heartbeat(t.Context(), b.servers[0].ID, c.beat)
			b.must(err)
			starts := []store.Start{b.start(b.submit(1), b.place(0, 0)), {}}
			red, _, err := b.SubmitJob(t.Context(), "test", "", "", store.NewJob{Tenant: "red", Project: "main", Spec: "h100x2", Nodes: 1, Priority: 50, Command: []string{"true"}})
			b.must(err)
			starts[1] = b.start(red, b.place(0, 2))
			var refused []store.Refusal
			for i := range starts {
				part := starts[i : i+1]
				if c.once {
					part = starts
				}
				b.cycle++
				no, err := b.CommitCycle(t.Context(), "eu", b.epoch, store.Cycle{Number: b.cycle, Starts: part, Mixed: c.mixed})
				b.must(err)
				refused = append(refused, no...)
				if c.once {
					break
				}
			}
			switch {
			case c.want == "" && len(refused) > 0:
				t.Errorf("it was refused: %+v", refused)
			case c.want != "" && (len(refused) != 1 || refused[0].Job != red.ID || !strings.Contains(refused[0].Why, c.want)):
				t.Errorf("the refusals are %+v; of %s, with %q, is right", refused, red.ID, c.want)
			}
			if c.want == "" {
				return
			}
			// its own go on
			if no := b.commit(b.start(b.submit(1), b.place(0, 2))); len(no) > 0 {
				t.Errorf("a job of the tenant that is there was refused: %+v", no)
			}
		})
	}
}

func TestWhatAnAgentSaysOfItsJobsIsKept(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	id := b.servers[0].ID
	for _, c := range []struct {
		beat agentproto.Heartbeat
		want string
	}{
		{agentproto.Heartbeat{BootID: "boot-1", Shared: "x"}, "x"}, {agentproto.Heartbeat{BootID: "boot-1", Shared: "y"}, "y"}, {agentproto.Heartbeat{BootID: "boot-1", Apart: true}, ""},
	} {
		head, err := b.Head(t.Context())
		b.must(err)
		_, err = b.Heartbeat(t.Context(), id, c.beat)
		b.must(err)
		v, err := b.Server(t.Context(), id)
		b.must(err)
		if v.Shared != c.want || v.OneTenant() != (c.want != "") {
			t.Errorf("after %+v it is %q", c.beat, v.Shared)
		}
		events, _, err := b.Events(t.Context(), head, 10, store.EventFilter{})
		b.must(err)
		if len(events) != 1 || events[0].Kind != schema.EventServerAgent {
			t.Errorf("the allocator is told by %+v", events)
		}
	}
}
