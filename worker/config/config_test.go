package config

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// home is an environment in which defaults have a place to go.
func home(t *testing.T, more ...string) []string {
	return append([]string{"HOME=" + t.TempDir(), "PATH=/bin"}, more...)
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpupool.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func load(t *testing.T, s Source) *Config {
	t.Helper()
	c, err := Load(s)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNothingSetRunsEverythingInOneProcess(t *testing.T) {
	t.Parallel()
	c := load(t, Source{Environ: home(t)})
	if diff := cmp.Diff(Roles(), c.Roles); diff != "" {
		t.Fatal(diff)
	}
	if c.Database.Driver != SQLite || c.Temporal.Mode != Embedded || c.API.Listen != "127.0.0.1:8080" || c.PXE.Mode != PXEOff {
		t.Fatalf("defaults:\n%s", c)
	}
	if c.URL("") != "http://127.0.0.1:8080" || c.URL("[::]:41000") != "http://127.0.0.1:41000" {
		t.Fatalf("URL: %s, %s", c.URL(""), c.URL("[::]:41000"))
	}
	if w := c.Warnings(); len(w) != 0 {
		t.Fatalf("the defaults warn: %q", w)
	}
}

func TestLaterSourcesWin(t *testing.T) {
	t.Parallel()
	path := file(t, `
data_dir: /srv/from-file
api:
  listen: 127.0.0.1:1001
  external_url: https://pool.example.net/
temporal:
  retention: 24h
sites: [a, b]
`)
	c := load(t, Source{
		Environ: home(t, FileEnv+"="+path, "GPUPOOL_API_LISTEN=127.0.0.1:1002", "GPUPOOL_SITES=c,d", "GPUPOOL_LOG_LEVEL=",
			"GPUPOOL_DATABASE_MAX_CONNECTIONS=40", "GPUPOOL_PXE_SECURE_BOOT=true", "GPUPOOL_TOKEN=not-a-setting"),
		Set: []string{"api.listen=127.0.0.1:1003", "temporal.retention=168h",
			`pxe.subnets=[{cidr: 10.0.0.0/24, range: 10.0.0.10-10.0.0.20, dns: [10.0.0.2]}]`},
	})
	got := Config{DataDir: c.DataDir, API: c.API, Sites: c.Sites, Log: Log{Level: c.Log.Level},
		Temporal: Temporal{Retention: c.Temporal.Retention}, Database: Database{MaxConnections: c.Database.MaxConnections},
		PXE: PXE{SecureBoot: c.PXE.SecureBoot, Subnets: c.PXE.Subnets}}
	want := Config{DataDir: "/srv/from-file", API: API{Listen: "127.0.0.1:1003", ExternalURL: "https://pool.example.net/"},
		Sites: []string{"c", "d"}, Log: Log{Level: LevelInfo}, Temporal: Temporal{Retention: 168 * time.Hour}, Database: Database{MaxConnections: 40},
		PXE: PXE{SecureBoot: true, Subnets: []Subnet{{CIDR: "10.0.0.0/24", Range: "10.0.0.10-10.0.0.20", DNS: []string{"10.0.0.2"}}}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	if c.URL("") != "https://pool.example.net" {
		t.Fatalf("URL is %s", c.URL(""))
	}
}

func TestWrongNamesAndShapesAreNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file, env, set string
		want           []string
	}{
		"a misspelt name in the file, with its line and the right one": {
			file: "api:\n  lisen: :80\n", want: []string{"gpupool.yaml:2:", `"lisen"`, `did you mean "listen"`},
		},
		"a name in the file that is like nothing":  {file: "colour: blue\n", want: []string{`no setting "colour"`, "config reference"}},
		"an unknown field in a list of the file":   {file: "pxe:\n  subnets:\n    - cdir: 10.0.0.0/8\n", want: []string{`"cdir"`, `"cidr"`}},
		"a text where the file needs a number":     {file: "database:\n  max_connections: many\n", want: []string{"gpupool.yaml:", "2:20", "many"}},
		"a duration without a unit in the file":    {file: "temporal:\n  retention: 72x\n", want: []string{"72x"}},
		"a name twice in the file":                 {file: "roles: [api]\nroles: [pxe]\n", want: []string{"roles"}},
		"no YAML at all":                           {file: "api: [", want: []string{"gpupool.yaml:"}},
		"a misspelt name in the environment":       {env: "GPUPOOL_API_LISTN=x", want: []string{"GPUPOOL_API_LISTN", "GPUPOOL_API_LISTEN"}},
		"a text where the environment is a number": {env: "GPUPOOL_DATABASE_MAX_CONNECTIONS=lots", want: []string{"GPUPOOL_DATABASE_MAX_CONNECTIONS", "lots", "40"}},
		"a misspelt name on the command line":      {set: "api.lsten=x", want: []string{"api.lsten", "api.listen"}},
		"no value on the command line":             {set: "api.listen", want: []string{"path=value"}},
		"an unknown field on the command line":     {set: "pxe.subnets=[{cdir: x}]", want: []string{"pxe.subnets"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Source{Environ: home(t)}
			if c.file != "" {
				s.File = file(t, c.file)
			}
			if c.env != "" {
				s.Environ = append(s.Environ, c.env)
			}
			if c.set != "" {
				s.Set = []string{c.set}
			}
			_, err := Load(s)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Fatalf("%q is not in the error:\n%v", want, err)
				}
			}
		})
	}
}

