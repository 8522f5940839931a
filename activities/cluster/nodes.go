package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"gpupool/schema"
	"gpupool/schema/store"
)

// joinAgain is how long after a join that failed the next is tried.
const joinAgain = time.Minute

// keepNodes holds the pool's cordons and the cluster's drains together, both ways, and keeps jobs off what the cluster
// uses for other work.
func (c *connector) keepNodes(ctx context.Context, work []store.ClusterWork, servers []store.Node, view View) error {
	foreign := map[string][]Foreign{}
	for _, f := range view.Foreign {
		foreign[f.Node] = append(foreign[f.Node], f)
	}
	bound := boundTo(work, view)
	ours := map[string]bool{} // identities of devices that jobs of the pool hold
	for _, w := range work {
		for _, p := range w.Parts {
			for _, d := range p.Run.Devices {
				ours[d] = true
			}
		}
	}
	for _, n := range servers {
		node, there := view.Nodes[n.Server.Name]
		leaves := n.Server.Phase == schema.PhaseRetiring // once it has left it is not brought back
		keep := store.Keep{Accelerators: c.taken(n, foreign[n.Server.Name], ours)}
		switch {
		case !there && leaves:
			if err := c.right.NodeLeft(ctx, n.Server.ID); err != nil {
				return err
			}
		case !there:
			keep.Server, keep.Drift = "it is no node of its cluster "+c.name, schema.DriftMissing
			c.join(ctx, n.Server.Name)
		case node.Drained && !node.Ours:
			keep.Drift = schema.DriftDrained
			keep.Server = fmt.Sprintf("drained in cluster %s by %s: %s", c.name, cmp.Or(node.By, "somebody"), cmp.Or(node.Reason, "no reason given"))
		case !node.Ready && !node.Drained && c.isUnready(n):
			keep.Server = fmt.Sprintf("cluster %s does not use it: %s", c.name, node.Why)
		}
		if there && node.Ready {
			delete(c.unready, n.Server.Name)
		}
		if there && !node.Joined && !leaves {
			c.join(ctx, n.Server.Name)
		}
		if err := c.contested(ctx, n, keep, bound); err != nil {
			return err
		}
		if err := c.cordon(ctx, n, keep); err != nil {
			return err
		}
		if there {
			c.drain(ctx, n, node)
		}
	}
	return nil
}

// boundTo are the devices, by identity, that the cluster said it had bound to runs of ours, with whose job; but for what it
// says now that it has ended.
func boundTo(work []store.ClusterWork, view View) map[string]string {
	over := map[Ref]bool{}
	for _, s := range view.Runs {
		over[s.Ref] = s.Over()
	}
	jobs := map[string]string{}
	for _, w := range work {
		if over[Ref{w.Native, w.SubmittedAt}] {
			continue
		}
		for _, p := range w.Parts {
			var devices []string
			if p.Task.State.Ended() || json.Unmarshal([]byte(p.Task.Devices), &devices) != nil {
				continue // nothing was told
			}
			for _, d := range devices {
				jobs[d] = w.Job
			}
		}
	}
	return jobs
}

// contested tells, once, of work that is not the pool's on a device that a run of ours is bound to: a cluster that lost its
// memory gives out again what is in use. Both are left alone, and the device is kept from the next as long as either has it.
func (c *connector) contested(ctx context.Context, n store.Node, keep store.Keep, bound map[string]string) error {
	before := keepOf(n).Accelerators
	for _, a := range n.Accelerators {
		what, kept := keep.Accelerators[a.ID]
		job := bound[identity(a)]
		if !kept || job == "" || before[a.ID] == what {
			continue
		}
		if err := c.right.Drift(ctx, schema.DriftContested, job, n.Server.ID, fmt.Sprintf("%s is on accelerator %s of %s, which job %s is bound to: both are left alone, and it is kept from the next", what, a.ID, n.Server.Name, job)); err != nil {
			return err
		}
	}
	return nil
}

// isUnready reports whether the cluster has not used a node for long enough to keep jobs off it, or did already.
func (c *connector) isUnready(n store.Node) bool {
	since, seen := c.unready[n.Server.Name]
	if !seen {
		c.unready[n.Server.Name] = time.Now()
	}
	return seen && time.Since(since) >= c.timing.Unready || keepOf(n).Server != ""
}

