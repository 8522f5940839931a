package profiles

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"gpupool/schema"
)

var update = flag.Bool("update", false, "write the golden files")

const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl ops@example.net"

// settings are what is rendered and held against the golden files: each profile as it comes, and with everything set.
var settings = map[string]map[string]map[string]any{
	"image":              {"plain": nil, "set": {"disk": "bus=nvme,smallest", "image": "image/noble.json"}},
	"live":               {"plain": nil},
	"sanitise":           {"plain": nil, "set": {"console": "ttyS1,115200"}},
	"debian-preseed":     {"plain": nil, "set": {"disk": "/dev/nvme0n1", "mirror": "https://mirror.example.net/debian", "ssh_keys": []any{key, key}, "packages": []any{"chrony"}, "suite": "trixie"}},
	"ubuntu-autoinstall": {"plain": nil, "set": {"disk": "/dev/disk/by-id/nvme-A1", "ssh_keys": []any{key}, "kernel": "linux-generic-hwe-24.04", "timezone": "Europe/Stockholm"}},
	"rhel-kickstart":     {"plain": nil, "set": {"disk": "/dev/nvme0n1", "ssh_keys": []any{key}, "selinux": "permissive", "packages": []any{}}},
}

func catalogue(t *testing.T) Catalogue {
	t.Helper()
	c, err := Load("")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// each calls f with every rendering of every profile.
func each(t *testing.T, f func(t *testing.T, p *Profile, r Rendered, dir string)) {
	t.Helper()
	all := catalogue(t)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(settings)), slices.Sorted(maps.Keys(all))); diff != "" {
		t.Fatalf("the profiles that are tested and those that there are: %s", diff)
	}
	for name, p := range all {
		for set, values := range settings[name] {
			for _, arch := range p.Arch {
				dir := filepath.Join(name, set+"-"+arch)
				t.Run(dir, func(t *testing.T) {
					t.Parallel()
					r, err := p.Render(Context{Server: "srv_01", Name: "r12s03", Arch: arch, MAC: "0c:42:a1:00:00:01", Attempt: 3, Base: "http://10.20.0.2/b/TOKEN", Files: "http://10.20.0.2/files", API: "https://pool.example.net"}, values)
					if err != nil {
						t.Fatal(err)
					}
					f(t, p, r, dir)
				})
			}
		}
	}
}

func TestProfilesRenderAsTheGoldenFilesShow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ *Profile, r Rendered, dir string) {
		files := map[string]string{"boot": fmt.Sprintf("kernel %s\ninitrd %s\nargs   %s\n", r.Kernel, strings.Join(r.Initrd, " "), r.Args)}
		for _, d := range r.Documents {
			if d.Name != AgentScript || dir == "image/plain-x86_64" { // the shared one, once
				files[d.Name] = d.Body
			}
		}
		dir = filepath.Join("testdata", dir)
		if *update {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
		for name, body := range files {
			path := filepath.Join(dir, name)
			if *update {
				if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(path, []byte(body), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), body); diff != "" {
				t.Errorf("%s (go test ./activities/install/profiles -update writes it): %s", path, diff)
			}
		}
	})
}

// TestDocumentsAreWhatTheirInstallersRead holds each document against its reader's own check, where that is installed, and
// against the form that its makers publish.
func TestDocumentsAreWhatTheirInstallersRead(t *testing.T) {
	t.Parallel()
	var tools sync.Mutex
	tool := func(t *testing.T, body string, name string, args ...string) {
		t.Helper()
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed (make test installs it)", name)
		}
		file := filepath.Join(t.TempDir(), "document")
		if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		tools.Lock() // debconf's database, even for a check, is one program's at a time
		defer tools.Unlock()
		out, err := exec.Command(name, append(args, file)...).CombinedOutput()
		if err != nil || bytes.Contains(bytes.ToLower(out), []byte("error")) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	each(t, func(t *testing.T, p *Profile, r Rendered, _ string) {
		for _, d := range r.Documents {
			t.Run(d.Name, func(t *testing.T) {
				switch {
				case d.Name == AgentScript:
					tool(t, d.Body, "sh", "-n")
				case d.Name == "preseed.cfg":
					checkPreseed(t, d.Body)
					tool(t, d.Body, "debconf-set-selections", "--checkonly")
				case d.Name == "ks.cfg":
					checkKickstart(t, d.Body)
				case d.Type == "text/cloud-config":
					checkAutoinstall(t, d.Name, d.Body)
					tool(t, d.Body, "cloud-init", "schema", "--config-file")
				default:
					t.Errorf("nothing checks %s of %s", d.Name, p.Name)
				}
			})
		}
	})
}

