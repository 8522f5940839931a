package labcli_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"gpupool/cmd/gpupool/cli"
	"gpupool/cmd/gpupool/labcli"
	"gpupool/deploy/lab"
)

func TestALabsRefusalNamesWhatWouldBeRight(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "lab")
	do := func(args ...string) (int, string) {
		var said bytes.Buffer
		root := &cobra.Command{Use: "gpupool"}
		root.AddCommand(labcli.Command())
		root.SetArgs(append([]string{"lab", "--dir", dir}, args...))
		root.SetOut(&said)
		root.SetErr(&said)
		return cli.Execute(t.Context(), root), said.String()
	}
	if code, said := do("state"); code != 6 || !strings.Contains(said, "no lab runs in "+dir) || !strings.Contains(said, "hint:") {
		t.Fatalf("without a lab it ends with %d: %s", code, said)
	}
	server := lab.Demo()[0]
	server.Name = "r1s1"
	l, err := lab.New(lab.Config{Dir: dir, Servers: []lab.ServerConfig{server}, BMCNet: "127.91.0.0/16", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(20 * time.Second); ; { // until its control answers
		code, said := do("state")
		if code == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the lab does not answer: %d: %s", code, said)
		}
	}
	for args, want := range map[string]struct {
		code int
		says string
	}{
		"fault r1s1 SXM3 xid79":      {0, "r1s1 SXM3 has xid79"},
		"fault r1s1 SXM3 nothing":    {2, "want one of boot-hang, "},
		"fault r1s1 SXM3 boot-hang":  {2, "is the whole server's"},
		"fault r9 SXM3 xid79":        {2, `no server "r9"`},
		"fault r1s1 SXM9 xid79":      {2, "want a slot of [SXM1 "},
		"fault r1s1 SXM3":            {2, "gpupool lab fault SERVER DEVICE KIND"},
		"clear r1s1 SXM3 nothing":    {2, "want one of boot-hang, "},
		"clear r1s1 - no-dhcp":       {0, "r1s1 - has no-dhcp no more"},
		"replace r1s1 SXM9 NEW":      {2, "want a slot of [SXM1 "},
		"replace r1s1 SXM2 NEW":      {0, "r1s1 SXM2 holds NEW"},
		"bmc r1s1":                   {2, "the rule does nothing"},
		"bmc r1s1 --status 9999":     {2, "want 100 to 599"},
		"bmc r1s1 --status 503":      {0, "the BMC of r1s1 misbehaves"},
		"bmc r1s1 --mend":            {0, "the BMC of r1s1 is as it was"},
		"bmc r9 --mend":              {2, `no server "r9"`},
		"state --dir /nowhere/there": {6, "no lab runs in /nowhere/there"},
	} {
		if code, said := do(strings.Fields(args)...); code != want.code || !strings.Contains(said, want.says) {
			t.Errorf("%s: %d, want %d and %q: %s", args, code, want.code, want.says, said)
		}
	}
	// What is ordered is what the BMC then does.
	_, said := do("enrollment")
	address := regexp.MustCompile(`https?://127\.91\.[0-9.:]+`).FindString(said)
	if address == "" {
		t.Fatalf("no BMC's address in %s", said)
	}
	status := func() int {
		t.Helper()
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // the lab's own, self-signed
		resp, err := c.Get(address + "/redfish/v1/")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for _, step := range []struct {
		args string
		want []int
	}{{"bmc r1s1 --mend", []int{200}}, {"bmc r1s1 --path /redfish/v1/** --status 503 --count 2", []int{503, 503, 200}}, {"bmc r1s1 --status 500", []int{500, 500}}, {"bmc r1s1 --mend", []int{200}}} {
		if code, said := do(strings.Fields(step.args)...); code != 0 {
			t.Fatalf("%s: %d: %s", step.args, code, said)
		}
		for i, want := range step.want {
			if got := status(); got != want {
				t.Errorf("after %s request %d is answered %d, want %d", step.args, i, got, want)
			}
		}
	}
}
