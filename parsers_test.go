package gpupool_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// parsers are what reads the words of hardware, of its drivers and of their tools, by the folder and the fuzz target that feeds it
// nonsense. In the agent's readers whatever has a name as parsers have is one, and is to be listed.
var parsers = map[string]string{
	"worker/agent/accelerator Step":             "FuzzStep",
	"worker/agent/accelerator/amd parseMetrics": "FuzzMetrics",
	"worker/agent/accelerator/ascend parseInfo": "FuzzInfo",
	"worker/agent/accelerator/ascend parseECC":  "FuzzInfo",
	"worker/agent/accelerator/exporter parse":   "FuzzPage",
	"worker/agent/accelerator/infiniband Parts": "FuzzPort",
	"worker/agent/accelerator/intel parseSMI":   "FuzzSMI",
	"worker/agent/accelerator/intel Read":       "FuzzGPU",
	"worker/agent/accelerator/kmsg Record":      "FuzzRecord",
	"worker/agent/accelerator/nvidia ModelName": "FuzzModelName",
	"worker/agent/accelerator/pci Read":         "FuzzDevice",
	"worker/agent/burnin readDCGM":              "FuzzFindings",
	"worker/agent/burnin readNVBandwidth":       "FuzzFindings",
	"worker/agent/proc parseStat":               "FuzzStat",
	"schema/agentproto Parse":                   "FuzzAuthorization",
	"activities/bmc decodeBody":                 "FuzzBody",
	"activities/bmc/watch signs":                "FuzzEntry",
	"activities/health quote":                   "FuzzQuote",
	"activities/health/rules Decide":            "FuzzVerdict",
}

// ours are files of the project's own, checked when it is built: no parser of what hardware says.
var ours = map[string]bool{"worker/agent/burnin readFloors": true, "worker/agent/burnin readSuites": true}

// parses are the names that parsers have.
var parses = regexp.MustCompile(`^(parse|Parse|decode|scan)[A-Z]?\w*$|^read[A-Z]\w*$`)

// TestEveryParserHasAFuzzTarget: what hardware and drivers say is not under the platform's control.
func TestEveryParserHasAFuzzTarget(t *testing.T) {
	t.Parallel()
	folders := map[string]bool{}
	for p := range parsers {
		folders[strings.Fields(p)[0]] = true
	}
	// A reader of another vendor's devices belongs here too.
	err := filepath.WalkDir("worker/agent/accelerator", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() != "testdata" && d.Name() != "sysfstest" && d.Name() != "sysfs" {
			folders[path] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for folder := range folders {
		funcs, targets := functions(t, folder)
		mine := false
		for p, target := range parsers {
			in, name, _ := strings.Cut(p, " ")
			if in != folder {
				continue
			}
			mine = true
			if !funcs[name] {
				t.Errorf("%s: there is no %s any more", folder, name)
			}
			if !targets[target] {
				t.Errorf("%s: %s has no fuzz target %s", folder, name, target)
			}
		}
		if !mine {
			t.Errorf("%s: a reader without a parser in the list", folder)
		}
		strict := strings.HasPrefix(folder, "worker/agent/accelerator") || folder == "worker/agent/burnin" || folder == "schema/agentproto"
		for name := range funcs {
			if key := folder + " " + name; strict && parses.MatchString(name) && parsers[key] == "" && !ours[key] {
				t.Errorf("%s: %s looks like a parser and is not in the list with its fuzz target", folder, name)
			}
		}
	}
}

// functions are the names of a folder's functions and methods, and of those its tests have.
func functions(t *testing.T, folder string) (code, tests map[string]bool) {
	t.Helper()
	code, tests = map[string]bool{}, map[string]bool{}
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(folder, e.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		into := code
		if strings.HasSuffix(e.Name(), "_test.go") {
			into = tests
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				into[fn.Name.Name] = true
			}
		}
	}
	return code, tests
}