// checkPreseed: what the installer would otherwise stop at and ask, each answered once.
func checkPreseed(t *testing.T, body string) {
	t.Helper()
	answered := map[string]bool{}
	for line := range strings.Lines(strings.ReplaceAll(body, "\\\n", "")) {
		f := strings.Fields(line)
		if len(f) < 3 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if answered[f[1]] {
			t.Errorf("%s is answered twice", f[1])
		}
		answered[f[1]] = true
		if !slices.Contains([]string{"string", "boolean", "select", "multiselect", "password", "note"}, f[2]) {
			t.Errorf("%s has the type %s", f[1], f[2])
		}
	}
	for _, q := range []string{"debian-installer/locale", "keyboard-configuration/xkb-keymap", "netcfg/choose_interface", "mirror/country", "mirror/suite", "passwd/make-user", "passwd/root-password-crypted",
		"time/zone", "partman-auto/method", "partman-auto/choose_recipe", "partman/confirm", "partman/confirm_nooverwrite", "partman/choose_partition", "partman-partitioning/confirm_write_new_label", "tasksel/first",
		"popularity-contest/participate", "grub-installer/only_debian", "preseed/late_command", "finish-install/reboot_in_progress"} {
		if !answered[q] {
			t.Errorf("%s is not answered: the installer would wait for a person", q)
		}
	}
}

// checkAutoinstall: keys and kinds as Canonical's autoinstall reference lists them.
func checkAutoinstall(t *testing.T, name, body string) {
	t.Helper()
	if !strings.HasPrefix(body, "#cloud-config\n") {
		t.Errorf("%s does not begin with #cloud-config", name)
	}
	var doc map[string]any
	if err := yaml.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	auto, ok := doc["autoinstall"].(map[string]any)
	if !ok {
		if name == UserData {
			t.Errorf("there is no autoinstall in it")
		}
		return
	}
	known := []string{"version", "interactive-sections", "early-commands", "locale", "refresh-installer", "keyboard", "source", "network", "proxy", "apt", "storage", "identity", "active-directory", "ubuntu-pro", "ssh",
		"codecs", "drivers", "oem", "snaps", "debconf-selections", "packages", "kernel", "kernel-crash-dumps", "timezone", "updates", "shutdown", "late-commands", "error-commands", "reporting", "user-data", "zdevs"}
	for key := range auto {
		if !slices.Contains(known, key) {
			t.Errorf("autoinstall has no %s", key)
		}
	}
	if v, ok := auto["version"].(uint64); !ok || v != 1 {
		t.Errorf("version is %v, must be 1", auto["version"])
	}
	if auto["identity"] == nil && auto["user-data"] == nil {
		t.Error("one of identity and user-data is needed")
	}
}

// kickstart is the commands that the profile may use, each with the options that pykickstart's reference for RHEL 9 has.
var kickstart = map[string][]string{
	"text": nil, "reboot": {"eject", "kexec"}, "url": {"url", "mirrorlist", "proxy", "noverifyssl"}, "repo": {"name", "baseurl", "mirrorlist", "install", "cost"}, "lang": {"addsupport"},
	"keyboard": {"vckeymap", "xlayouts", "switch"}, "timezone": {"utc", "isUtc"}, "network": {"bootproto", "device", "activate", "onboot", "hostname", "noipv6"}, "rootpw": {"lock", "iscrypted", "plaintext", "allow-ssh"},
	"sshkey": {"username"}, "selinux": {"enforcing", "permissive", "disabled"}, "firewall": {"disabled", "enabled"}, "services": {"enabled", "disabled"}, "firstboot": {"disable", "enable"},
	"ignoredisk": {"only-use", "drives"}, "zerombr": nil, "clearpart": {"all", "initlabel", "drives", "none", "linux"}, "bootloader": {"boot-drive", "append", "location", "timeout"}, "autopart": {"type", "noswap", "nohome", "noboot", "fstype"},
}

