// Package gpupool_test holds up the repository's walls: who may import whom, what stays pure, what a
// binary links, what the tree looks like. Each wall says why it stands. They read `go list`, so they
// compile nothing.
package gpupool_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "gpupool"

// pkg is what `go list` says about a package.
type pkg struct {
	ImportPath string
	Name       string
	Doc        string
	Imports    []string
	Deps       []string
	GoFiles    []string
	CgoFiles   []string
	Error      *struct{ Err string }
}

// path is the package's folder in the repository: "schema/store", or "." for the root.
func (p pkg) path() string {
	if p.ImportPath == module {
		return "."
	}
	return strings.TrimPrefix(p.ImportPath, module+"/")
}

var packages = sync.OnceValues(func() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Name,Doc,Imports,Deps,GoFiles,CgoFiles,Error", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Join(err, errors.New(stderr.String()))
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		switch err := d.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, p)
	}
})

// list is every package of the repository that has code outside tests.
func list(t *testing.T) []pkg {
	t.Helper()
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	var code []pkg
	for _, p := range all {
		if len(p.GoFiles)+len(p.CgoFiles) > 0 && p.path() != "." {
			code = append(code, p)
		}
	}
	if len(code) == 0 {
		t.Fatal("go list found no package")
	}
	return code
}

// under says whether a path is one of the folders or inside one. "a/b" is under "a", "ab" is not.
func under(path string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return path == f || strings.HasPrefix(path, f+"/") })
}

// TestImportsPointOneWay: schema <- pxe, activities <- workflows <- worker <- cmd. A change of the
// process never reaches down into the vocabulary, and every layer builds and tests without those above.
func TestImportsPointOneWay(t *testing.T) {
	t.Parallel()
	allowed := map[string]struct {
		may    []string
		reason string
	}{
		"schema":     {nil, "the vocabulary is what everything else agrees on"},
		"pxe":        {[]string{"schema"}, "network boot runs without Temporal, where a site is cut off"},
		"activities": {[]string{"schema", "pxe"}, "a side effect doesn't know which process asked for it"},
		"workflows":  {[]string{"schema", "activities"}, "a process is replayed for years: it reaches the world through activities only"},
		"api":        {[]string{"schema", "workflows"}, "a handler reads the record and talks to workflows; it performs nothing itself"},
		"worker":     {[]string{"schema", "pxe", "activities", "workflows", "api"}, "it builds processes of the parts, and is none of them"},
		"deploy":     {[]string{"schema", "pxe", "worker/agent", "worker/installer/sanitise", "api/client", "api/contract", "api/call"}, "the lab speaks to gpupool as real machines do, over the wire"},
		"cmd":        {[]string{"schema", "pxe", "activities", "workflows", "worker", "api", "deploy"}, "only flags and wiring"},
	}
	for _, p := range list(t) {
		area, _, _ := strings.Cut(p.path(), "/")
		rule, ok := allowed[area]
		if !ok {
			t.Errorf("%s: no rule for this area; the architecture names them all", p.path())
			continue
		}
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, module+"/")
			if ours && !under(to, area) && !under(to, rule.may...) {
				t.Errorf("%s imports %s: %s may import only %q: %s", p.path(), to, area, rule.may, rule.reason)
			}
		}
	}
}

