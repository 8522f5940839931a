package cluster

import (
	"context"
	"log/slog"
	"slices"
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
