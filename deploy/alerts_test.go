package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestAlertsComeWhenTheyShould has promtool check every rule, and run the series of deploy/prometheus/*-test.yaml through them.
func TestAlertsComeWhenTheyShould(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian: prometheus; `make test` installs it where it may)")
	}
	rules, tests := files(t, "prometheus/*-alerts.yaml"), files(t, "prometheus/*-test.yaml")
	for _, args := range [][]string{append([]string{"check", "rules"}, rules...), append([]string{"test", "rules"}, tests...)} {
		if out, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// TestEveryAlertSaysWhatToDo holds that the runbook has a section for each alert and for nothing else, and that each one's
// coming is among the series that promtool runs.
func TestEveryAlertSaysWhatToDo(t *testing.T) {
	t.Parallel()
	names := func(pattern, inFiles string) []string {
		var out []string
		for _, f := range files(t, inFiles) {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)`+pattern).FindAllStringSubmatch(string(b), -1) {
				out = append(out, m[1])
			}
		}
		return out
	}
	alerts := names(`^ +- alert: (\w+)$`, "prometheus/*-alerts.yaml")
	sections := names(`^## (\w+)$`, "../docs/runbook/alerts.md")
	proven := names(`alertname: (\w+)`, "prometheus/*-test.yaml")
	count := func(in []string, s string) int { return strings.Count("\n"+strings.Join(in, "\n\n")+"\n", "\n"+s+"\n") }
	for _, a := range alerts {
		if count(alerts, a) != 1 || count(sections, a) != 1 {
			t.Errorf("alert %s stands %d times in the rules and %d times in docs/runbook/alerts.md, once each would be right", a, count(alerts, a), count(sections, a))
		}
		if count(proven, a) == 0 {
			t.Errorf("alert %s: no series of deploy/prometheus/*-test.yaml makes it come", a)
		}
	}
	if len(alerts) == 0 || len(sections) != len(alerts) {
		t.Errorf("%d alerts, %d sections in docs/runbook/alerts.md", len(alerts), len(sections))
	}
}

func files(t *testing.T, pattern string) []string {
	t.Helper()
	out, err := filepath.Glob(pattern)
	if err != nil || len(out) == 0 {
		t.Fatalf("%s: %v", pattern, err)
	}
	return out
}
