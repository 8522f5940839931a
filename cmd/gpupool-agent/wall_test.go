package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestTheAgentLinksOnlyWhatAServerNeeds: it runs on every server of the pool, beside jobs, and is upgraded there. A
// database, a web framework or the workflow engine in it would be weight and attack surface that nothing there uses.
func TestTheAgentLinksOnlyWhatAServerNeeds(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command: what is linked can't be listed")
	}
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for pkg := range strings.FieldsSeq(string(out)) {
		for _, ban := range []string{"go.temporal.io/", "gorm.io/", "github.com/gin-gonic/", "gpupool/deploy/", "gpupool/api", "gpupool/workflows", "gpupool/activities"} {
			if strings.HasPrefix(pkg, ban) {
				t.Errorf("it links %s", pkg)
			}
		}
	}
}