// TestSomePackagesHaveFewImporters keeps heavy and special parts behind one door.
func TestSomePackagesHaveFewImporters(t *testing.T) {
	t.Parallel()
	for _, rule := range []struct {
		target    string   // import path prefix
		importers []string // folders, with all in them; a name that ends in a dot is that package alone
		reason    string
	}{
		{"go.temporal.io/server", []string{"worker/embedded"}, "compiling it takes minutes: whoever links it can't be built and tested quickly"},
		{module + "/worker/embedded", []string{"cmd/gpupool.", "cmd/gpupool/bench.", "worker."}, "only the wiring of everything in one process needs a server inside, and the bench a bare one beside it"},
		{module + "/api", []string{"api", "cmd", "worker", "deploy"}, "the API is a face; nothing below it may know that it has one"},
		{module + "/deploy", []string{"deploy", "cmd"}, "no product code knows whether it runs in the lab"},
		{"gorm.io", []string{"schema/store", "schema/migrations"}, "transactions live in one place, where they are read together"},
		{module + "/schema/store", []string{"schema", "pxe", "activities", "api", "worker", "cmd", "deploy"}, "a workflow that reads the database replays differently"},
		{"github.com/gin-gonic/gin", []string{"api"}, "HTTP frameworks stay with the API"},
		{"github.com/stmcginnis/gofish", []string{"activities/bmc"}, "a BMC's quirks are known in one place"},
	} {
		for _, p := range list(t) {
			for _, imported := range p.Imports {
				if under(imported, rule.target) && !under(p.path(), rule.importers...) && !slices.Contains(rule.importers, p.path()+".") {
					t.Errorf("%s imports %s: only %q may: %s", p.path(), imported, rule.importers, rule.reason)
				}
			}
		}
	}
}

// TestPureCoresDoNoIO: the engine, the health rules and the vocabulary are functions of what they are
// given. That is why a scenario file can test them, and a trace replay a month in seconds.
func TestPureCoresDoNoIO(t *testing.T) {
	t.Parallel()
	pure := map[string][]string{ // and which packages of ours each may use
		"schema":                      nil,
		"activities/allocator/engine": {"schema"},
		"activities/health/rules":     {"schema"},
		"schema/usage":                {"schema"},
		"schema/hardware":             {"schema"},
	}
	// The standard library's packages without a file, a socket, a process, a log or chance in them.
	// time is there for its types; the linter bans its clock.
	harmless := []string{
		"bytes", "cmp", "container/heap", "container/list", "crypto/sha256", "encoding", "encoding/base64", "encoding/binary", "encoding/hex",
		"encoding/json", "errors", "fmt", "hash", "hash/fnv", "hash/maphash", "iter", "maps", "math", "math/big", "math/bits", "net/netip", "net/url", "path",
		"reflect", "regexp", "slices", "sort", "strconv", "strings", "sync", "time", "unicode", "unicode/utf8",
		"github.com/agnivade/levenshtein", // the distance of two texts, and nothing else
	}
	for _, p := range list(t) {
		mayUse, ok := pure[p.path()]
		if !ok {
			continue
		}
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, module+"/")
			if ours && slices.Contains(mayUse, to) || !ours && slices.Contains(harmless, imported) {
				continue
			}
			t.Errorf("%s imports %s: it is pure, and that package isn't known to be; pass what it would give", p.path(), imported)
		}
	}
}

// TestWhatBinariesLink looks at everything a package links, however indirectly.
func TestWhatBinariesLink(t *testing.T) {
	t.Parallel()
	const stores, web, server, sdk = "gorm.io", "github.com/gin-gonic/gin", "go.temporal.io/server", "go.temporal.io/sdk"
	for _, rule := range []struct {
		path   string
		never  []string
		reason string
	}{
		{"cmd/gpupool-agent", []string{stores, web, server, sdk, "modernc.org/sqlite"}, "it runs on every server of the pool: small, and with nothing to attack or to update that it doesn't need"},
		{"worker/agent", []string{stores, web, server, sdk}, "it is what gpupool-agent is made of; agents speak HTTPS to the API, never to Temporal"},
		{"pxe", []string{server, sdk, web}, "a site boots its servers while Temporal is away"},
		{"workflows", []string{server, web}, "they must build and replay without a server"},
		{"activities", []string{server, web}, "they must test without a server"},
		{"api", []string{server}, "an api process talks to Temporal over the network like any other"},
	} {
		for _, p := range list(t) {
			if !under(p.path(), rule.path) {
				continue
			}
			for _, linked := range p.Deps {
				if under(linked, rule.never...) {
					t.Errorf("%s links %s: %s", p.path(), linked, rule.reason)
					break
				}
			}
		}
	}
}

// TestCgoStaysInTheAgent: the one binary builds anywhere, for any machine; only NVML needs C.
func TestCgoStaysInTheAgent(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		if len(p.CgoFiles) > 0 && !under(p.path(), "worker/agent") {
			t.Errorf("%s uses cgo in %v; only worker/agent may", p.path(), p.CgoFiles)
		}
	}
}

