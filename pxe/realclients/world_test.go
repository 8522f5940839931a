//go:build netns

package realclients

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpupool/pxe"
	"gpupool/pxe/boot"
	"gpupool/pxe/lease"
	"gpupool/pxe/pxetest"
	"gpupool/schema"
)

const inside = "GPUPOOL_TEST_IN_NETNS"

// TestMain starts the test binary again in a network namespace of its own, so that it can have port 67 and every
// address, and nothing outside is touched.
// The main thread is main's alone. A thread that silent takes into a host's namespace ends with its goroutine; the main one
// can't, and "self" in /proc is its namespace for good.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if os.Getenv(inside) == "" {
		if os.Geteuid() != 0 {
			fmt.Println("these tests need root")
			os.Exit(1)
		}
		unshare, err := exec.LookPath("unshare")
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		err = syscall.Exec(unshare, append([]string{"unshare", "--net", "--"}, os.Args...), append(os.Environ(), inside+"=1"))
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// need skips a test whose program isn't there.
func need(t *testing.T, program, pkg string) string {
	t.Helper()
	p, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not installed (Debian package %s)", program, pkg)
	}
	return p
}

// ip runs the ip command here.
func ip(t *testing.T, args string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v %s", args, err, out)
	}
}

// site is a bridge with the boot service on it. Each test has its own, one after the other.
type site struct {
	*pxetest.Platform
	*pxe.Server
	t      *testing.T
	root   string
	leases *lease.Memory
}

func newSite(t *testing.T, change func(*pxe.Config)) *site {
	t.Helper()
	need(t, "ip", "iproute2")
	ip(t, "link set lo up")
	ip(t, "link add br0 type bridge forward_delay 0 stp_state 0")
	t.Cleanup(func() { exec.Command("ip", "link", "del", "br0").Run() })
	ip(t, "address add 10.77.0.1/24 dev br0")
	ip(t, "link set br0 up")
	s := &site{Platform: pxetest.New(), t: t, root: t.TempDir(), leases: lease.NewMemory()}
	// What deploy/pxe/boot-files.sh has fetched from Debian's packages.
	fetched, _ := filepath.Glob("../../build/boot-files/*.*")
	if len(fetched) == 0 {
		t.Skip("no boot files in build/boot-files (make netns fetches them; or deploy/pxe/boot-files.sh build/boot-files)")
	}
	for _, from := range fetched {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		s.put(filepath.Base(from), b)
	}
	cfg := pxe.Config{
		Mode: "full", Interface: "br0", ServerID: "10.77.0.1", Root: s.root, APIURL: "http://10.77.0.1:9",
		Subnets: []pxe.Subnet{{CIDR: "10.77.0.0/24", Range: "10.77.0.100-10.77.0.110", Routers: []string{"10.77.0.254"}, DNS: []string{"10.77.0.53"}, Lease: time.Hour}},
		Plan:    pxe.Plan{Kernel: "vmlinuz", Args: "gpupool.enrol={{base}}/enrol"},
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if s.Server, err = pxe.New(cfg, pxe.Deps{Inventory: s, Leases: s.leases, Tokens: s, Recorder: s, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, e := range s.Evidence() {
				t.Logf("%+v", e)
			}
		}
	})
	return s
}

func (s *site) put(name string, b []byte) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.root, name), b, 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// host is another machine on the bridge: a namespace with one interface.
type host struct {
	t   *testing.T
	pid string
	mac string
}

func (s *site) host(t *testing.T, n int, bridge string) *host {
	t.Helper()
	hold := exec.Command("unshare", "--net", "sleep", "infinity")
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		endAllIn(fmt.Sprint(hold.Process.Pid)) // clients leave daemons behind
		hold.Process.Kill()
		hold.Wait()
	})
	h := &host{t: t, pid: fmt.Sprint(hold.Process.Pid), mac: fmt.Sprintf("52:54:00:77:01:%02x", n)}
	// The namespace is another's than ours once unshare has run.
	own, _ := os.Readlink("/proc/self/ns/net")
	for end := time.Now().Add(5 * time.Second); ; {
		if its, err := os.Readlink("/proc/" + h.pid + "/ns/net"); err == nil && its != own {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no namespace")
		}
		<-time.After(5 * time.Millisecond)
	}
	h.join(n, "eth0", bridge, h.mac)
	h.run("ip link set lo up")
	return h
}

// endAllIn ends every process in the network namespace of another one, but for that.
func endAllIn(pid string) {
	ns, err := os.Readlink("/proc/" + pid + "/ns/net")
	if own, _ := os.Readlink("/proc/self/ns/net"); err != nil || ns == own {
		return
	}
	all, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, p := range all {
		other := strings.Split(p, "/")[2]
		if its, err := os.Readlink(p); err != nil || its != ns || other == pid {
			continue
		}
		if n, err := strconv.Atoi(other); err == nil {
			syscall.Kill(n, syscall.SIGKILL)
		}
	}
}

