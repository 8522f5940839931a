//go:build netns

package realclients

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gpupool/pxe"
	"gpupool/pxe/boot"
	"gpupool/pxe/dhcp"
	"gpupool/pxe/lease"
	"gpupool/pxe/pxetest"
	"gpupool/schema"
	"gpupool/schema/store"
)

// figure is one line of the bench table (see `make bench`).
type figure struct {
	Group     string  `json:"group"`
	Name      string  `json:"name"`
	Value     float64 `json:"value"`
	Unit      string  `json:"unit"`
	Peer      string  `json:"peer,omitempty"`
	PeerValue float64 `json:"peer_value,omitempty"`
	Ratio     float64 `json:"ratio,omitempty"`
	Goal      float64 `json:"goal,omitempty"`
	Holds     *bool   `json:"holds,omitempty"`
}

// everyone is an inventory of perfdhcp's machines, in memory, as a site of that many servers.
type everyone struct {
	*pxetest.Platform
	macs []string
}

func (e *everyone) MACs(context.Context) ([]string, error) { return e.macs, nil }

func (e *everyone) ByMAC(_ context.Context, mac string) (boot.Machine, bool, error) {
	return boot.Machine{ID: "srv-" + mac, Phase: schema.PhaseAvailable}, strings.HasPrefix(mac, "00:0c:"), nil
}

const speedClients = 5000

// speedNet is 10.88.0.0/16 between the service's namespace and one of clients.
func speedNet(t *testing.T) *host {
	t.Helper()
	need(t, "ip", "iproute2")
	ip(t, "link set lo up")
	ip(t, "link add br0 type bridge forward_delay 0 stp_state 0")
	t.Cleanup(func() { exec.Command("ip", "link", "del", "br0").Run() })
	ip(t, "address add 10.88.0.1/16 dev br0")
	ip(t, "link set br0 up")
	s := &site{t: t}
	h := s.host(t, 40, "br0")
	h.run("ip address add 10.88.0.2/16 dev eth0")
	return h
}

