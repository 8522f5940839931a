package engine

// ranked keeps jobs in submit order and answers "how many are before this one" in logarithmic time. It is a treap:
// a search tree by (seq, id) that is a heap by a hash of the id, so that its shape depends on its content alone.
type ranked struct{ root *rankedNode }

type rankedNode struct {
	job         *job
	left, right *rankedNode
	weight      uint64
	size        int
}

func before(a, b *job) bool {
	if a.Seq != b.Seq {
		return a.Seq < b.Seq
	}
	return a.ID < b.ID
}

func (r *ranked) len() int { return r.root.count() }

func (n *rankedNode) count() int {
	if n == nil {
		return 0
	}
	return n.size
}

func (n *rankedNode) fix() *rankedNode {
	n.size = 1 + n.left.count() + n.right.count()
	return n
}

func (r *ranked) insert(j *job) {
	left, right := split(r.root, j)
	node := &rankedNode{job: j, weight: mix(j.ID), size: 1}
	r.root = join(join(left, node), right)
}

// remove reports whether the job was there.
func (r *ranked) remove(j *job) bool {
	var ok bool
	r.root, ok = without(r.root, j)
	return ok
}

func without(n *rankedNode, j *job) (*rankedNode, bool) {
	if n == nil {
		return nil, false
	}
	var ok bool
	switch {
	case n.job == j:
		return join(n.left, n.right), true
	case before(j, n.job):
		n.left, ok = without(n.left, j)
	default:
		n.right, ok = without(n.right, j)
	}
	return n.fix(), ok
}

// first is the oldest job, nil when empty.
func (r *ranked) first() *job {
	n := r.root
	if n == nil {
		return nil
	}
	for n.left != nil {
		n = n.left
	}
	return n.job
}

// ahead counts the jobs submitted before j.
func (r *ranked) ahead(j *job) int {
	count := 0
	for n := r.root; n != nil; {
		if before(n.job, j) {
			count += n.left.count() + 1
			n = n.right
		} else {
			n = n.left
		}
	}
	return count
}

// each visits jobs in order until visit says stop.
func (r *ranked) each(visit func(*job) bool) { r.root.each(visit) }

func (n *rankedNode) each(visit func(*job) bool) bool {
	return n == nil || n.left.each(visit) && visit(n.job) && n.right.each(visit)
}

// split parts the tree into jobs before j and the rest.
func split(n *rankedNode, j *job) (left, right *rankedNode) {
	if n == nil {
		return nil, nil
	}
	if before(n.job, j) {
		n.right, right = split(n.right, j)
		return n.fix(), right
	}
	left, n.left = split(n.left, j)
	return left, n.fix()
}

func join(a, b *rankedNode) *rankedNode {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.weight < b.weight:
		a.right = join(a.right, b)
		return a.fix()
	default:
		b.left = join(a, b.left)
		return b.fix()
	}
}

// mix is FNV-1a with a final avalanche: ids that differ in a digit get unrelated weights.
func mix(id string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}