var kickstartOption = regexp.MustCompile(`--([A-Za-z-]+)`)

func checkKickstart(t *testing.T, body string) {
	t.Helper()
	section, heredoc := "", false
	seen := map[string]bool{}
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			continue
		case section != "" && line == "%end":
			section = ""
			continue
		case strings.HasPrefix(line, "%include"):
			seen["ignoredisk"], seen["clearpart"], seen["autopart"], seen["bootloader"] = true, true, true, true
			continue
		case strings.HasPrefix(line, "%"):
			if section != "" || !slices.Contains([]string{"%packages", "%pre", "%post"}, word) {
				t.Errorf("section %s begins within %q, or is none", line, section)
			}
			section = word
			seen[word] = true
			continue
		case section == "%pre" && strings.HasSuffix(line, "<<EOF"):
			heredoc = true
			continue
		case line == "EOF":
			heredoc = false
			continue
		case section != "" && !heredoc:
			continue
		}
		options, ok := kickstart[word]
		if !ok {
			t.Errorf("%s is no command", word)
		}
		seen[word] = true
		for _, m := range kickstartOption.FindAllStringSubmatch(rest, -1) {
			if !slices.Contains(options, m[1]) {
				t.Errorf("%s has no --%s", word, m[1])
			}
		}
	}
	if section != "" {
		t.Errorf("%s has no %%end", section)
	}
	for _, need := range []string{"url", "lang", "keyboard", "timezone", "rootpw", "clearpart", "autopart", "bootloader", "%packages", "%post"} {
		if !seen[need] {
			t.Errorf("%s is missing: Anaconda would stop and ask", need)
		}
	}
}

// TestNoDocumentHoldsOrLogsASecret: the phone-home token is in agent.json alone, which is not a template; and what fetches
// with the boot token in its address prints nothing.
func TestNoDocumentHoldsOrLogsASecret(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ *Profile, r Rendered, _ string) {
		for _, d := range r.Documents {
			for line := range strings.Lines(d.Body) {
				quiet := strings.Contains(line, "-q") || strings.Contains(line, "2>/dev/null") || strings.Contains(line, "base='")
				if strings.Contains(line, "TOKEN") && !quiet {
					t.Errorf("%s prints the address with the token: %s", d.Name, line)
				}
			}
			if strings.Contains(d.Body, "set -x") || strings.Contains(d.Body, "--log=") {
				t.Errorf("%s logs what it runs", d.Name)
			}
		}
		if d, ok := r.Document(AgentConfig); ok {
			t.Errorf("%s is a template: %q", AgentConfig, d.Body)
		}
	})
}

