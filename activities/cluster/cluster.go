// Package cluster runs jobs on Slurm and Kubernetes. For each cluster one connector stands where a server's agent stands
// on its own: it takes the run tasks of the cluster's servers, has the cluster run them, and reports as an agent does. So
// a job's process, the allocator and the ledger know of no backend.
//
// Invariants: the pool places, the cluster runs: a run is pinned to its nodes. What the cluster runs is what the record
// binds: a run is submitted held, bound under the connector's epoch, and only then started, so that a lost answer, a
// second connector or a late one makes at most a held run that is taken away. Every decision is made from the record and
// one look at the cluster, never from what was said before. Not here: one cluster's protocol (slurm, kube).
package cluster

import (
	"context"
	"time"

	"gpupool/schema"
)

// Backend is one cluster. Its methods are safe for concurrent use, idempotent, and give up when ctx does.
type Backend interface {
	// Observe looks at the whole cluster. known are the runs that the record binds: each that the cluster still knows, in
	// whatever state, is in the answer. An error means that nothing is known now.
	Observe(ctx context.Context, known []Ref) (View, error)
	// Submit hands a run to the cluster, held: it must not begin before Start. The next look shows it.
	Submit(ctx context.Context, r Run) error
	// Start lets a held run begin.
	Start(ctx context.Context, ref Ref) error
	// Stop asks a run to end; kill leaves it no time for it. One that is gone is no error.
	Stop(ctx context.Context, ref Ref, kill bool) error
	// Clean removes what the cluster still keeps of a run that is over in the record too.
	Clean(ctx context.Context, ref Ref) error
	// Output is what a part of a run has written, from an offset in bytes; at most 64 KiB of it.
	Output(ctx context.Context, ref Ref, k Key, rank int, offset int64) ([]byte, error)

	// Join makes a server a node of the cluster, where the cluster knows of it in some way.
	Join(ctx context.Context, node string) error
	// Drain keeps new work off a node, with a reason that people read there. What runs goes on.
	Drain(ctx context.Context, node, reason string) error
	// Resume takes back a drain of ours.
	Resume(ctx context.Context, node string) error
	// Leave takes a drained node out of the cluster.
	Leave(ctx context.Context, node string) error

	// Changed tells that something has happened and a look is worth it; nil where the cluster can only be asked.
	Changed() <-chan struct{}
	Close()
}

// Key names an attempt, in the record and, as a label or comment, in the cluster.
type Key struct {
	Job     string
	Attempt int
}

// Ref is what the cluster calls a run. Slurm gives ids out again: with Submitted, by the cluster's clock, one is unique.
// Where names are never used again Submitted is 0.
type Ref struct {
	Native    string
	Submitted schema.Instant
}

// Run is an attempt to be run.
type Run struct {
	Key
	Tenant, Project, Name string
	Service               bool // it is kept running: the cluster begins it again when it ends
	Command               []string
	Env                   map[string]string
	WorkDir               string
	Image                 string // that its command runs in; empty = none of its own
	Network               string // none, or empty for its node's
	Mounts                []Mount
	User                  int           // whom it runs as, by user and group id, where the cluster can; 0 = as the cluster does
	Limit, Grace          time.Duration // 0 = no limit
	Parts                 []Part        // in order of rank
	Accelerators          int           // a node
	CPUs                  int           // a node; 0 = the cluster's default
	MemoryBytes           int64         // a node; 0 = the cluster's default
	Vendor                schema.Vendor // of its accelerators
	Model                 string        // of its accelerators
}

// Mount is a folder that a run sees at Target.
type Mount struct {
	Claim    string // PersistentVolumeClaim; empty = none
	Volume   string // folder of the node; empty = none
	Folder   string // of the claim or the volume's folder; empty = all of it
	Target   string
	ReadOnly bool
}

// Part is one node's part of a run.
type Part struct {
	Node string
	Env  map[string]string // GPUPOOL_RANK and the like
}

// Device is an accelerator as a cluster names it: by UUID, or where that is empty by the driver's index.
type Device struct {
	UUID  string
	Index int
}

// Seen is a run as the cluster has it.
type Seen struct {
	Key
	Ref
	Held        bool           // submitted, not started
	Partial     bool           // not all of its parts are there; a submit that is done again makes the rest
	State, Why  string         // the cluster's own words
	Began       schema.Instant // by the cluster's clock; 0 = not yet
	Ended       schema.Instant
	Interrupted schema.AttemptOutcome // AttemptLost to hardware, AttemptPreempted by the cluster; else empty
	Parts       []SeenPart            // by rank
}

// Over reports whether nothing of it will run any more.
func (s Seen) Over() bool {
	for _, p := range s.Parts {
		if !p.State.Ended() {
			return false
		}
	}
	return true
}

// SeenPart is one node's part of a run, in the words of a task.
type SeenPart struct {
	State    schema.TaskState // pending, running, done, failed, cancelled
	Exit     *int
	Signal   string
	NoneLeft bool     // the cluster says that no process of it is left
	Devices  []Device // what the cluster bound; nil = not known
	Instance string   // of a service: another one each time that it was begun again; empty = it has not begun
	Last     string   // how a service's instance before this one ended, in words
}

// View is one look at a cluster.
type View struct {
	// Definite says that of a bound run which is not in Runs no process is left.
	Definite bool
	// Since is from when on the cluster has known all it ran, where Definite is not said and a bound run is not in Runs: one
	// that lost its memory says of a node that it is idle, and what it forgot runs there still. 0 = not known.
	Since   schema.Instant
	Runs    []Seen
	Nodes   map[string]Node
	Foreign []Foreign
}

// Node is a server as its cluster has it.
type Node struct {
	Joined  bool   // it is marked as the pool's; false = Join is wanted
	Ready   bool   // it would run what it is given
	Why     string // why not
	Idle    bool   // the cluster says that no process of any job that it knows is on it
	Drained bool   // new work is kept off it
	Ours    bool   // by us; else by a person or the cluster itself
	Reason  string // of the drain, without our mark
	By      string // who drained it, where the cluster tells
}

// Foreign is work on a node that is not the pool's and holds accelerators.
type Foreign struct {
	Node    string
	What    string   // for people: "slurm job 17 of alice"
	Devices []Device // nil = not known which: Count
	Count   int
}
