package cli

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/png"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"gpupool/api/testpool"
	"gpupool/cmd/gpupool/simcli"
	"gpupool/deploy/lab/bmc"
	"gpupool/schema"
	"gpupool/schema/store"
)

// leakless fails the run where a goroutine is left after the last test.
type leakless struct{ m *testing.M }

func (l leakless) Run() int {
	code := l.m.Run()
	// gorm's cache of statements has a goroutine without an end.
	if err := goleak.Find(goleak.IgnoreAnyFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1")); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

func TestMain(m *testing.M) {
	testscript.Main(leakless{m}, map[string]func(){
		"gpupool": func() {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
			root := Root()
			root.AddCommand(group("pxe", "Network boot", BootWatch()), simcli.Command()) // the binary has them beside the servers' verbs
			code := Execute(ctx, root)
			stop()
			os.Exit(code)
		},
	})
}

// The scripts are sessions at a shell against a real API, each with a pool of its own. Beside testscript's own commands:
//
//	exits CODE COMMAND...            runs it and demands this exit code
//	until PATTERN COMMAND...         runs it again with each change of the pool until its output matches
//	first VAR                        keeps the first line of the last output
//	as NAME ROLE [TENANT [PROJECT]]  goes on with a new token of that role; "as operator" goes back
//	boots SERVER                     records a DHCPACK to it, and a stranger's guess at a token
//	machine VAR SERIAL               starts a lab BMC with this serial; VAR is its port
//	picture FILE                     writes a small PNG
//	same FILE FOLDER                 demands that the folder's only file has the file's bytes
//	break SERVER SLOT                fails an accelerator, which opens a repair; $REPAIR is its id
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			p, err := testpool.Start()
			if err != nil {
				return err
			}
			e.Defer(func() {
				if err := p.Close(); err != nil {
					panic(err) // there is no way to fail from here
				}
			})
			e.Values["pool"] = p
			e.Setenv("GPUPOOL_URL", p.URL)
			e.Setenv("GPUPOOL_TOKEN", p.Token)
			e.Setenv("GPUPOOL_CLIENT_CONFIG", e.WorkDir+"/config.yaml")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": func(ts *testscript.TestScript, _ bool, args []string) {
				want, err := strconv.Atoi(args[0])
				ts.Check(err)
				err = ts.Exec(args[1], args[2:]...)
				got := 0
				if ee, ok := err.(interface{ ExitCode() int }); ok {
					got = ee.ExitCode()
				} else {
					ts.Check(err)
				}
				if got != want {
					ts.Fatalf("%s ends with %d, not %d", strings.Join(args[1:], " "), got, want)
				}
			},
			"until": func(ts *testscript.TestScript, _ bool, args []string) {
				p := ts.Value("pool").(*testpool.Pool)
				want := regexp.MustCompile(args[0])
				late := time.After(time.Minute)
				for {
					w := p.Store.Watch("all")
					ts.Check(ts.Exec(args[1], args[2:]...))
					if want.MatchString(ts.ReadFile("stdout")) {
						w.Close()
						return
					}
					select {
					case <-w.C:
						w.Close()
					case <-late:
						w.Close()
						ts.Fatalf("not within a minute: %s says what matches %s", strings.Join(args[1:], " "), args[0])
					}
				}
			},
			"first": func(ts *testscript.TestScript, _ bool, args []string) {
				line, _, _ := strings.Cut(ts.ReadFile("stdout"), "\n")
				ts.Setenv(args[0], line)
			},
			"as": func(ts *testscript.TestScript, _ bool, args []string) {
				p := ts.Value("pool").(*testpool.Pool)
				if args[0] == "operator" {
					ts.Setenv("GPUPOOL_TOKEN", p.Token)
					return
				}
				args = append(args, "", "")
				token, err := p.NewToken(context.Background(), args[0], schema.Role(args[1]), args[2], args[3])
				ts.Check(err)
				ts.Setenv("GPUPOOL_TOKEN", token)
			},
			"picture": func(ts *testscript.TestScript, _ bool, args []string) {
				var b bytes.Buffer
				ts.Check(png.Encode(&b, image.NewGray(image.Rect(0, 0, 3, 2))))
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), b.Bytes(), 0o644))
			},
			"same": func(ts *testscript.TestScript, _ bool, args []string) {
				files, err := os.ReadDir(ts.MkAbs(args[1]))
				ts.Check(err)
				if len(files) != 1 || ts.ReadFile(args[1]+"/"+files[0].Name()) != ts.ReadFile(args[0]) {
					ts.Fatalf("%s holds %v, not %s's bytes", args[1], files, args[0])
				}
			},
			"boots": func(ts *testscript.TestScript, _ bool, args []string) {
				p := ts.Value("pool").(*testpool.Pool)
				v, err := p.Store.Server(context.Background(), args[0])
				ts.Check(err)
				ts.Check(p.Store.RecordBoots(context.Background(), []time.Time{time.Now(), time.Now()}, []schema.BootEvidence{
					{Kind: "dhcp-ack", MAC: v.MACs, IP: "10.1.0.57", Server: v.ID, Attempt: 2, What: "snponly.efi", Result: "ok"},
					{Kind: "token-refused", IP: "10.1.0.9", What: "user-data", Result: "the token is unknown, expired or revoked"},
				}))
			},
			"machine": func(ts *testscript.TestScript, _ bool, args []string) {
				p, err := bmc.ByName(bmc.Dell)
				ts.Check(err)
				s := bmc.New(p, bmc.Hooks{}, bmc.WithIdentity(bmc.Identity{Serial: args[1]}))
				ts.Check(s.Start())
				ts.Defer(func() { ts.Check(s.Close()) })
				u, err := url.Parse(s.URL())
				ts.Check(err)
				ts.Setenv(args[0], u.Port())
			},
			"break": func(ts *testscript.TestScript, _ bool, args []string) {
				p := ts.Value("pool").(*testpool.Pool)
				r, err := p.Break(context.Background(), args[0], args[1])
				ts.Check(err)
				drained := false
				for !drained { // each change of the pool may be the last job's end
					w := p.Store.Watch("all")
					state, err := p.Store.RepairDrained(context.Background(), r.ID, store.Until{})
					if drained = state != schema.RepairDraining; err == nil && !drained {
						<-w.C
					}
					w.Close()
					ts.Check(err)
				}
				ts.Setenv("REPAIR", r.ID)
			},
		},
	})
}
