package schema

// ClusterKind is what a cluster is.
type ClusterKind string

const (
	ClusterSlurm      ClusterKind = "slurm"
	ClusterKubernetes ClusterKind = "kubernetes"
)

// Valid reports whether k is known.
func (k ClusterKind) Valid() bool { return k == ClusterSlurm || k == ClusterKubernetes }

// Cluster is one Slurm or Kubernetes control plane, as its connector last knew it. The connector that holds Epoch is
// the only one whose word is kept.
type Cluster struct {
	Name      string      `gorm:"primaryKey" json:"name"`
	Kind      ClusterKind `json:"kind"`
	Epoch     int64       `json:"epoch"`
	Holder    string      `json:"holder"`
	TakenAt   Instant     `json:"taken_at"`
	SeenAt    Instant     `json:"seen_at"`    // it answered last; coarse
	DownSince Instant     `json:"down_since"` // it does not answer since; 0 = it does
	UpSince   Instant     `json:"up_since"`   // it answers again since; what waited for it is given its time anew
	Why       string      `json:"why"`        // what was tried and failed, while it is down
	Can       Ability     `json:"-"`          // what its jobs can have beside what is usual for its kind
}

// ClusterRun is an attempt as a cluster knows it. Native is the cluster's own name for it, which it may give out again
// later: with SubmittedAt, by the cluster's clock, it is unique. Accounting is joined by cluster, native and submit.
type ClusterRun struct {
	Job         string  `gorm:"primaryKey" json:"job"`
	Attempt     int     `gorm:"primaryKey" json:"attempt"`
	Cluster     string  `gorm:"primaryKey" json:"cluster"`
	Native      string  `json:"native"` // empty = not known to have been submitted
	SubmittedAt Instant `json:"submitted_at"`
	ClaimedAt   Instant `json:"claimed_at"` // the connector meant to submit it
	StartedAt   Instant `json:"started_at"` // by the cluster's accounting
	EndedAt     Instant `json:"ended_at"`   // by the cluster's accounting
	NativeState string  `json:"native_state"`
}

// ClusterDrift names a way in which the record and a cluster disagreed, and what was done; the data of
// EventClusterDrift has it.
type ClusterDrift string

const (
	DriftDuplicate ClusterDrift = "duplicate" // the cluster has a run twice: one was ended
	DriftOrphan    ClusterDrift = "orphan"    // the cluster has a run that is over in the record: it was ended
	DriftLost      ClusterDrift = "lost"      // the cluster no longer knows a run that the record has
	DriftDevices   ClusterDrift = "devices"   // the cluster bound other devices than were allocated: the record follows
	DriftContested ClusterDrift = "contested" // the cluster bound a device that another job holds, or gave it to work that is not the pool's: it is cordoned
	DriftDrained   ClusterDrift = "drained"   // somebody drained or cordoned the node in the cluster: cordoned here
	DriftUndrained ClusterDrift = "undrained" // our drain was lifted there while the cordon stands: drained again
	DriftMissing   ClusterDrift = "missing"   // a server of the pool is no node of its cluster: cordoned
	DriftForeign   ClusterDrift = "foreign"   // the cluster runs work that is not the pool's on a device: it is kept off it
)