func TestAFileThatIsNotThereIsAnError(t *testing.T) {
	t.Parallel()
	if _, err := Load(Source{File: filepath.Join(t.TempDir(), "none.yaml"), Environ: home(t)}); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
	load(t, Source{File: file(t, "# nothing set\n"), Environ: home(t)})
}

func TestValuesThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  []string
		want string // the fields that are wrong, in order
	}{
		"all wrong things are reported at once": {
			[]string{"durability=maybe", "roles=api,cook", "log.level=loud", "api.listen=8080"},
			"durability roles api.listen log.level temporal.mode database.driver",
		},
		"half of TLS":                               {[]string{"api.tls_cert=c.pem"}, "api.tls_key"},
		"the other half":                            {[]string{"api.tls_key=k.pem"}, "api.tls_cert"},
		"a region that can't be part of a name":     {[]string{"regions=Nord"}, "regions"},
		"a site twice":                              {[]string{"sites=a,b,a"}, "sites"},
		"an address with a query":                   {[]string{"api.external_url=https://x.example?a=b"}, "api.external_url"},
		"an address without a scheme":               {[]string{"api.external_url=x.example"}, "api.external_url"},
		"a bracket that isn't closed":               {[]string{"api.external_url=http://[::1"}, "api.external_url"},
		"a URL's port that isn't one":               {[]string{"api.external_url=https://x.example:99999"}, "api.external_url"},
		"BMCs' events to no host":                   {[]string{"bmc.event_url=https://:8443"}, "bmc.event_url"},
		"a port that isn't one":                     {[]string{"api.listen=:65536"}, "api.listen"},
		"no connections":                            {[]string{"database.max_connections=1"}, "database.max_connections"},
		"retention under Temporal's least":          {[]string{"temporal.retention=10m"}, "temporal.retention"},
		"postgres without a DSN and shared secrets": {[]string{"database.driver=postgres"}, "database.dsn secrets.key_file"},
		"a URL for sqlite":                          {[]string{"database.dsn=postgres://x/y"}, "database.dsn"},
		"external Temporal without payload keys":    {[]string{"temporal.mode=external"}, "temporal.payload_key_file"},
		"external Temporal on no port":              {[]string{"temporal.mode=external", "temporal.payload_key_file=k", "temporal.address=t"}, "temporal.address"},
		"embedded Temporal open to the network":     {[]string{"temporal.address=0.0.0.0:7233"}, "temporal.address"},
		"one role with embedded parts":              {[]string{"roles=api"}, "temporal.mode database.driver"},
		"network boot alone needs no Temporal":      {[]string{"roles=pxe"}, "database.driver"},
		"PXE without networks and identity":         {[]string{"pxe.mode=full"}, "pxe.server_id pxe.subnets"},
		"a network with host bits": {
			[]string{"pxe.mode=full", "pxe.server_id=10.0.0.1", "pxe.subnets=[{cidr: 10.0.0.1/24}]"}, "pxe.subnets[0].cidr",
		},
		"a range that runs backwards": {
			[]string{"pxe.mode=full", "pxe.server_id=10.0.0.1", "pxe.subnets=[{cidr: 10.0.0.0/24, range: 10.0.0.9-10.0.0.2}]"}, "pxe.subnets[0].range",
		},
		"a range and a router outside their network": {
			[]string{"pxe.mode=full", "pxe.server_id=10.0.0.1", "pxe.subnets=[{cidr: 10.0.0.0/24, range: 10.0.0.9-10.0.1.2, router: 10.9.0.1}]"}, "pxe.subnets[0].range pxe.subnets[0].router",
		},
		"several ranges, one outside": {
			[]string{"pxe.mode=full", "pxe.server_id=10.0.0.1", "pxe.subnets=[{cidr: 10.0.0.0/24, range: '10.0.0.2-10.0.0.9, 10.0.1.2-10.0.1.9'}]"}, "pxe.subnets[0].range",
		},
		"relays, time servers and an MTU that can't be": {
			[]string{"pxe.mode=full", "pxe.server_id=10.0.0.1", "pxe.subnets=[{cidr: 10.0.0.0/24, relays: [here], ntp: ['fe80::1'], mtu: 100}]"}, "pxe.subnets[0].relays pxe.subnets[0].ntp pxe.subnets[0].mtu",
		},
		"a lease of a second":                       {[]string{"pxe.lease_time=1s"}, "pxe.lease_time pxe.boot_lease_time"},
		"firmware's lease longer than the system's": {[]string{"pxe.lease_time=5m", "pxe.boot_lease_time=6m"}, "pxe.boot_lease_time"},
		"IPv6 without an address, in a network that is too small": {
			[]string{"pxe.mode=full", "pxe.server_id=10.0.0.1", "pxe.subnets=[{cidr: 10.0.0.0/24}]", "pxe.ipv6.subnets=[{cidr: '2001:db8::/80', dns: [10.0.0.53]}]"}, "pxe.ipv6.address pxe.ipv6.subnets[0].cidr pxe.ipv6.subnets[0].dns",
		},
		"IPv6 beside another's DHCP": {
			[]string{"pxe.mode=proxy", "pxe.server_id=10.0.0.1", "pxe.subnets=[{cidr: 10.0.0.0/24}]", "pxe.ipv6.address=2001:db8::2", "pxe.ipv6.subnets=[{cidr: '2001:db8::/64'}]"}, "pxe.ipv6.subnets",
		},
		"half of the boot service's TLS":             {[]string{"pxe.tls_key=k.pem"}, "pxe.tls_cert"},
		"a first program that is no boot file":       {[]string{"pxe.stages={x64: ../../etc/passwd, sparc: a}"}, "pxe.stages pxe.stages"},
		"a boot port that isn't one":                 {[]string{"pxe.boot_listen=4011"}, "pxe.boot_listen"},
		"waits that are none, and ones for ever":     {[]string{"timing.phone_home=-1s", "timing.burn_in=100ms", "timing.technician=9000h"}, "timing.phone_home timing.burn_in timing.technician"},
		"a queue's order that there is not":          {[]string{"queue.order=random", "queue.placement=anywhere", "queue.reservations=100"}, "queue.order queue.placement queue.reservations"},
		"a policy of times that are none":            {[]string{"queue.half_life=1s", "queue.min_run_time=-1m", "queue.entry_penalty=48h"}, "queue.half_life queue.entry_penalty queue.min_run_time"},
		"a heartbeat that always looks like silence": {[]string{"timing.heartbeat=20s"}, "timing.heartbeat"},
		"power cut under who is not even silent":     {[]string{"timing.agent_silent=20m"}, "timing.power_cut"},
		"no server is ever installed":                {[]string{"limits.installs_per_site=-1"}, "limits.installs_per_site"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Load(Source{Environ: home(t), Set: c.set})
			if err == nil {
				t.Fatal("accepted")
			}
			var got []string
			for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
				var f *FieldError
				if !errors.As(e, &f) {
					t.Fatalf("%v is no FieldError", e)
				}
				got = append(got, f.Field)
			}
			if diff := cmp.Diff(strings.Fields(c.want), got); diff != "" {
				t.Fatalf("%s\n%v", diff, err)
			}
		})
	}
}

