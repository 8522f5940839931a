package schema

import (
	"path"
	"slices"
	"strings"
)

// Volume is storage that jobs may mount: the operator's word on what of the servers, or of a cluster, they may see. What is in no
// volume can't be mounted.
type Volume struct {
	Name      string  `gorm:"primaryKey" json:"name"`
	Path      string  `json:"path,omitempty"`                          // folder of the servers, the same on all of them; empty = none
	Claim     string  `json:"claim,omitempty"`                         // PersistentVolumeClaim in the namespace of a Kubernetes cluster's jobs, in the place of Path there; empty = none
	Tenant    string  `json:"tenant,omitempty"`                        // whose jobs may mount it; empty = everybody's
	Writable  bool    `json:"writable"`                                // a job may ask to write to it
	User      int     `gorm:"column:user_id" json:"user_id,omitempty"` // whom jobs with it run as, by user and group id; 0 = each as its own user
	CreatedAt Instant `json:"created_at"`
}

// Mount is a volume, or a folder of it, as a job sees it.
type Mount struct {
	Volume string `json:"volume"`
	Path   string `json:"path,omitempty"` // folder of the volume, without a / before it; empty = all of it
	Target string `json:"target"`         // absolute path in the job
	Write  bool   `json:"write,omitempty"`
}

// Source is the folder of the servers that a mount of v shows.
func (v Volume) Source(m Mount) string { return path.Join(v.Path, m.Path) }

// CleanPath reports whether p is an absolute path below the root, written in the only way that leads through nothing else.
func CleanPath(p string) bool {
	return len(p) > 1 && len(p) <= 4096 && p[0] == '/' && path.Clean(p) == p && !strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// CleanFolder reports whether p is a relative path that stays below where it begins.
func CleanFolder(p string) bool { return CleanPath("/"+p) && p != "." }

// system is what jobs find of the system they run on, and what is made for each: no mount goes there.
var system = []string{"/bin", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var", "/work"}

// CheckTargets says why the target of a mount can't be had beside those of the mounts before it: ones that lie in each other are
// made in an order that matters, and a link in the outer one would lead elsewhere. at is its place in the list; empty = all are right.
func CheckTargets(mounts []Mount) (at int, right string) {
	taken := slices.Clone(system)
	for i, m := range mounts {
		if !CleanPath(m.Target) {
			return i, "an absolute path without . and .. below the root, such as /data"
		}
		for _, t := range taken {
			if Within(m.Target, t) || Within(t, m.Target) {
				return i, "a path of its own, such as /data: this one and " + t + " lie in each other"
			}
		}
		taken = append(taken, m.Target)
	}
	return 0, ""
}

// Within reports whether a clean path is dir, or lies in it.
func Within(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// Ability is a set of what a server's backend may be able to do for a job, and of what a job needs.
type Ability uint8

const (
	CanServe    Ability = 1 << iota // run what does not end
	CanImage                        // run a command in a container image
	CanLoopback                     // give a job no network but a loopback of its own
	CanFolder                       // show folders of the server
	CanPlace                        // show them at other paths than their own
	CanClaim                        // show PersistentVolumeClaims
)

// Words says what is in a set, for people.
func (a Ability) Words() []string {
	var out []string
	for _, w := range []struct {
		of   Ability
		what string
	}{{CanServe, "services"}, {CanImage, "container images"}, {CanLoopback, "jobs without a network"}, {CanFolder, "volumes that are folders"}, {CanPlace, "mounts at a path other than the volume's own"}, {CanClaim, "volumes that are claims"}} {
		if a&w.of != 0 {
			out = append(out, w.what)
		}
	}
	return out
}

// lackOf is what a backend can't do unless its cluster says otherwise.
func lackOf(backend string) Ability {
	switch ClusterKind(backend) {
	case ClusterSlurm:
		return CanServe | CanImage | CanLoopback | CanPlace | CanClaim
	case ClusterKubernetes:
		return CanLoopback
	default:
		return CanClaim
	}
}

// Lacks is what jobs on s can't have; can is what the connector of its cluster says it is set up for beside the usual.
func (s Server) Lacks(can Ability) Ability {
	lacks := lackOf(s.Backend) &^ can
	if s.OneTenant() {
		lacks |= CanImage | CanLoopback | CanFolder | CanPlace
	}
	return lacks
}

// Needs is what a job can't do without. Of a volume that is a folder and a claim each backend has one.
func Needs(kind JobKind, image, network string, mounts []Mount, volumes map[string]Volume) Ability {
	var a Ability
	if kind == JobService {
		a |= CanServe
	}
	if image != "" {
		a |= CanImage
	}
	if network != "" {
		a |= CanLoopback
	}
	for _, m := range mounts {
		v := volumes[m.Volume]
		if v.Path == "" {
			a |= CanClaim
			continue
		}
		a |= CanFolder
		if v.Source(m) != m.Target && image == "" {
			a |= CanPlace
		}
	}
	return a
}
