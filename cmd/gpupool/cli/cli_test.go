package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"gpupool/schema"
)

func TestEveryWayToEndIsDocumentedOnce(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for _, e := range exitDocs {
		if seen[e.Code] {
			t.Errorf("exit code %d is documented twice", e.Code)
		}
		seen[e.Code] = true
	}
	for code, o := range schema.Outcomes {
		if !seen[o.Exit] {
			t.Errorf("exit code %d of %s is not documented", o.Exit, code)
		}
		if got := Exit(&schema.Error{Code: code}); got != o.Exit {
			t.Errorf("%s ends with %d, not %d", code, got, o.Exit)
		}
	}
	for _, s := range schema.JobStates.States() {
		if s.Ended() && !seen[jobExit(s)] {
			t.Errorf("exit code %d of a job that is %s is not documented", jobExit(s), s)
		}
	}
	for err, want := range map[error]int{
		nil: ExitOK, context.Canceled: ExitInterrupted, errors.New("x"): 1, usageError{errors.New("x")}: 2, &exitError{code: ExitStopped}: ExitStopped, exitAs(7): 7, exitAs(300): ExitJobFailed,
	} {
		if got := Exit(err); got != want {
			t.Errorf("%v ends with %d, not %d", err, got, want)
		}
	}
}

// The page may hold more commands than the client's, since the binary has server roles too.
func TestTheReferencePageIsThatOfTheCommands(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range Root().Commands() {
		var b strings.Builder
		reference(&b, c)
		if !strings.Contains(string(page), b.String()) {
			t.Errorf("docs/reference/cli.md is not up to date for %s; run: go generate ./cmd/...", c.CommandPath())
		}
	}
	for _, e := range exitDocs {
		if !strings.Contains(string(page), e.Text) {
			t.Errorf("docs/reference/cli.md does not tell of exit code %d; run: go generate ./cmd/...", e.Code)
		}
	}
}

func TestEveryCommandSaysWhatItDoes(t *testing.T) {
	t.Parallel()
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: its short help is %q; one clause without a full stop is right", c.CommandPath(), c.Short)
		}
		if !c.HasSubCommands() && !c.Hidden && c.Name() != "completion" && !strings.Contains(c.Example, "gpupool "+strings.TrimPrefix(c.CommandPath(), "gpupool ")) {
			t.Errorf("%s has no example of itself: %q", c.CommandPath(), c.Example)
		}
		if c.RunE == nil && c.Run == nil && c.Parent() != nil {
			t.Errorf("%s does nothing", c.CommandPath())
		}
		for _, s := range c.Commands() {
			walk(s)
		}
	}
	walk(Root())
}

func TestATableIsAsWideAsItMustBeAndHarmless(t *testing.T) {
	t.Parallel()
	tb := newTable("NAME", "WHY")
	tb.row("r1s1", "")
	tb.row("räck-2", "bad\x1b[31m\nline")
	var out bytes.Buffer
	tb.write(&out, "")
	want := "NAME    WHY\nr1s1    -\nräck-2  bad?[31m?line\n"
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Fatal(d)
	}
	out.Reset()
	newTable("A").write(&out, "Nothing.")
	if out.String() != "Nothing.\n" {
		t.Fatalf("%q", out.String())
	}
}

func TestASpreadsheetFormulaBecomesText(t *testing.T) {
	t.Parallel()
	tb := newTable("tenant", "gpu_ms")
	tb.row("=cmd()", "-5")
	var out bytes.Buffer
	if err := tb.csv(&out); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff("tenant,gpu_ms\n'=cmd(),-5\n", out.String()); d != "" {
		t.Fatal(d)
	}
}

func TestFlagValuesAreReadAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int64{"90m": 5_400_000, "7d": 604_800_000, "1d12h": 129_600_000, "45s": 45_000} {
		if got, err := parseDuration(in); err != nil || got != want {
			t.Errorf("%s is %d (%v), not %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "d", "5", "-3m", "1x", "-1d"} {
		if got, err := parseDuration(in); !schema.Is(err, schema.CodeInvalid) {
			t.Errorf("%q is taken as %d (%v)", in, got, err)
		}
	}
	for in, want := range map[string]int64{"1TiB": 1 << 40, "1.5GiB": 3 << 29, "512GB": 512e9, "1024": 1024, "2 MiB": 2 << 20} {
		var z size
		if err := z.Set(in); err != nil || z.bytes != want {
			t.Errorf("%s is %d (%v), not %d", in, z.bytes, err, want)
		}
	}
	for _, in := range []string{"", "x", "-1GiB", "NaN", "1e30TiB"} {
		if err := new(size).Set(in); !schema.Is(err, schema.CodeInvalid) {
			t.Errorf("%q is taken (%v)", in, err)
		}
	}
	for in, want := range map[string]string{"2026-11": "2026-11-01T00:00:00.000Z", "2026-11-30": "2026-11-30T00:00:00.000Z", "2026-11-30T14:00:00+02:00": "2026-11-30T12:00:00.000Z"} {
		var m moment
		if err := m.Set(in); err != nil || m.at.String() != want {
			t.Errorf("%s is %s (%v), not %s", in, m.at, err, want)
		}
	}
}

func TestOnlyNewLinesAreWrittenWhereThereIsNoTerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := newScreen(&out)
	s.show([]line{{"inspect running", "1s"}})
	s.show([]line{{"inspect running", "2s"}})
	s.show([]line{{"inspect done", "2s"}, {"provision running", "0s"}})
	if d := cmp.Diff("inspect running  1s\ninspect done  2s\nprovision running  0s\n", out.String()); d != "" {
		t.Fatal(d)
	}
}