func TestWaitsAreSetOneByOne(t *testing.T) {
	t.Parallel()
	want := DefaultTiming
	want.PhoneHome, want.AgentSilent = 45*time.Minute, 2*time.Minute
	c := load(t, Source{Environ: home(t, "GPUPOOL_TIMING_PHONE_HOME=45m"), Set: []string{"timing.agent_silent=2m"}})
	if diff := cmp.Diff(want, c.Timing); diff != "" {
		t.Fatal(diff)
	}
	for _, s := range Settings() { // what the page says is what is done
		name, ok := strings.CutPrefix(s.Path, "timing.")
		if !ok {
			continue
		}
		said, err := time.ParseDuration(s.Zero)
		if err != nil {
			t.Fatalf("%s: left out %q is no time", s.Path, s.Zero)
		}
		found := false
		DefaultTiming.each(func(n string, have *time.Duration, _ time.Duration) {
			if n == name {
				found = *have == said
			}
		})
		if !found {
			t.Errorf("%s: left out it is said to be %s", s.Path, said)
		}
	}
}

func TestTheBootServiceIsReachedByItsOwnScheme(t *testing.T) {
	t.Parallel()
	set := []string{"pxe.mode=full", "pxe.server_id=10.0.0.1", "pxe.subnets=[{cidr: 10.0.0.0/24}]"}
	c := load(t, Source{Environ: home(t), Set: set})
	if c.PXE.ExternalURL != "http://10.0.0.1:8081" || c.PXE.BootListen != ":4011" {
		t.Fatalf("it is reached at %s and asked on %s", c.PXE.ExternalURL, c.PXE.BootListen)
	}
	c = load(t, Source{Environ: home(t), Set: append(set, "pxe.tls_cert=c", "pxe.tls_key=k", "pxe.mode=relay")})
	if c.PXE.ExternalURL != "https://10.0.0.1:8081" || c.PXE.BootListen != Off {
		t.Fatalf("with TLS it is reached at %s and relayed clients ask on %s", c.PXE.ExternalURL, c.PXE.BootListen)
	}
}

