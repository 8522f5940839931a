package bmc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
)

// Enclosure is one BMC that serves several servers, as that of a two-node chassis does: one address, one account and one set of
// sessions; a system and a chassis of its own for each server. The first is the Server that it is; the others are behind it.
type Enclosure struct {
	*Server
	nodes []*Server
}

// NewEnclosure makes one of n servers of a kind: Systems/Node1, Systems/Node2, ... Each has its identity and its hooks.
func NewEnclosure(p Profile, ids []Identity, hooks []Hooks, opts ...Option) (*Enclosure, error) {
	e := &Enclosure{}
	for i, id := range ids {
		name := fmt.Sprintf("Node%d", i+1)
		tree := &nodeTree{Tree: p.Tree, rename: map[string]string{p.system: path.Dir(p.system) + "/" + name}}
		if list, _ := dig(readDoc(p.Tree, p.system), "Links", "Chassis").([]any); len(list) > 0 {
			chassis := clean(digString(list[0], "@odata.id"))
			tree.rename[chassis] = path.Dir(chassis) + "/" + name
		}
		for j := range ids {
			tree.nodes = append(tree.nodes, fmt.Sprintf("Node%d", j+1))
		}
		node, err := NewProfile(p.Name+" "+name, tree)
		if err != nil {
			return nil, err
		}
		node.Quirks = p.Quirks
		var h Hooks
		if i < len(hooks) {
			h = hooks[i]
		}
		e.nodes = append(e.nodes, New(node, h, append([]Option{WithIdentity(id)}, opts...)...))
	}
	e.Server = e.nodes[0]
	e.Server.behind = func(r *http.Request) *Server {
		for i, n := range e.nodes[1:] {
			for _, coll := range []string{"Systems", "Chassis"} {
				if at := fmt.Sprintf("%s/%s/Node%d", root, coll, i+2); r.URL.Path == at || strings.HasPrefix(r.URL.Path, at+"/") {
					return n
				}
			}
		}
		return nil
	}
	return e, nil
}

// Node is one of the servers, from 0: its power, its identity and what was sent to it.
func (e *Enclosure) Node(i int) *Server { return e.nodes[i] }

// Close stops the BMC and the servers behind it.
func (e *Enclosure) Close() error {
	err := e.Server.Close()
	for _, n := range e.nodes[1:] {
		err = errors.Join(err, n.Close())
	}
	return err
}

// passed marks a request that the enclosure's BMC has let in for a server behind it.
type passed struct{}

func pass(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), passed{}, true))
}

// nodeTree shows a tree with its system and chassis under a node's name, beside those of the other nodes.
type nodeTree struct {
	Tree
	rename map[string]string // path -> path
	nodes  []string
}

func (t *nodeTree) Read(p string) ([]byte, bool) {
	was := p
	for from, to := range t.rename {
		if p == to || strings.HasPrefix(p, to+"/") {
			was = from + strings.TrimPrefix(p, to)
		}
	}
	b, ok := t.Tree.Read(was)
	if !ok {
		return nil, false
	}
	for from, to := range t.rename {
		for _, end := range []string{`"`, `/`} {
			b = bytes.ReplaceAll(b, []byte(`"`+from+end), []byte(`"`+to+end))
		}
	}
	var d Doc
	if json.Unmarshal(b, &d) != nil {
		return b, true
	}
	for _, to := range t.rename {
		switch p {
		case to:
			d["Id"] = path.Base(to)
		case path.Dir(to):
			list := []any{}
			for _, n := range t.nodes {
				list = append(list, link(path.Dir(to)+"/"+n))
			}
			d["Members"], d["Members@odata.count"] = list, len(list)
		}
	}
	b, err := json.Marshal(d)
	return b, err == nil
}

func (t *nodeTree) Paths() []string {
	var out []string
	for _, p := range t.Tree.Paths() {
		for from, to := range t.rename {
			if p == from || strings.HasPrefix(p, from+"/") {
				p = to + strings.TrimPrefix(p, from)
				break
			}
		}
		out = append(out, p)
	}
	return out
}
