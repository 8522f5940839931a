package ipxe

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// files is a machine whose network has these files.
type files struct {
	has     map[string]string
	fetched []string
	console []string
}

func (f *files) Fetch(_ context.Context, url string) ([]byte, error) {
	f.fetched = append(f.fetched, url)
	b, ok := f.has[url]
	if !ok {
		return nil, errors.New("404")
	}
	return []byte(b), nil
}

func (f *files) Skip(ctx context.Context, url string) (int64, error) {
	b, err := f.Fetch(ctx, url)
	return int64(len(b)), err
}

func (f *files) DHCP(context.Context) (map[string]string, error) {
	return map[string]string{"ip": "10.0.0.9"}, nil
}
func (f *files) Print(l string)                             { f.console = append(f.console, l) }
func (f *files) Sleep(context.Context, time.Duration) error { return nil }

func TestScripts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		want   string // of show
	}{
		"an install":                        {"kernel /files/k a=${mac} b || goto failed\ninitrd --name i /files/i || goto failed\nboot || goto failed\n:failed\nexit 1", "boot k(1) args=a=52:54:00:00:00:01 b initrd=i"},
		"a file that is missing":            {"kernel /files/none || goto failed\nboot\n:failed\necho no\nexit 1", "exit 1"},
		"a failure that nothing catches":    {"kernel /files/none\nboot", "failed 404"},
		"to the disk under UEFI":            {"iseq ${platform} efi && exit 1 ||\nsanboot --no-describe --drive 0x80 || exit 1", "exit 1"},
		"to the disk under BIOS":            {"iseq ${platform} pcbios && exit 1 ||\nsanboot --no-describe --drive 0x80 || exit 1", "disk"},
		"a SAN that is not there":           {"sanboot iscsi:10.0.0.1::::iqn || exit 3", "exit 3"},
		"the end of a script":               {"echo hello", "exit 0"},
		"a chain to a relative address":     {"chain next.ipxe", "exit 7"},
		"a chain to what is no script":      {"chain --autofree /files/k || exit 4", "exit 4"},
		"set, isset, clear":                 {"set x 1\nisset ${x} && clear x ||\nisset ${x} && exit 1 || exit 2", "exit 2"},
		"a setting within a setting":        {"set n x\nset x 5\nexit ${${n}}", "exit 5"},
		"a MAC with hyphens":                {"iseq ${mac:hexhyp} 52-54-00-00-00-01 && exit 6 || exit 1", "exit 6"},
		"net0/mac is mac":                   {"iseq ${net0/mac} ${mac} && exit 6 || exit 1", "exit 6"},
		"a command that does not exist":     {"frobnicate", "failed command not found"},
		"a label that does not exist":       {"goto nowhere", "failed goto: no label"},
		"a line that goes on":               {"set x \\\n8\nexit ${x}", "exit 8"},
		"comments and empty lines":          {"# exit 1\n\n   \n  exit 9", "exit 9"},
		"a boot of nothing":                 {"boot", "failed boot: no kernel"},
		"a shell waits for a person":        {"shell", "shell"},
		"dhcp sets the address":             {"dhcp\niseq ${ip} 10.0.0.9 && exit 2 ||", "exit 2"},
		"a second command after a success":  {"echo a && exit 3", "exit 3"},
		"an alternative after a success":    {"echo a || exit 3\nexit 4", "exit 4"},
		"success after a failure is caught": {"goto nowhere ||\nexit 5", "exit 5"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &files{has: map[string]string{"http://h/files/k": "k", "http://h/files/i": "i", "http://h/boot/next.ipxe": "#!ipxe\nexit 7\n"}}
			r, err := Run(t.Context(), f, "http://h/boot/script.ipxe", []byte("#!ipxe\n"+c.script), map[string]string{"mac": "52:54:00:00:00:01", "platform": "efi"})
			if err != nil {
				t.Fatal(err)
			}
			if got := show(r); !strings.HasPrefix(got, c.want) {
				t.Errorf("it came to %q, want %q; console %q", got, c.want, f.console)
			}
		})
	}
}

func show(r Result) string {
	switch r.Action {
	case Boot:
		s := fmt.Sprintf("boot %s(%d) args=%s", r.Kernel.Name, r.Kernel.Bytes, r.Args)
		for _, i := range r.Initrd {
			s += " initrd=" + i.Name
		}
		return s
	case Exit:
		return fmt.Sprintf("exit %d", r.Code)
	case Failed:
		return "failed " + r.Why
	default:
		return string(r.Action)
	}
}

func TestAScriptThatNeverEndsIsEnded(t *testing.T) {
	t.Parallel()
	_, err := Run(t.Context(), &files{}, "http://h/s", []byte("#!ipxe\n:a\ngoto a\n"), nil)
	if !errors.Is(err, ErrEndless) {
		t.Errorf("%v", err)
	}
}

func TestWhatIsNoScriptIsRefused(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "<html>", "#!ipxes\nexit", "echo\n#!ipxe"} {
		if _, err := Run(t.Context(), &files{}, "http://h/s", []byte(s), nil); err == nil {
			t.Errorf("%q was run", s)
		}
	}
}

func FuzzRun(f *testing.F) {
	f.Add("set a ${b}\niseq ${a} x && boot || goto c\n:c\nkernel ${${a}}\nexit 0")
	f.Fuzz(func(t *testing.T, s string) {
		_, _ = Run(t.Context(), &files{}, "http://h/s", []byte("#!ipxe\n"+s), map[string]string{"b": "${b}"})
	})
}