func TestValuesThatCouldEndALineOrAnArgumentAreRefusedByName(t *testing.T) {
	t.Parallel()
	p := catalogue(t)["debian-preseed"]
	for what, c := range map[string]struct {
		values map[string]any
		field  string
	}{
		"a line break":                    {map[string]any{"timezone": "UTC\nd-i passwd/root-password password x"}, "values.timezone"},
		"a space":                         {map[string]any{"console": "ttyS0 init=/bin/sh"}, "values.console"},
		"a quote in a package":            {map[string]any{"packages": []any{"curl", "x';reboot;'"}}, "values.packages"},
		"a path out of /dev":              {map[string]any{"disk": "/dev/../etc/passwd"}, "values.disk"},
		"a disk that is no device":        {map[string]any{"disk": "nvme0n1"}, "values.disk"},
		"another scheme":                  {map[string]any{"mirror": "file:///etc"}, "values.mirror"},
		"a URL with half a bracket":       {map[string]any{"mirror": "http://[::1"}, "values.mirror"},
		"a URL whose port can't be":       {map[string]any{"mirror": "http://mirror:99999/debian"}, "values.mirror"},
		"a URL with an account in it":     {map[string]any{"mirror": "https://u:p@mirror/debian"}, "values.mirror"},
		"a key with options before it":    {map[string]any{"ssh_keys": []any{`command="sh" ` + key}}, "values.ssh_keys"},
		"a key with two words of remark":  {map[string]any{"ssh_keys": []any{key + " again"}}, "values.ssh_keys"},
		"a number in the place of a list": {map[string]any{"packages": 3}, "values.packages"},
		"a name that it has not":          {map[string]any{"mirrors": "x"}, "values.mirrors"},
	} {
		_, err := p.Check(c.values)
		var e *schema.Error
		if !errors.As(err, &e) || e.Code != schema.CodeInvalid || e.Field != c.field {
			t.Errorf("%s: %v, want %s refused", what, err, c.field)
		}
	}
	got, err := p.Check(FromText(map[string]string{"packages": "chrony, curl", "ssh_keys": key + "\n" + key}))
	if err != nil || !slices.Equal(got["packages"].([]string), []string{"chrony", "curl"}) || len(got["ssh_keys"].([]string)) != 2 {
		t.Errorf("values as text are %v, %v", got, err)
	}
	if _, err := p.Check(map[string]any{"ssh_keys": []any{key}, "disk": "/dev/disk/by-id/nvme-X_1"}); err != nil {
		t.Error(err)
	}
}

func TestAProfileThatCouldNotBeRenderedIsRefusedWhenItIsLoaded(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct{ yaml, doc, words string }{
		"a value that is not declared":       {"title: t\nkernel: k\nargs: \"{{.Values.nope}}\"\n", "", "nope"},
		"a field that there is not":          {"title: t\nkernel: k\nkernels: 3\n", "", "kernels"},
		"a document without its file":        {"title: t\nkernel: k\ndocuments: [{name: a, template: b}]\n", "", "documents: a"},
		"a document that may not be its own": {"title: t\nkernel: k\ndocuments: [{name: agent.json, template: doc}]\n", "x", "agent.json"},
		"a template that does not parse":     {"title: t\nkernel: k\ndocuments: [{name: a, template: doc}]\n", "{{if}}", "doc"},
		"a type that there is not":           {"title: t\nkernel: k\nvalues: {a: {type: secret}}\n", "", "secret"},
		"a default that its type refuses":    {"title: t\nkernel: k\nvalues: {a: {type: disk, default: sda}}\n", "", "sda"},
		"two lines of arguments":             {"title: t\nkernel: k\nargs: \"a\\nb\"\n", "", "line break"},
	} {
		dir := t.TempDir()
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "own"), 0o755), os.WriteFile(filepath.Join(dir, "own", "profile.yaml"), []byte(c.yaml), 0o600), os.WriteFile(filepath.Join(dir, "own", "doc"), []byte(c.doc), 0o600)); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Error(), "own") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "gone")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

// TestTheAgentsUnitIsTheOneThatIsShipped: two copies of one unit would differ one day.
func TestTheAgentsUnitIsTheOneThatIsShipped(t *testing.T) {
	t.Parallel()
	shipped, err := os.ReadFile("../../../deploy/systemd/gpupool-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	script, err := builtin.ReadFile("builtin/shared/" + AgentScript)
	if err != nil {
		t.Fatal(err)
	}
	_, unit, _ := strings.Cut(string(script), "<<'UNIT'\n")
	unit, _, _ = strings.Cut(unit, "UNIT\n")
	var want strings.Builder
	for line := range strings.Lines(string(shipped)) {
		if !strings.HasPrefix(line, "#") {
			want.WriteString(line)
		}
	}
	if diff := cmp.Diff(want.String(), unit); diff != "" {
		t.Fatalf("bring builtin/shared/agent.sh up to deploy/systemd/gpupool-agent.service: %s", diff)
	}
}
