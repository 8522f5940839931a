package bmc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Doc is one Redfish resource as decoded JSON.
type Doc = map[string]any

// Tree is an immutable set of resources by path ("/redfish/v1/Systems", no trailing slash; a stored page keeps its
// query: "/redfish/v1/Chassis/1/Sensors?$skip=75"). It may be shared by any number of servers.
type Tree interface {
	// Read returns the bytes of a resource, or false. The bytes may be invalid JSON: real BMCs serve such.
	Read(path string) ([]byte, bool)
	// Paths lists every resource.
	Paths() []string
}

// mapTree is a tree in memory, generated or from an archive.
type mapTree map[string]json.RawMessage

func (t mapTree) Read(path string) ([]byte, bool) { b, ok := t[path]; return b, ok }

func (t mapTree) Paths() []string {
	out := make([]string, 0, len(t))
	for p := range t {
		out = append(out, p)
	}
	return out
}

// dirTree serves a folder of the DMTF mockup layout: <root>/redfish/v1/Systems/index.json. Files are read on demand.
type dirTree struct {
	root  string
	paths map[string]string // resource path -> file
}

func (t *dirTree) Read(path string) ([]byte, bool) {
	f, ok := t.paths[path]
	if !ok {
		return nil, false
	}
	b, err := os.ReadFile(f)
	return b, err == nil
}

func (t *dirTree) Paths() []string {
	out := make([]string, 0, len(t.paths))
	for p := range t.paths {
		out = append(out, p)
	}
	return out
}

// OpenTree opens a captured tree: any folder that holds a `redfish/v1/index.json` at some depth (the DMTF mockup layout,
// one index.json a resource), or a .tar.xz or .tar.gz of one, which is kept in memory.
func OpenTree(path string) (Tree, error) {
	if isArchive(path) {
		return openArchive(path)
	}
	return openDir(path)
}

func openDir(dir string) (Tree, error) {
	root := ""
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() && strings.HasSuffix(filepath.ToSlash(p), "/redfish/v1/index.json") {
			root = strings.TrimSuffix(filepath.ToSlash(p), "/redfish/v1/index.json")
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open redfish tree %s: %w", dir, err)
	}
	if root == "" {
		return nil, fmt.Errorf("open redfish tree %s: no redfish/v1/index.json below it", dir)
	}
	t := &dirTree{root: root, paths: map[string]string{}}
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() != "index.json" {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(p))
		if err != nil {
			return err
		}
		t.paths["/"+filepath.ToSlash(rel)] = p
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open redfish tree %s: %w", dir, err)
	}
	return t, nil
}

// ErrNoHost says that a tree has no member of Systems that can be reset.
var ErrNoHost = errors.New("no member of /redfish/v1/Systems has a #ComputerSystem.Reset action")

// readDoc decodes a resource of a tree; nil when it is absent or not an object.
func readDoc(t Tree, path string) Doc {
	b, ok := t.Read(path)
	if !ok {
		return nil
	}
	var d Doc
	if json.Unmarshal(b, &d) != nil {
		return nil
	}
	return d
}

// dig walks objects by key: dig(d, "Boot", "BootOrder").
func dig(v any, keys ...string) any {
	for _, k := range keys {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

func digString(v any, keys ...string) string { s, _ := dig(v, keys...).(string); return s }

// members lists the @odata.id of a collection's members.
func members(d Doc) []string {
	list, _ := d["Members"].([]any)
	out := make([]string, 0, len(list))
	for _, m := range list {
		if id := digString(m, "@odata.id"); id != "" {
			out = append(out, clean(id))
		}
	}
	return out
}

// clean drops a trailing slash and a fragment, so that one resource has one name.
func clean(path string) string {
	if i := strings.IndexByte(path, '#'); i >= 0 {
		path = path[:i]
	}
	if len(path) > 1 {
		path = strings.TrimRight(path, "/")
	}
	return path
}

// merge applies a JSON merge patch (RFC 7386) to dst in place.
func merge(dst, patch Doc) {
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			dst[k] = nil // Redfish PATCH: null sets null, it doesn't remove (DSP0266 7.7)
		case map[string]any:
			if have, ok := dst[k].(map[string]any); ok {
				merge(have, v)
				continue
			}
			dst[k] = v
		default:
			dst[k] = v
		}
	}
}

// clone makes a deep copy of decoded JSON.
func clone(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			out[k] = clone(x)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = clone(x)
		}
		return out
	}
	return v
}

func strs(v any) []string {
	list, _ := v.([]any)
	out := make([]string, 0, len(list))
	for _, x := range list {
		if s, ok := x.(string); ok {
			out = append(out, s)
		}
	}
	return out
}
