// Package pxebench measures the boot service beside its peers: Kea and dnsmasq under perfdhcp, tftpd-hpa, dnsmasq and
// nginx with curl. Service, peers and clients run in network namespaces of their own, so nothing outside is touched, and
// take turns in each round, so that whoever else uses the machine slows all of them.
//
// Not here: tests; whether a goal is met (bench).
package pxebench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Result is one thing measured, with what the peers did in the same rounds.
type Result struct {
	Name, Unit string
	Value      float64
	Peers      map[string]float64
	AtMost     float64 // a goal without peers; 0 = none
}

// Missing are the Debian packages that have to be installed first.
func Missing() []string {
	var missing []string
	for program, pkg := range map[string]string{
		"ip": "iproute2", "unshare": "util-linux", "perfdhcp": "kea-admin", "kea-dhcp4": "kea-dhcp4-server", "dnsmasq": "dnsmasq-base",
		"in.tftpd": "tftpd-hpa", "nginx": "nginx-light", "curl": "curl", "atftp": "atftp", "strace": "strace",
	} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	slices.Sort(missing)
	return missing
}

const (
	rounds  = 3
	size    = 100 << 20 // of the initrd one client fetches; 64 clients fetch a sixteenth each
	many    = 64
	clients = 5000 // machines that perfdhcp plays
)

// bench is what the measurements share.
type bench struct {
	ctx context.Context
	say func(string)
	dir string // boot files, leases, peers' configuration
	far *far
	rec records
}

// Run measures, as root in a network namespace that nobody else uses. database is a PostgreSQL server, by the DSN of one of
// its databases; empty = there is none, and what needs one is left out.
func Run(ctx context.Context, say func(string), database string) ([]Result, error) {
	dir, err := os.MkdirTemp("", "gpupool-pxebench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // peers read it as users of their own
		return nil, err
	}
	far, err := newFar(ctx)
	if err != nil {
		return nil, err
	}
	defer far.close()
	b := &bench{ctx: ctx, say: say, dir: dir, far: far}
	if err := b.prepare(database); err != nil {
		return nil, err
	}
	var all []Result
	for _, part := range []func() ([]Result, error){b.dora, b.files, b.flood, b.memory} {
		r, err := part()
		if err != nil {
			return nil, err
		}
		all = append(all, r...)
	}
	return all, nil
}

// one is what takes part in a measurement: start brings it up until the returned function is called.
type one struct {
	name  string
	start func() (stop func(), err error)
	// measure returns one value for each result.
	measure func() ([]float64, error)
}

// turns lets all take part in each round, one after the other, and returns the medians: by name, one for each result.
func (b *bench) turns(what string, all []one) (map[string][]float64, error) {
	seen := map[string][][]float64{}
	for round := range rounds {
		for _, o := range all {
			b.say(fmt.Sprintf("%s, round %d of %d: %s", what, round+1, rounds, o.name))
			stop, err := o.start()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", o.name, err)
			}
			v, err := o.measure()
			stop()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", o.name, err)
			}
			seen[o.name] = append(seen[o.name], v)
		}
	}
	medians := map[string][]float64{}
	for name, rows := range seen {
		for i := range rows[0] {
			var column []float64
			for _, r := range rows {
				column = append(column, r[i])
			}
			slices.Sort(column)
			medians[name] = append(medians[name], column[len(column)/2])
		}
	}
	return medians, nil
}

// peersOf is the i-th median of all but ours.
func peersOf(m map[string][]float64, i int) map[string]float64 {
	peers := map[string]float64{}
	for name, v := range m {
		if !strings.HasPrefix(name, "gpupool") {
			peers[name] = v[i]
		}
	}
	return peers
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

// far is the clients' namespace, with 10.88.0.2/16 on eth0; this one has 10.88.0.1 on br0.
type far struct {
	hold *exec.Cmd
	pid  string
}

func newFar(ctx context.Context) (*far, error) {
	f := &far{hold: exec.CommandContext(ctx, "unshare", "--net", "--", "sh", "-c", "echo up; exec sleep infinity")}
	out, err := f.hold.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := f.hold.Start(); err != nil {
		return nil, err
	}
	f.pid = fmt.Sprint(f.hold.Process.Pid)
	if _, err := out.Read(make([]byte, 8)); err != nil { // unshare has done its part
		f.close()
		return nil, fmt.Errorf("no network namespace: %w", err)
	}
	for _, line := range []string{
		"ip link set lo up", "ip link add br0 type veth peer name eth0 netns " + f.pid, "ip address add 10.88.0.1/16 dev br0", "ip link set br0 up",
		"far ip link set lo up", "far ip address add 10.88.0.2/16 dev eth0", "far ip link set eth0 up",
	} {
		args := strings.Fields(line)
		if args[0] == "far" {
			args = f.args(args[1:]...)
		}
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			f.close()
			return nil, fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return f, nil
}

func (f *far) args(command ...string) []string {
	return append([]string{"nsenter", "-t", f.pid, "-n", "--"}, command...)
}

// run runs a command there and returns what it wrote.
func (f *far) run(ctx context.Context, command ...string) (string, error) {
	args := f.args(command...)
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out)
	}
	return string(out), err
}

func (f *far) close() {
	_ = f.hold.Process.Kill()
	var ended *exec.ExitError
	if err := f.hold.Wait(); err != nil && !errors.As(err, &ended) {
		fmt.Fprintln(os.Stderr, err)
	}
}