// ours runs the boot service until the returned function is called.
func ours(t *testing.T, leases lease.Store, root string) func() {
	t.Helper()
	p := &everyone{Platform: pxetest.New()}
	for i := range speedClients + 10 {
		n := 0x01020304 + i
		p.macs = append(p.macs, fmt.Sprintf("00:0c:%02x:%02x:%02x:%02x", byte(n>>24), byte(n>>16), byte(n>>8), byte(n)))
	}
	s, err := pxe.New(pxe.Config{Interface: "br0", ServerID: "10.88.0.1", Root: root, NoProbe: true, Limits: dhcp.Limits{PerMAC: 1000, Burst: 1000},
		TFTPPerClient: 100, Subnets: []pxe.Subnet{{CIDR: "10.88.0.0/16", Range: "10.88.1.0-10.88.250.255"}}}, pxe.Deps{Inventory: p, Leases: leases, Tokens: p, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

var rate = regexp.MustCompile(`Rate: ([0-9.e+]+) 4-way`)

// dora is what perfdhcp gets done in a second.
func dora(t *testing.T, h *host) float64 {
	t.Helper()
	out, _ := h.try("perfdhcp", "-4", "-l", "eth0", "-B", "-r", "12000", "-R", fmt.Sprint(speedClients), "-p", "6", "-W", "500000")
	m := rate.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("perfdhcp: %s", out)
	}
	v, _ := strconv.ParseFloat(m[1], 64)
	return v
}

// daemon runs a peer in the service's namespace until the returned function is called.
func daemon(t *testing.T, port string, args ...string) func() {
	t.Helper()
	c := exec.Command(args[0], args[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its children end with it
	var out strings.Builder
	c.Stdout, c.Stderr = &out, &out
	end := func() {
		syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		c.Wait()
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(10 * time.Second); ; <-time.After(50 * time.Millisecond) {
		b, _ := exec.Command("ss", "-Hlnut").Output()
		if strings.Contains(string(b), ":"+port+" ") || strings.Contains(string(b), ":"+port+"\n") {
			break
		}
		if time.Now().After(until) {
			end()
			t.Fatalf("%s does not listen on %s: %s", args[0], port, out.String())
		}
	}
	return end
}

// TestSpeed measures the service and its peers in one run. It fails where a goal isn't met only if GOALS is set,
// since a busy machine measures itself. BENCH_JSON names the file that the figures go to.
func TestSpeed(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	need(t, "perfdhcp", "kea-admin")
	h := speedNet(t)
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	os.Chmod(filepath.Dir(dir), 0o755)
	var all []figure
	add := func(name, unit string, value float64, peers map[string]float64) {
		best, of := "", 0.0
		for p, v := range peers {
			t.Logf("%-34s %-12s %10.1f %s", name, p, v, unit)
			if v > of {
				best, of = p, v
			}
		}
		f := figure{Group: "pxe", Name: name, Value: value, Unit: unit, Peer: best, PeerValue: of}
		if of > 0 {
			f.Ratio, f.Goal = value/of, 1
			holds := f.Ratio >= f.Goal
			f.Holds = &holds
		}
		t.Logf("%-34s %-12s %10.1f %s  ratio %.2f", name, "gpupool", value, unit, f.Ratio)
		all = append(all, f)
	}

	peers := map[string]float64{}
	if _, err := exec.LookPath("kea-dhcp4"); err == nil {
		conf := filepath.Join(dir, "kea.json")
		os.WriteFile(conf, []byte(`{"Dhcp4":{"interfaces-config":{"interfaces":["br0"],"dhcp-socket-type":"raw"},"lease-database":{"type":"memfile","persist":true,"name":"`+dir+`/kea.csv","lfc-interval":0},"valid-lifetime":3600,"subnet4":[{"subnet":"10.88.0.0/16","pools":[{"pool":"10.88.1.0-10.88.250.255"}]}],"multi-threading":{"enable-multi-threading":true,"thread-pool-size":2},"loggers":[{"name":"kea-dhcp4","severity":"ERROR","output_options":[{"output":"stderr"}]}]}}`), 0o644)
		t.Setenv("KEA_PIDFILE_DIR", dir)
		t.Setenv("KEA_LOCKFILE_DIR", dir)
		stop := daemon(t, "67", "kea-dhcp4", "-c", conf)
		peers["kea"] = dora(t, h)
		stop()
	}
	if _, err := exec.LookPath("dnsmasq"); err == nil {
		stop := daemon(t, "67", "dnsmasq", "-k", "-p", "0", "--dhcp-range=10.88.1.0,10.88.250.255,255.255.0.0,1h", "--dhcp-leasefile="+dir+"/dnsmasq", "--no-ping", "--dhcp-lease-max=60000", "--user=root", "--pid-file=", "--log-facility=-", "--quiet-dhcp")
		peers["dnsmasq"] = dora(t, h)
		stop()
	}
	f, err := lease.OpenFile(filepath.Join(dir, "leases"))
	if err != nil {
		t.Fatal(err)
	}
	stop := ours(t, f, dir)
	add("DORA, durable lease file", "1/s", dora(t, h), peers)
	stop()
	f.Close()
	db, err := store.Open(t.Context(), store.Config{Driver: "sqlite", DSN: filepath.Join(dir, "db")})
	if err != nil {
		t.Fatal(err)
	}
	stop = ours(t, pxetest.Leases{Store: db}, dir)
	add("DORA, SQLite", "1/s", dora(t, h), peers)
	stop()
	db.Close()

	add("memory for 10,000 leases", "MiB", leaseMemory(t), nil)
	files(t, h, dir, add)
	if name := os.Getenv("BENCH_JSON"); name != "" {
		b, _ := json.MarshalIndent(all, "", "  ")
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if os.Getenv("GOALS") != "" {
		for _, f := range all {
			if f.Holds != nil && !*f.Holds {
				t.Errorf("%s: %.1f %s, %s has %.1f", f.Name, f.Value, f.Unit, f.Peer, f.PeerValue)
			}
		}
	}
}

// leaseMemory is what 10,000 leases and the book over them take.
func leaseMemory(t *testing.T) float64 {
	t.Helper()
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	before := heap()
	b := lease.NewBook(lease.NewMemory(), lease.Options{})
	p := lease.Pool{Subnet: "10.88.0.0/16", Prefix: netip.MustParsePrefix("10.88.0.0/16"), Ranges: []lease.Range{{From: netip.MustParseAddr("10.88.1.0"), To: netip.MustParseAddr("10.88.250.255")}}}
	for i := range 10_000 {
		mac := fmt.Sprintf("00:0c:00:00:%02x:%02x", i>>8, i&255)
		a, err := b.Offer(t.Context(), p, mac, netip.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Bind(t.Context(), p, lease.Claim{MAC: mac, IP: a, For: time.Hour, Server: "srv-" + mac}); err != nil {
			t.Fatal(err)
		}
	}
	used := heap() - before
	runtime.KeepAlive(b)
	return used
}

// files compares TFTP and HTTP with one client and with 64.
func files(t *testing.T, h *host, dir string, add func(name, unit string, value float64, peers map[string]float64)) {
	const size = 100 << 20
	if err := os.WriteFile(filepath.Join(dir, "initrd"), make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "small"), make([]byte, size/16), 0o644); err != nil {
		t.Fatal(err)
	}
	tftp := func(n int, file string, bytes float64) float64 {
		return speed(t, h, n, bytes, "curl", "-sf", "--tftp-blksize", "1468", "-o", "/dev/null", "tftp://10.88.0.1/"+file)
	}
	http := func(n int, url string, bytes float64) float64 {
		return speed(t, h, n, bytes, "curl", "-sf", "-o", "/dev/null", url)
	}
	one, many, h1, h64 := map[string]float64{}, map[string]float64{}, map[string]float64{}, map[string]float64{}
	if _, err := exec.LookPath("in.tftpd"); err == nil {
		stop := daemon(t, "69", "in.tftpd", "-L", "-4", "-a", "10.88.0.1:69", "-u", "root", "-s", dir)
		one["tftpd-hpa"], many["tftpd-hpa"] = tftp(1, "initrd", size), tftp(64, "small", size/16)
		stop()
	}
	if _, err := exec.LookPath("dnsmasq"); err == nil {
		stop := daemon(t, "69", "dnsmasq", "-k", "-p", "0", "--enable-tftp", "--tftp-root="+dir, "--tftp-max=200", "--user=root", "--pid-file=", "--log-facility=-")
		one["dnsmasq"], many["dnsmasq"] = tftp(1, "initrd", size), tftp(64, "small", size/16)
		stop()
	}
	if _, err := exec.LookPath("nginx"); err == nil {
		conf := filepath.Join(dir, "nginx.conf")
		os.WriteFile(conf, []byte("user root; daemon off; worker_processes auto; pid "+dir+"/nginx.pid; error_log /dev/null; events { worker_connections 1024; } http { access_log off; sendfile on; server { listen 10.88.0.1:80; root "+dir+"; } }"), 0o644)
		stop := daemon(t, "80", "nginx", "-c", conf)
		h1["nginx"], h64["nginx"] = http(1, "http://10.88.0.1/initrd", size), http(64, "http://10.88.0.1/small", size/16)
		stop()
	}
	stop := ours(t, lease.NewMemory(), dir)
	defer stop()
	add("TFTP, 100 MB, one client", "MB/s", tftp(1, "initrd", size), one)
	add("TFTP, 64 clients", "MB/s", tftp(64, "small", size/16), many)
	add("HTTP, 100 MB, one client", "MB/s", http(1, "http://10.88.0.1:8080/files/initrd", size), h1)
	add("HTTP, 64 clients", "MB/s", http(64, "http://10.88.0.1:8080/files/small", size/16), h64)
}

// speed is how fast n clients at once fetch so many bytes each, all together, in MB/s.
func speed(t *testing.T, h *host, n int, bytes float64, args ...string) float64 {
	t.Helper()
	var wg sync.WaitGroup
	start := time.Now()
	defer func() { t.Logf("%d x %v: %.1fs", n, args[len(args)-1], time.Since(start).Seconds()) }()
	for range n {
		wg.Go(func() {
			if out, err := h.try(args...); err != nil {
				t.Errorf("%v: %v %s", args, err, out)
			}
		})
	}
	wg.Wait()
	return float64(n) * bytes / 1e6 / time.Since(start).Seconds()
}