func TestTheBlockIsDrawnAgainInPlaceOnATerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &screen{w: &out, live: true, width: 12}
	s.show([]line{{"a", ""}, {"a line that is too long", ""}})
	s.show([]line{{"b", ""}})
	if d := cmp.Diff("a\na line tha…\n\x1b[2A\x1b[Jb\n", out.String()); d != "" {
		t.Fatal(d)
	}
}

func TestATokenGoesOnlyWhereItBelongs(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "config.yaml")
	for _, v := range []string{"GPUPOOL_URL", "GPUPOOL_TOKEN", "GPUPOOL_CA", "GPUPOOL_PROFILE", "GPUPOOL_INSECURE"} {
		t.Setenv(v, "")
	}
	t.Setenv("GPUPOOL_CLIENT_CONFIG", path)
	kept := profiles{Current: "prod", Profiles: map[string]Profile{
		"prod": {URL: "https://pool.example.org", Token: "gpt_prod"}, "lab": {URL: "http://127.0.0.1:9", Token: "gpt_lab"},
	}}
	if err := kept.save(path); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Fatalf("the file with tokens has mode %v (%v)", fi.Mode(), err)
	}
	check := func(name, url, profile string, want Profile) {
		t.Helper()
		got, err := resolve(url, profile)
		if err != nil || got != want {
			t.Errorf("%s: %+v (%v), not %+v", name, got, err, want)
		}
	}
	check("the current profile", "", "", Profile{URL: "https://pool.example.org", Token: "gpt_prod"})
	check("a named profile", "", "lab", Profile{URL: "http://127.0.0.1:9", Token: "gpt_lab"})
	check("another address does not get the profile's token", "https://other.example.org", "", Profile{URL: "https://other.example.org"})
	check("a slash at the end is the same address", "https://pool.example.org/", "", Profile{URL: "https://pool.example.org", Token: "gpt_prod"})
	if _, err := resolve("http://pool.example.org", ""); !schema.Is(err, schema.CodeInvalid) {
		t.Errorf("a token would cross the network in clear: %v", err)
	}
	if _, err := resolve("", "nope"); !schema.Is(err, schema.CodeInvalid) || !strings.Contains(err.Error(), "lab, prod") {
		t.Errorf("an unknown profile: %v", err)
	}
	t.Setenv("GPUPOOL_URL", "https://env.example.org")
	t.Setenv("GPUPOOL_TOKEN", "gpt_env")
	check("the environment", "", "", Profile{URL: "https://env.example.org", Token: "gpt_env"})
	if err := os.WriteFile(path, []byte("current: a\nprofles: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := resolve("", ""); !schema.Is(err, schema.CodeInvalid) || !strings.Contains(err.Error(), "profles") {
		t.Errorf("a misspelt field is passed over: %v", err)
	}
}

func TestAnErrorShowsFieldMessageAndHint(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	printError(&out, schema.Invalid("servers[3].macs", "zz:1", "six pairs of hexadecimal digits"))
	printError(&out, schema.Invalid("job.project", "", "a project of tenant acme"))
	printError(&out, &schema.Error{Code: schema.CodeUnauthenticated, Message: "no credential was sent", Hint: "send a header"})
	want := "error: servers[3].macs: \"zz:1\" is not valid\nhint:  six pairs of hexadecimal digits\n" +
		"error: job.project: is missing\nhint:  a project of tenant acme\n" +
		"error: no credential was sent\nhint:  gpupool login, or set GPUPOOL_TOKEN\n"
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Fatal(d)
	}
}

func TestUsageErrorsEndWithTwo(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"nonsense"}, {"server", "nonsense"}, {"server", "show"}, {"job", "submit", "--", "true"}, {"job", "submit", "--spec", "a"}, {"server", "list", "--nonsense"},
		{"server", "cordon", "a"}, {"server", "onboard"}, {"server", "onboard", "a", "--all"}, {"job", "submit", "--spec", "a", "--time-limit", "soon", "--", "true"},
		{"overview", "-o", "xml"}, {"overview", "--url", "ftp://x"}, {"usage", "--by", "colour"}, {"quota", "set", "--tenant", "a", "--model", "b"}, {"job", "cancel"},
	} {
		root := Root()
		var errOut bytes.Buffer
		root.SetArgs(args)
		root.SetOut(&bytes.Buffer{})
		root.SetErr(&errOut)
		if got := Execute(t.Context(), root); got != 2 || !strings.HasPrefix(errOut.String(), "error: ") {
			t.Errorf("gpupool %s ends with %d: %s", strings.Join(args, " "), got, errOut.String())
		}
	}
}

func TestAnInterruptedCommandSaysWhetherItStartedAnything(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"pxe watch":                "interrupted\n",
		"events -f":                "interrupted\n",
		"project create acme main": "interrupted; what was started goes on in the pool\n",
	} {
		ctx, interrupt := context.WithCancel(t.Context())
		hung := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && r.URL.Path != "/v1/events" {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, `{"items":[]}`)
				return
			}
			interrupt()
			<-ctx.Done()
		}))
		root := Root()
		root.AddCommand(group("pxe", "Network boot", BootWatch()))
		var errOut bytes.Buffer
		root.SetArgs(append(strings.Fields(line), "--url", hung.URL))
		root.SetOut(&bytes.Buffer{})
		root.SetErr(&errOut)
		if got := Execute(ctx, root); got != ExitInterrupted || errOut.String() != want {
			t.Errorf("gpupool %s ends with %d and says %q", line, got, errOut.String())
		}
		interrupt()
		hung.Close()
	}
}
