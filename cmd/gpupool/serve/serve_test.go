package serve

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"gpupool/schema"
	"gpupool/worker/config"
)

func root() *cobra.Command {
	r := &cobra.Command{Use: "gpupool", SilenceErrors: true, SilenceUsage: true}
	r.AddCommand(Commands()...)
	return r
}

// parses has the command line taken as the binary would, without running it.
func parses(t *testing.T, args []string) {
	t.Helper()
	c, rest, err := root().Find(args)
	if err == nil && !c.Runnable() {
		t.Fatalf("%q runs nothing", args)
	}
	if err == nil {
		err = c.ParseFlags(rest)
	}
	if err == nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
}

func TestDoctorSaysWhatToDoAndFailsWhereServersCannotBoot(t *testing.T) {
	t.Parallel()
	doctor := func(args ...string) (string, error) {
		r, out := root(), &bytes.Buffer{}
		r.SetOut(out)
		r.SetArgs(append([]string{"pxe", "doctor", "--data-dir", t.TempDir()}, args...))
		err := r.ExecuteContext(t.Context())
		return out.String(), err
	}
	if _, err := doctor(); err == nil || !strings.Contains(err.Error(), "network boot is off") {
		t.Fatalf("without network boot: %v", err)
	}
	dir := t.TempDir()
	set := []string{"--set", "pxe.boot_dir=" + dir, "--set", "api.external_url=http://127.0.0.1:1"}
	for _, s := range labSettings() {
		set = append(set, "--set", s)
	}
	out, err := doctor(set...)
	if err == nil || schema.CodeOf(err) != schema.CodeUnavailable || !strings.Contains(out, "failed   boot files") || !strings.Contains(out, "hint: deploy/pxe/boot-files.sh "+dir) {
		t.Fatalf("without boot files: %v\n%s", err, out)
	}
	for _, f := range []string{"undionly.kpxe", "snponly.efi", "snponly-arm64.efi"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := doctor(append(set, "-o", "json")...); err != nil || !strings.Contains(out, `"name":"boot files","verdict":"ok"`) {
		t.Fatalf("with all it needs: %v\n%s", err, out)
	}
}

func TestTheUnitsAndTheComposeFileCallVerbsThatAre(t *testing.T) {
	t.Parallel()
	units, err := filepath.Glob("../../../deploy/systemd/*.service")
	if err != nil || len(units) == 0 {
		t.Fatalf("no units: %v", err)
	}
	calls := 0
	for _, unit := range units {
		b, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		if m := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/gpupool (.*)$`).FindSubmatch(b); m != nil {
			parses(t, strings.Fields(strings.ReplaceAll(string(m[1]), "%i", "lulea-1")))
			calls++
		}
	}
	if calls < 1+len(config.Roles()) {
		t.Fatalf("%d units run gpupool", calls)
	}
	b, err := os.ReadFile("../../../deploy/compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct{ Command []string }
	}
	if err := yaml.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	for _, r := range config.Roles() {
		command := file.Services[string(r)].Command
		for i := range command {
			command[i] = regexp.MustCompile(`\$\{[A-Z_]+:-([^}]*)\}`).ReplaceAllString(command[i], "$1")
		}
		parses(t, command)
	}
}

// run runs a verb that only prints.
func run(t *testing.T, args ...string) (out, msg string, err error) {
	t.Helper()
	var o, e bytes.Buffer
	r := root()
	r.SetArgs(args)
	r.SetOut(&o)
	r.SetErr(&e)
	err = r.ExecuteContext(t.Context())
	return o.String(), e.String(), err
}

func TestFlagsOfARoleGoBeforeTheFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "gpupool.yaml")
	if err := os.WriteFile(file, []byte("data_dir: /srv/file\nsites: [a]\nregions: [x]\ndatabase: {driver: postgres, dsn: 'postgres://u:hunter2@db/x'}\nsecrets: {key_file: s}\ntemporal: {mode: external, payload_key_file: p}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &flags{file: file, sites: []string{"b", "c"}, regions: []string{"y"}, dataDir: "/srv/flag"}
	c, err := f.load([]config.Role{config.RoleWorker})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Sites, f.sites) || !slices.Equal(c.Regions, f.regions) || c.DataDir != f.dataDir || !slices.Equal(c.Roles, []config.Role{config.RoleWorker}) {
		t.Fatalf("sites %v, regions %v, data_dir %s, roles %v", c.Sites, c.Regions, c.DataDir, c.Roles)
	}
	out, _, err := run(t, "config", "show", "-c", file, "--set", "log.level=debug")
	if err != nil || !strings.Contains(out, "level: debug") || !strings.Contains(out, "driver: postgres") || strings.Contains(out, "hunter2") {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, _, err := run(t, "config", "show", "-c", file, "--set", "log.level=loud"); !schema.Is(err, schema.CodeInvalid) || !strings.Contains(err.Error(), "log.level") {
		t.Fatalf("got %v, want a wrong log.level as wrong input", err)
	}
}

func TestKeysAreMadeForTheFileThatNeedsThem(t *testing.T) {
	t.Parallel()
	one, _, err := run(t, "keys", "payload")
	if err != nil {
		t.Fatal(err)
	}
	two, _, err := run(t, "keys", "payload")
	if err != nil || one == two {
		t.Fatalf("the same key twice (%v)", err)
	}
	path := filepath.Join(t.TempDir(), "secrets.keys")
	out, _, err := run(t, "keys", "secrets", path)
	if err != nil || out != "" {
		t.Fatalf("%v, printed %q", err, out)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	if _, _, err := run(t, "keys", "secrets", path); !schema.Is(err, schema.CodeConflict) {
		t.Fatalf("got %v, want a conflict: a key file must not be replaced", err)
	}
}

func TestTheExampleIsAConfiguration(t *testing.T) {
	t.Parallel()
	out, _, err := run(t, "config", "example")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "gpupool.yaml")
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (&flags{file: file}).load(nil); err != nil {
		t.Fatal(err)
	}
}