// drain brings the node's drain in line with the pool's own cordons. A refusal of the cluster is said and tried again at
// the next look: the pool's cordon holds without it.
func (c *connector) drain(ctx context.Context, n store.Node, node Node) {
	name, why := n.Server.Name, ownCordon(n)
	var err error
	switch {
	case n.Server.Phase == schema.PhaseRetiring && node.Drained && node.Idle:
		err = c.backend.Leave(ctx, name)
	case why != "" && !node.Drained:
		if c.drained[name] {
			if err := c.right.Drift(ctx, schema.DriftUndrained, "", n.Server.ID, fmt.Sprintf("the drain of %s was lifted in cluster %s while it is kept out of the pool: drained again", name, c.name)); err != nil {
				c.log.Warn("a drift could not be told", "cluster", c.name, "error", err)
			}
		}
		if err = c.backend.Drain(ctx, name, why); err == nil {
			c.drained[name] = true
		}
	case why == "" && node.Drained && node.Ours:
		err = c.backend.Resume(ctx, name)
		delete(c.drained, name)
	case why == "":
		delete(c.drained, name)
	}
	if err != nil && ctx.Err() == nil {
		c.log.Warn("the cluster refused a change of a node", "cluster", c.name, "node", name, "error", err)
	}
}

// ownCordon is why the pool itself keeps jobs off a server; empty where it doesn't.
func ownCordon(n store.Node) string {
	for _, cn := range n.Cordons {
		if cn.Accelerator == "" && cn.Owner != schema.CordonCluster {
			return cn.Reason
		}
	}
	if n.Server.Phase != schema.PhaseAvailable {
		return string(n.Server.Phase)
	}
	return ""
}

func (c *connector) join(ctx context.Context, node string) {
	if time.Since(c.tried[node]) < joinAgain {
		return
	}
	c.tried[node] = time.Now()
	if err := c.backend.Join(ctx, node); err != nil && ctx.Err() == nil {
		c.log.Warn("the server could not join its cluster", "cluster", c.name, "node", node, "error", err)
	}
}

// taken are the accelerators that the cluster uses for other work, with for what. Where the cluster doesn't tell which,
// as many are kept as it uses, of those that no job of the pool holds; what was kept before first.
func (c *connector) taken(n store.Node, foreign []Foreign, ours map[string]bool) map[string]string {
	if len(foreign) == 0 {
		return nil
	}
	before := keepOf(n).Accelerators
	out := map[string]string{}
	order := slices.Clone(n.Accelerators)
	slices.SortStableFunc(order, func(a, b schema.Accelerator) int {
		_, x := before[a.ID]
		_, y := before[b.ID]
		return cmp.Or(cmp.Compare(b2i(y), b2i(x)), cmp.Compare(b.Index, a.Index))
	})
	for _, f := range foreign {
		left := f.Count
		for _, a := range order {
			_, already := out[a.ID]
			switch {
			case already:
			case len(f.Devices) > 0:
				if slices.ContainsFunc(f.Devices, func(d Device) bool { return is(a, d) }) {
					out[a.ID] = f.What
				}
			case left > 0 && !ours[identity(a)]:
				out[a.ID] = f.What
				left--
			}
		}
	}
	return out
}

// cordon writes what is to be kept off a server, where that is new.
func (c *connector) cordon(ctx context.Context, n store.Node, keep store.Keep) error {
	is := keepOf(n)
	if is.Server == keep.Server && maps.Equal(is.Accelerators, keep.Accelerators) {
		return nil
	}
	return c.right.Cordons(ctx, n.Server.ID, keep)
}

// keepOf is what is kept off a server for its cluster's sake now.
func keepOf(n store.Node) store.Keep {
	k := store.Keep{Accelerators: map[string]string{}}
	for _, cn := range n.Cordons {
		switch {
		case cn.Owner != schema.CordonCluster:
		case cn.Accelerator == "":
			k.Server = cn.Reason
		default:
			k.Accelerators[cn.Accelerator] = cn.Reason
		}
	}
	return k
}

// resolver gives the pool's names of devices for the cluster's: serial, else UUID, else PCI address, as runs name them.
func resolver(servers []store.Node) func(node string, devices []Device) []string {
	byName := make(map[string][]schema.Accelerator, len(servers))
	for _, n := range servers {
		byName[n.Server.Name] = n.Accelerators
	}
	return func(node string, devices []Device) []string {
		var out []string
		for _, d := range devices {
			for _, a := range byName[node] {
				if is(a, d) {
					out = append(out, identity(a))
				}
			}
		}
		if len(out) != len(devices) {
			return nil // the inventory is behind: what was bound is not known
		}
		return out
	}
}

func is(a schema.Accelerator, d Device) bool {
	if d.UUID != "" {
		return a.UUID == d.UUID || a.Serial == d.UUID
	}
	return a.Index == d.Index
}

func identity(a schema.Accelerator) string { return cmp.Or(a.Serial, a.UUID, a.PCI) }

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
