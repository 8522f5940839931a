package setups_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpupool/activities/install/setups"
	"gpupool/schema"
)

func load(t *testing.T, files map[string]string) (setups.Catalogue, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return setups.Load(dir)
}

// TestWhatIsBuiltInCanBeRunByTheShell: each command is one that sh can read; packages and paths are the vendors', and only their
// servers show whether they are right.
func TestWhatIsBuiltInCanBeRunByTheShell(t *testing.T) {
	t.Parallel()
	all, err := setups.Load("")
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	for _, p := range all {
		for _, kind := range []schema.TaskKind{schema.TaskDrivers, schema.TaskRuntime} {
			for _, s := range p.Steps(kind) {
				for _, command := range []string{s.Unless, s.Run} {
					commands++
					if out, err := exec.Command("/bin/sh", "-n", "-c", command).CombinedOutput(); err != nil {
						t.Errorf("%s, step %s: %v %s", p.ID(), s.Name, err, out)
					}
				}
				if s.LimitMS < 60_000 {
					t.Errorf("%s, step %s: it has %d ms", p.ID(), s.Name, s.LimitMS)
				}
			}
		}
	}
	if commands < 20 {
		t.Errorf("%d commands were read: want the vendors' own", commands)
	}
	for name, vendor := range map[string]string{"": "nvidia", "image": "amd", "nvidia": "nvidia", "amd": "amd", "gaudi": "intel"} {
		if _, err := all.Find(name, vendor); err != nil {
			t.Errorf("setup %q for %s: %v", name, vendor, err)
		}
	}
	for name, vendor := range map[string]string{"nvidia": "amd", "none-such": "amd"} {
		if _, err := all.Find(name, vendor); !schema.Is(err, schema.CodeInvalid) {
			t.Errorf("setup %q for %s: %v", name, vendor, err)
		}
	}
}

func TestAnOwnersSetupTakesThePlaceOfOneByItsName(t *testing.T) {
	t.Parallel()
	all, err := load(t, map[string]string{"nvidia.yaml": "title: ours\nversion: 7\nvendor: nvidia\ndrivers: [{name: a, run: 'true', reboot: true, limit: 90s}]\n", "more.yaml": "title: more\nversion: 1\n"})
	if err != nil {
		t.Fatal(err)
	}
	p, err := all.Find("nvidia", "nvidia")
	if err != nil || p.ID() != "nvidia/7" || len(p.Drivers) != 1 || !p.Drivers[0].Reboot || p.Steps(schema.TaskDrivers)[0].LimitMS != 90_000 || len(p.Runtime) != 0 {
		t.Errorf("it is %+v, %v", p, err)
	}
	if p, err := all.Find("more", "amd"); err != nil || !strings.HasSuffix(p.Source, "more.yaml") {
		t.Errorf("%+v, %v", p, err)
	}
	for want, text := range map[string]string{
		"title":                   "version: 1\n",
		"version: 0":              "title: x\n",
		`name: ""`:                "title: x\nversion: 1\ndrivers: [{run: 'true'}]\n",
		`name: "a"`:               "title: x\nversion: 1\ndrivers: [{name: a, run: 'true'}, {name: a, run: 'true'}]\n",
		"runtime: a: run":         "title: x\nversion: 1\nruntime: [{name: a}]\n",
		"limit: 3h: want up to":   "title: x\nversion: 1\nruntime: [{name: a, run: 'true', limit: 3h}]\n",
		`unknown field "command"`: "title: x\nversion: 1\nruntime: [{name: a, command: 'true'}]\n",
	} {
		if _, err := load(t, map[string]string{"x.yaml": text}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "setup x") {
			t.Errorf("%s: %v, want %q named", text, err, want)
		}
	}
}
