package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"gpupool/worker/config"
)

// TestComposeFile has the compose file read by compose itself, with every profile.
func TestComposeFile(t *testing.T) {
	t.Parallel()
	compose := composeCommand(t)
	cmd := exec.Command(compose[0], append(compose[1:], "-f", "compose.yaml", "--profile", "pxe", "config", "-q")...)
	cmd.Dir = "compose"
	cmd.Env = append(os.Environ(), "POSTGRES_PASSWORD=x")
	if out, err := cmd.CombinedOutput(); err != nil || len(strings.TrimSpace(string(out))) != 0 {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	// Without a password it refuses to guess one.
	cmd = exec.Command(compose[0], append(compose[1:], "-f", "compose.yaml", "config", "-q")...)
	cmd.Dir = "compose"
	cmd.Env = append(os.Environ(), "POSTGRES_PASSWORD=")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "choose one") {
		t.Fatalf("without a password: %v\n%s", err, out)
	}
}

// composeCommand is the plugin, or the program of its own that Debian has.
func composeCommand(t *testing.T) []string {
	if exec.Command("docker", "compose", "version").Run() == nil {
		return []string{"docker", "compose"}
	}
	if path, err := exec.LookPath("docker-compose"); err == nil {
		return []string{path}
	}
	t.Skip("neither `docker compose` nor docker-compose is installed; `make test` installs it where it may")
	return nil
}

// TestComposeEnvironmentIsConfiguration reads what the compose file sets as gpupool will.
func TestComposeEnvironmentIsConfiguration(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("compose/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Command     []string
			Environment map[string]string
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	// ${NAME:-default} and ${NAME:?reason}, as compose fills them in.
	variable := regexp.MustCompile(`\$\{[A-Z_]+:[-?]([^}]*)\}`)
	for _, role := range config.Roles() {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			service, ok := file.Services[string(role)]
			if !ok || len(service.Command) == 0 || service.Command[0] != string(role) {
				t.Fatalf("the service runs %q", service.Command)
			}
			s := config.Source{Environ: []string{"HOME=" + t.TempDir()}, Set: []string{"roles=" + string(role)}}
			if role == config.RolePXE {
				s.File = "compose/pxe.yaml"
			}
			for name, value := range service.Environment {
				s.Environ = append(s.Environ, name+"="+variable.ReplaceAllString(value, "$1"))
			}
			c, err := config.Load(s)
			if err != nil {
				t.Fatal(err)
			}
			if c.Database.Driver != config.Postgres || role != config.RolePXE && c.Temporal.Mode != config.External {
				t.Fatalf("not the shared database and Temporal:\n%s", c)
			}
		})
	}
}

// TestTheGuidesConfigurationIsOne reads the file that the guide shows as each role will.
func TestTheGuidesConfigurationIsOne(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../docs/how-to/roles.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, ok := strings.Cut(string(guide), "```yaml\n")
	shown, _, closed := strings.Cut(shown, "```")
	if !ok || !closed {
		t.Fatal("the guide shows no configuration")
	}
	file := filepath.Join(t.TempDir(), "gpupool.yaml")
	if err := os.WriteFile(file, []byte(shown), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, role := range config.Roles() {
		c, err := config.Load(config.Source{File: file, Environ: []string{"HOME=" + t.TempDir()}, Set: []string{"roles=" + string(role)}})
		if err != nil {
			t.Fatalf("%s: %v", role, err)
		}
		if w := c.Warnings(); len(w) != 0 {
			t.Errorf("%s warns: %q", role, w)
		}
		if !strings.Contains(string(guide), "`gpupool "+string(role)) || !strings.Contains(string(guide), "gpupool-"+string(role)) {
			t.Errorf("the guide does not start the role %s", role)
		}
	}
}

// TestSystemdUnits has the units read by systemd itself, and their exposure judged by it.
func TestSystemdUnits(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed; `make test` installs it where it may")
	}
	units, err := filepath.Glob("systemd/*.service")
	if err != nil || len(units) < 6 {
		t.Fatalf("%d units, %v", len(units), err)
	}
	for _, unit := range units {
		name := filepath.Base(unit)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(unit)
			if err != nil {
				t.Fatal(err)
			}
			// systemd checks that the program is there, so one stands in for ours.
			dir := t.TempDir()
			program := filepath.Join(dir, "program")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			text = regexp.MustCompile(`(?m)^ExecStart=\S+`).ReplaceAll(text, []byte("ExecStart="+program))
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(analyze, "verify", "--man=no", "--recursive-errors=no", path).CombinedOutput(); err != nil || strings.Contains(string(out), name) {
				t.Fatalf("verify: %v\n%s", err, out)
			}
			if name == "gpupool-agent.service" { // root by nature
				return
			}
			// In tenths of systemd's exposure score: 0 is closed, 100 open; a plain root service has 96.
			if out, err := exec.Command(analyze, "security", "--offline=yes", "--threshold=35", path).CombinedOutput(); err != nil {
				t.Fatalf("exposed: %v\n%s", err, out)
			}
		})
	}
}

// TestUnitsFollowTheRoles: a role without a unit, or a unit for no role, is a mistake in one of them.
func TestUnitsFollowTheRoles(t *testing.T) {
	t.Parallel()
	for _, role := range config.Roles() {
		found, err := filepath.Glob("systemd/gpupool-" + string(role) + "*.service")
		if err != nil || len(found) != 1 {
			t.Fatalf("role %s has the units %v", role, found)
		}
		text, err := os.ReadFile(found[0])
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "ExecStart=/usr/bin/gpupool "+string(role)+" ") {
			t.Fatalf("%s doesn't run the role %s", found[0], role)
		}
	}
}