func TestRolesAsProcessesOfTheirOwn(t *testing.T) {
	t.Parallel()
	shared := []string{"database.driver=postgres", "database.dsn=postgres://gpupool@db/gpupool", "secrets.key_file=s",
		"temporal.mode=external", "temporal.payload_key_file=p", "temporal.address=temporal:7233", "temporal.tls.ca=ca.pem"}
	for _, role := range Roles() {
		c := load(t, Source{Environ: home(t), Set: append([]string{"roles=" + string(role)}, shared...)})
		if !c.Has(role) || len(c.Roles) != 1 || !c.Temporal.TLS.Enabled {
			t.Fatalf("%s:\n%s", role, c)
		}
	}
}

func TestARoleIsAskedOnlyForWhatItUses(t *testing.T) {
	t.Parallel()
	postgres := []string{"database.driver=postgres", "database.dsn=postgres://gpupool@db/gpupool"}
	boots := []string{"roles=pxe", "pxe.mode=full", "pxe.server_id=10.0.0.1", "pxe.subnets=[{cidr: 10.0.0.0/24}]"}
	external := []string{"temporal.mode=external", "temporal.payload_key_file=p"}
	for name, c := range map[string]struct {
		set  []string
		want string // the field that is missing; empty = none
	}{
		"pxe needs the database and where servers find the API": {append(boots, "api.external_url=https://pool.example"), ""},
		"pxe alone can't know where the API is":                 {boots, "api.external_url"},
		"an allocator opens no BMC password":                    {append(external, "roles=allocator"), ""},
		"a worker does":                                         {append(external, "roles=worker"), "secrets.key_file"},
		"and the API seals them":                                {append(external, "roles=api"), "secrets.key_file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Load(Source{Environ: home(t), Set: append(slices.Clone(postgres), c.set...)})
			var f *FieldError
			if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &f) || f.Field != c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestDSNFileKeepsThePasswordOut(t *testing.T) {
	t.Parallel()
	c := load(t, Source{Environ: home(t), Set: []string{"database.driver=postgres", "secrets.key_file=s", "database.dsn_file=" + file(t, "postgres://u:hunter2@db/x\n")}})
	if c.Database.DSN != "postgres://u:hunter2@db/x" {
		t.Fatalf("DSN is %q", c.Database.DSN)
	}
	for _, dsn := range []string{c.Database.DSN, "host=db password=hunter2 user=u", "host=db password='hunter2 x'", "postgres://db/x?password=hunter2&user=u", "postgres://u:hunter2@db:%zz/x"} {
		c.Database.DSN = dsn
		if s := c.String(); strings.Contains(s, "hunter2") {
			t.Fatalf("shown:\n%s", s)
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set  []string
		want string
	}{
		"tokens in the clear":              {[]string{"api.listen=:8080"}, "api.listen"},
		"a proxy with TLS in front":        {[]string{"api.listen=:8080", "api.external_url=https://x.example"}, ""},
		"PXE set up without the role":      {[]string{"pxe.mode=full", "pxe.server_id=10.0.0.1", "pxe.subnets=[{cidr: 10.0.0.0/24}]", "roles=api,worker,allocator"}, "role pxe"},
		"Temporal elsewhere, in the clear": {[]string{"temporal.mode=external", "temporal.payload_key_file=k", "temporal.address=t.example:7233"}, "temporal.address"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(load(t, Source{Environ: home(t), Set: c.set}).Warnings(), "\n")
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Fatalf("got %q, want %q in it", got, c.want)
			}
		})
	}
}

func TestEverySettingIsDocumented(t *testing.T) {
	t.Parallel()
	all := Settings()
	if len(all) < 30 {
		t.Fatalf("%d settings", len(all))
	}
	for _, s := range all {
		if s.Help == "" || s.Zero == "" || s.Example == "" || !strings.HasSuffix(s.Help, ".") {
			t.Errorf("%s: help %q, zero %q, example %q", s.Path, s.Help, s.Zero, s.Example)
		}
	}
}

func TestTheExampleFileLoads(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := WriteExample(&b); err != nil {
		t.Fatal(err)
	}
	load(t, Source{File: file(t, b.String()), Environ: home(t)})

	// With every example in force, all of them are understood; the DSN's file needn't exist.
	active := regexp.MustCompile(`(?m)^(\s*)#([a-z_]+: )`).ReplaceAllString(b.String(), "$1$2")
	active = regexp.MustCompile(`(?m)^\s*dsn_file: .*$`).ReplaceAllString(active, "")
	c := load(t, Source{File: file(t, active), Environ: home(t)})
	if c.PXE.Mode != PXEFull || c.Temporal.Mode != External || c.Database.MaxConnections != 40 || len(c.PXE.Subnets) != 1 {
		t.Fatalf("got:\n%s", c)
	}
}

func TestTheReferencePageIsThatOfTheSettings(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := WriteReference(&b); err != nil {
		t.Fatal(err)
	}
	if rows := strings.Count(b.String(), "\n| `"); rows != len(Settings()) {
		t.Fatalf("%d rows for %d settings", rows, len(Settings()))
	}
	page, err := os.ReadFile("../../docs/reference/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != b.String() {
		t.Fatal("docs/reference/configuration.md is not up to date; run: go generate ./cmd/...")
	}
}