// TestPackagesSayWhatTheyAre: a package is one noun with one doc, which a newcomer reads first.
func TestPackagesSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command "
		}
		if !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s: its package comment is %q; must begin with %q", p.path(), p.Doc, want)
		}
	}
}

// TestTopLevelIsFixed: where things are is the first thing one learns here, so it doesn't change in
// passing. A new entry changes the architecture, and this list with it.
func TestTopLevelIsFixed(t *testing.T) {
	t.Parallel()
	want := []string{
		".ci", ".gitignore", ".golangci.yml", "LICENSE", "Makefile", "README.md", "activities", "api", "cmd", "deploy", "docs",
		"go.mod", "go.sum", "pxe", "schema", "worker", "workflows",
	}
	for _, file := range tracked(t) {
		top, _, inFolder := strings.Cut(file, "/")
		rootTest := !inFolder && strings.HasSuffix(top, "_test.go")
		if !rootTest && !slices.Contains(want, top) {
			t.Errorf("%s: the top level is %q and tests", file, want)
		}
	}
}

// TestFilesNameNoMachine: what is in the repository works on every machine and from every mirror. The
// words are put together here so that this file doesn't hold them.
func TestFilesNameNoMachine(t *testing.T) {
	t.Parallel()
	banned := map[string]string{
		"proxy." + "golang.org":     "modules come from where the environment says",
		"sum." + "golang.org":       "modules come from where the environment says",
		"registry." + "npmjs.org":   "what the console needs is in the tree",
		"registry-1." + "docker.io": "images are named without a host",
		"py" + "pi.org":             "nothing here is installed by pip",
		"/" + "work/" + "main":      "a path of the machine it was written on",
		"/" + "work/" + "shared":    "shared data is looked for beside the repository",
		"/" + "root/" + ".cache":    "caches are where the environment says",
		"/" + "root/" + "go":        "modules are where the environment says",
		"fire" + "cracker":          "a word of the machine it was written on",
		"bash_" + "jobs":            "a word of the machine it was written on",
		"anth" + "ropic":            "who typed it is git's business",
		"clau" + "de":               "who typed it is git's business",
		"chat" + "gpt":              "who typed it is git's business",
		"lang" + "uage model":       "who typed it is git's business",
	}
	for _, file := range tracked(t) {
		if file == "go.sum" {
			continue
		}
		b, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) { // deleted, not committed yet
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(b[:min(len(b), 8000)], 0) >= 0 { // binary
			continue
		}
		text := bytes.ToLower(b)
		for word, reason := range banned {
			if i := bytes.Index(text, []byte(word)); i >= 0 {
				t.Errorf("%s:%d holds %q: %s", file, 1+bytes.Count(text[:i], []byte("\n")), word, reason)
			}
		}
	}
}

// TestPromisedCommandsExist: README and documentation name make targets; each must be one.
func TestPromisedCommandsExist(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	promised := regexp.MustCompile("(?m)(?:`|^    |^\\$ |^)make ([a-z][a-z0-9-]*)")
	found := 0
	for _, file := range tracked(t) {
		if !strings.HasSuffix(file, ".md") && file != ".ci/run" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range promised.FindAllSubmatch(text, -1) {
			found++
			if !regexp.MustCompile(`(?m)^` + string(m[1]) + `:`).Match(makefile) {
				t.Errorf("%s promises `make %s`, which the Makefile doesn't have", file, m[1])
			}
		}
	}
	if found == 0 {
		t.Error("no document names a make target: this test reads the wrong files")
	}
}

// tracked is every file git knows of here. An archive without git has nothing to compare.
func tracked(t *testing.T) []string {
	t.Helper()
	if _, err := os.Stat(".git"); err != nil {
		t.Skip("not a git checkout: ", err)
	}
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Fatal(err)
	}
	files := strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
	for i, f := range files {
		files[i] = filepath.ToSlash(f)
	}
	return files
}
