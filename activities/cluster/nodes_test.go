package cluster

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// nodeBackend writes down what is done to nodes; what is not below must not be called.
type nodeBackend struct {
	Backend
	done []string
}

func (b *nodeBackend) Join(_ context.Context, node string) error {
	b.done = append(b.done, "join "+node)
	return nil
}

func (b *nodeBackend) Drain(_ context.Context, node, why string) error {
	b.done = append(b.done, "drain "+node+": "+why)
	return nil
}

func (b *nodeBackend) Leave(_ context.Context, node string) error {
	b.done = append(b.done, "leave "+node)
	return nil
}

func TestAServerThatRetiresIsDrainedLeavesOnceIdleAndIsNotBroughtBack(t *testing.T) {
	db := storetest.Open(t)
	v := storetest.Available(t, db, 1, "nvidia-h100-80gb", 8)
	epoch, err := db.TakeCluster(t.Context(), "alps", schema.ClusterSlurm, 0, "test")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		phase schema.Phase
		node  *Node
		want  []string
	}{
		{"in use", schema.PhaseRetiring, &Node{Joined: true, Ready: true}, []string{"drain r1s1: retiring"}},
		{"drained, with a job on it", schema.PhaseRetiring, &Node{Joined: true, Drained: true, Ours: true}, nil},
		{"drained and idle", schema.PhaseRetiring, &Node{Joined: true, Drained: true, Ours: true, Idle: true}, []string{"leave r1s1"}},
		{"left, still listed without our mark", schema.PhaseRetiring, &Node{Drained: true, Ours: true, Idle: true}, []string{"leave r1s1"}},
		{"gone", schema.PhaseRetiring, nil, nil},
		{"gone, of the pool", schema.PhaseAvailable, nil, []string{"join r1s1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &nodeBackend{}
			k := newConnector("alps", db, db.Connector("alps", epoch), b, Timing{}, slog.New(slog.DiscardHandler))
			nodes, err := db.Nodes(t.Context(), []string{v.ID})
			if err != nil {
				t.Fatal(err)
			}
			nodes[0].Server.Phase, nodes[0].Cordons = c.phase, nil
			view := View{Nodes: map[string]Node{}}
			if c.node != nil {
				view.Nodes["r1s1"] = *c.node
			}
			if err := k.keepNodes(t.Context(), nil, []store.Node{nodes[0]}, view); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(b.done, c.want) {
				t.Errorf("done: %q, want %q", b.done, c.want)
			}
		})
	}
}

func TestSomebodysJobOnADeviceOfOursIsToldOnceAndKeptFromTheNext(t *testing.T) {
	db := storetest.Open(t)
	in := storetest.NewServer(1, "nvidia-h100-80gb", 8)
	in.Backend, in.Cluster = "slurm", "alps"
	storetest.AvailableAs(t, db, in)
	epoch, err := db.TakeCluster(t.Context(), "alps", schema.ClusterSlurm, 0, "test")
	if err != nil {
		t.Fatal(err)
	}
	k := newConnector("alps", db, db.Connector("alps", epoch), &nodeBackend{}, Timing{}, slog.New(slog.DiscardHandler))
	ref := Ref{"7", 1000}
	work := []store.ClusterWork{{ClusterRun: schema.ClusterRun{Job: "job_a", Attempt: 1, Native: ref.Native, SubmittedAt: ref.Submitted},
		Parts: []store.ClusterPart{{Node: "r1s1", Task: schema.Task{State: schema.TaskRunning, Devices: `["r1s1-G2","r1s1-G3"]`}}}}}
	view := View{Nodes: map[string]Node{"r1s1": {Joined: true, Ready: true}}, Foreign: []Foreign{{Node: "r1s1", What: "slurm job 9 of alice", Devices: []Device{{Index: 3}, {Index: 4}}}}}
	look := func() (told []string, kept int) {
		t.Helper()
		nodes, err := db.ClusterServers(t.Context(), "alps")
		if err != nil {
			t.Fatal(err)
		}
		if err := k.keepNodes(t.Context(), work, nodes, view); err != nil {
			t.Fatal(err)
		}
		events, _, err := db.Events(t.Context(), 0, 1000, store.EventFilter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind == schema.EventClusterDrift && strings.Contains(string(e.Data), `"contested"`) {
				told = append(told, e.Job+" "+string(e.Data))
			}
		}
		if nodes, err = db.ClusterServers(t.Context(), "alps"); err != nil {
			t.Fatal(err)
		}
		return told, len(nodes[0].Cordons)
	}
	// As it ends in the cluster, and its device is given to somebody in the same moment, nothing is contested.
	view.Runs = []Seen{{Ref: ref, Parts: []SeenPart{{State: schema.TaskDone}}}}
	if told, kept := look(); len(told) != 0 || kept != 2 {
		t.Fatalf("told %q, %d kept, of one that has ended", told, kept)
	}
	view.Foreign[0].What, view.Runs = "slurm job 10 of alice", nil
	for range 2 {
		told, kept := look()
		if kept != 2 || len(told) != 1 || !strings.HasPrefix(told[0], "job_a ") || !strings.Contains(told[0], "slurm job 10 of alice is on accelerator") {
			t.Errorf("told %q, and %d devices are kept; want the one that job_a is bound to, once, and both of alice's kept", told, kept)
		}
	}
	view.Foreign = nil
	if _, kept := look(); kept != 0 {
		t.Errorf("alice's job has ended, and %d are kept", kept)
	}
}