// join gives the host an interface on a bridge.
func (h *host) join(n int, name, bridge, mac string) {
	h.t.Helper()
	ip(h.t, fmt.Sprintf("link add v%s%d type veth peer name %s address %s netns %s", name, n, name, mac, h.pid))
	ip(h.t, fmt.Sprintf("link set v%s%d master %s up", name, n, bridge))
	h.run("ip link set " + name + " up")
}

func (h *host) command(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"-t", h.pid, "-n", "--"}, args...)...)
}

func (h *host) run(line string) string {
	h.t.Helper()
	return h.do(strings.Fields(line)...)
}

func (h *host) do(args ...string) string {
	h.t.Helper()
	out, err := h.try(args...)
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (h *host) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), 60*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, "nsenter", append([]string{"-t", h.pid, "-n", "--"}, args...)...)
	c.Dir = h.t.TempDir()
	c.WaitDelay = time.Second // what it left running may hold its output
	out, err := c.CombinedOutput()
	return string(out), err
}

// daemon runs a program in the host until the test ends.
func (h *host) daemon(args ...string) {
	h.t.Helper()
	c := h.command(args...)
	c.Stdout, c.Stderr = h.t.Output(), h.t.Output()
	if err := c.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
}

// silent binds a UDP port in the host's namespace until the test ends, and answers nothing there.
func (h *host) silent(port int) {
	h.t.Helper()
	ns, err := os.Open("/proc/" + h.pid + "/ns/net")
	if err != nil {
		h.t.Fatal(err)
	}
	defer ns.Close()
	opened := make(chan net.PacketConn, 1)
	go func() {
		defer close(opened)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine, and with it its namespace
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			h.t.Error(err)
			return
		}
		c, err := net.ListenPacket("udp4", fmt.Sprint(":", port))
		if err != nil {
			h.t.Error(err)
			return
		}
		opened <- c
	}()
	c, ok := <-opened
	if !ok {
		h.t.FailNow()
	}
	h.t.Cleanup(func() { c.Close() })
}

func (s *site) machine(h *host, phase schema.Phase) {
	s.Put(boot.Machine{ID: "srv-" + h.mac, Name: "node-" + strings.ReplaceAll(h.mac[12:], ":", ""), Phase: phase}, h.mac)
}

// wait is evidence of a kind for a MAC, within the time.
func (s *site) wait(within time.Duration, kind, mac string, more func(schema.BootEvidence) bool) schema.BootEvidence {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), within)
	defer cancel()
	e, err := s.Wait(ctx, func(e schema.BootEvidence) bool { return e.Kind == kind && e.MAC == mac && (more == nil || more(e)) })
	if err != nil {
		s.t.Fatalf("%s of %s: %v", kind, mac, err)
	}
	return e
}

// leased is the address that a MAC holds.
func (s *site) leased(mac string) string {
	s.t.Helper()
	rows, err := s.leases.List(s.t.Context(), "10.77.0.0/24")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, l := range rows {
		if l.MAC == mac && lease.Live(l, time.Now()) {
			return l.IP
		}
	}
	return ""
}

// waitUp waits until something listens on a UDP port of the host (a daemon that has just been started).
func (h *host) waitUp(port int) {
	h.t.Helper()
	h.waitPort("udp", port, true)
}

// waitPort waits until something, or nothing, has a port of the host. table is udp or udp6.
func (h *host) waitPort(table string, port int, taken bool) {
	h.t.Helper()
	hex := fmt.Sprintf(":%04X ", port)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		if b, err := os.ReadFile("/proc/" + h.pid + "/net/" + table); err == nil && strings.Contains(string(b), hex) == taken {
			return
		}
	}
	h.t.Fatalf("%s port %d: want it taken: %v", table, port, taken)
}

// relay puts a second bridge, br1 with 10.88.0.0/24, behind a dnsmasq that relays to the service.
func (s *site) relay(t *testing.T) {
	t.Helper()
	ip(t, "link add br1 type bridge forward_delay 0 stp_state 0")
	t.Cleanup(func() { exec.Command("ip", "link", "del", "br1").Run() })
	ip(t, "link set br1 up")
	relay := s.host(t, 20, "br0")
	relay.run("ip address add 10.77.0.20/24 dev eth0")
	relay.join(20, "eth1", "br1", "52:54:00:77:02:14")
	relay.run("ip address add 10.88.0.1/24 dev eth1")
	relay.run("sysctl -qw net.ipv4.ip_forward=1")
	ip(t, "route add 10.88.0.0/24 via 10.77.0.20")
	relay.daemon("dnsmasq", "-k", "-p", "0", "--dhcp-relay=10.88.0.1,10.77.0.1", "--log-facility=-", "--user=root", "--pid-file=")
	relay.waitUp(67)
}

// linkLocal waits until the host has the link-local address that clients of DHCPv6 speak from.
func (h *host) linkLocal() {
	h.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		if out := h.run("ip -6 address show dev eth0 scope link -tentative"); strings.Contains(out, "fe80::") {
			return
		}
	}
	h.t.Fatal("eth0 gets no link-local address")
}

// waitFile waits until a file is there and has something in it.
func (h *host) waitFile(path string) {
	h.t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		if st, err := os.Stat(path); err == nil && st.Size() > 0 {
			return
		}
	}
	h.t.Fatalf("no %s", path)
}
