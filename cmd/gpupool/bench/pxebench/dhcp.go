package pxebench

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"gpupool/pxe/boot"
	"gpupool/pxe/lease"
)

// dora is how many exchanges of four messages are done in a second, with leases that outlive the process, and how many for
// each second of processor time that the server and its database use: who else is at work on this machine changes the first
// and not the second. Whose leases outlive a power cut too is seen by the flushes of the disk.
func (b *bench) dora() ([]Result, error) {
	ours := func(c setup) func() (func(), error) { return func() (func(), error) { return b.service(c) } }
	const normal, full, whole, shared, keaShared = "gpupool, SQLite", "gpupool, SQLite flushed", "gpupool, SQLite with evidence", "gpupool, PostgreSQL", "kea, PostgreSQL"
	all := []one{
		{"kea", func() (func(), error) {
			_ = os.Remove(b.path("kea.csv"))
			return b.kea(2, map[string]any{"type": "memfile", "persist": true, "name": b.path("kea.csv"), "lfc-interval": 0})
		}, b.perfdhcp},
		{normal, ours(setup{Driver: sqlite, Sync: "normal"}), b.perfdhcp},
		{full, ours(setup{Driver: sqlite, Sync: "full"}), b.perfdhcp},
		{whole, ours(setup{Driver: sqlite, Sync: "normal", Evidence: true}), b.perfdhcp},
		{"dnsmasq", func() (func(), error) {
			_ = os.Remove(b.path("dnsmasq.leases"))
			return b.daemon("67", "dnsmasq", "-k", "-p", "0", "--dhcp-range=10.88.1.0,10.88.250.255,255.255.0.0,1h", "--dhcp-leasefile="+b.path("dnsmasq.leases"), "--no-ping",
				"--dhcp-lease-max=60000", "--user=root", "--pid-file=", "--log-facility=-", "--quiet-dhcp")
		}, b.perfdhcp},
	}
	if b.rec.server != nil {
		all = append(all, one{shared, ours(setup{Driver: postgres}), b.perfdhcp})
	}
	if b.rec.kea {
		all = append(all, one{keaShared, func() (func(), error) {
			name, err := b.rec.database(b.ctx, keaSeed)
			if err != nil {
				return nil, err
			}
			// Its threads wait for the database, so that many keep more of them than there are processors is what it is best with.
			return b.kea(16, map[string]any{"type": "postgresql", "name": name, "host": b.rec.server.Host, "user": b.rec.server.User})
		}, b.perfdhcp})
	}
	m, err := b.turns("DORA", all)
	if err != nil {
		return nil, err
	}
	var out []Result
	kept := map[string]bool{} // over a power cut
	for _, o := range all {
		n, err := b.flushes(o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.name, err)
		}
		kept[o.name] = n >= 10
		out = append(out, Result{Name: "DORA, flushes of the disk for 100 leases: " + o.name, Value: n})
	}
	for i, by := range []struct{ suffix, unit string }{{"", "1/s"}, {", for each second of processor time", "1/s"}} {
		files, durable := peersOf(m, i), peersOf(m, i)
		delete(files, keaShared)
		for name := range durable {
			if !kept[name] {
				delete(durable, name)
			}
		}
		out = append(out,
			Result{Name: "DORA, leases in SQLite, kept over a power cut, beside peers whose are" + by.suffix, Unit: by.unit, Value: m[full][i], Peers: durable},
			Result{Name: "DORA, leases in SQLite, kept over a power cut, beside peers with files" + by.suffix, Unit: by.unit, Value: m[full][i], Peers: files},
			Result{Name: "DORA, leases in SQLite, kept over kill -9, beside peers with files" + by.suffix, Unit: by.unit, Value: m[normal][i], Peers: files},
			Result{Name: "DORA, leases in SQLite, and an event for each message, beside peers with files" + by.suffix, Unit: by.unit, Value: m[whole][i], Peers: files})
		if v, ok := m[keaShared]; ok {
			out = append(out, Result{Name: "DORA, leases in PostgreSQL, kept over a power cut, beside peers whose are there" + by.suffix, Unit: by.unit, Value: m[shared][i], Peers: map[string]float64{keaShared: v[i]}})
		}
	}
	return out, nil
}

// flush is a call that returns once what was written is on the disk, as strace tells of it.
var flush = regexp.MustCompile(`\b(fsync|fdatasync|sync_file_range|msync)\(`)

// flushes is how often the disk is flushed for each hundred leases that are asked for one after the other: where it is not,
// a power cut takes leases that were acknowledged. What the server's database flushes counts as its own.
func (b *bench) flushes(o one) (float64, error) {
	b.say("DORA, flushes of the disk: " + o.name)
	stop, err := o.start()
	if err != nil {
		return 0, err
	}
	defer stop()
	family, err := family()
	if err != nil {
		return 0, err
	}
	trace := b.path("flushes")
	args := []string{"-f", "-e", "trace=fsync,fdatasync,sync_file_range,msync", "-o", trace}
	for pid := range family {
		args = append(args, "-p", pid)
	}
	c := exec.CommandContext(b.ctx, "strace", args...)
	said, err := c.StderrPipe()
	if err != nil {
		return 0, err
	}
	if err := c.Start(); err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(said)
	for attached := 0; attached < len(family) && lines.Scan(); { // one line for each, and for each of their threads
		attached++
	}
	var rest sync.WaitGroup
	rest.Go(func() {
		for lines.Scan() {
		}
	})
	out, asked := b.far.run(b.ctx, "perfdhcp", "-4", "-l", "eth0", "-B", "-r", "100", "-R", strconv.Itoa(clients), "-p", "3", "-W", "500000")
	err = c.Process.Signal(os.Interrupt)
	rest.Wait()
	_ = c.Wait() // it says that it was interrupted
	n := done.FindStringSubmatch(out)
	if n == nil || err != nil {
		return 0, fmt.Errorf("perfdhcp: %w: %s", errors.Join(asked, err), out)
	}
	leases, err := strconv.ParseFloat(n[1], 64)
	if err != nil || leases == 0 {
		return 0, fmt.Errorf("no lease was given: %w: %s", err, out)
	}
	calls, err := os.ReadFile(trace)
	return float64(len(flush.FindAll(calls, -1))) / leases * 100, err
}

// kea starts Kea with its leases there.
func (b *bench) kea(threads int, leases map[string]any) (func(), error) {
	conf, err := json.Marshal(map[string]any{"Dhcp4": map[string]any{
		"interfaces-config": map[string]any{"interfaces": []string{"br0"}, "dhcp-socket-type": "raw"}, "lease-database": leases, "valid-lifetime": 3600,
		"subnet4":         []any{map[string]any{"subnet": "10.88.0.0/16", "pools": []any{map[string]any{"pool": "10.88.1.0-10.88.250.255"}}}},
		"multi-threading": map[string]any{"enable-multi-threading": true, "thread-pool-size": threads},
		"loggers":         []any{map[string]any{"name": "kea-dhcp4", "severity": "ERROR", "output_options": []any{map[string]any{"output": "stderr"}}}},
	}})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(b.path("kea.json"), conf, 0o644); err != nil {
		return nil, err
	}
	return b.daemon("67", "kea-dhcp4", "-c", b.path("kea.json"))
}

var (
	rate = regexp.MustCompile(`Rate: ([0-9.e+]+) 4-way`)
	done = regexp.MustCompile(`REQUEST-ACK[^R]*sent packets: [0-9]+\s+received packets: ([0-9]+)`)
)

// perfdhcp asks for more exchanges than any server here can do, and returns how many it got in a second, and in a second of
// processor time.
func (b *bench) perfdhcp() ([]float64, error) {
	before, err := spent()
	if err != nil {
		return nil, err
	}
	// It ends with 3 where packets were lost, which at this rate they are.
	out, err := b.far.run(b.ctx, "perfdhcp", "-4", "-l", "eth0", "-B", "-r", "12000", "-R", strconv.Itoa(clients), "-p", "5", "-W", "500000")
	r, n := rate.FindStringSubmatch(out), done.FindStringSubmatch(out)
	if r == nil || n == nil {
		return nil, fmt.Errorf("perfdhcp: %w: %s", err, out)
	}
	after, err := spent()
	if err != nil {
		return nil, err
	}
	perSecond, err1 := strconv.ParseFloat(r[1], 64)
	exchanges, err2 := strconv.ParseFloat(n[1], 64)
	return []float64{perSecond, exchanges / (after - before).Seconds()}, errors.Join(err1, err2)
}

// flood is how long servers wait for their OFFER while others send ten times as many packets as they do, and more than
// any site has: 10,000 DISCOVERs a second with made-up MACs.
func (b *bench) flood() ([]Result, error) {
	b.say("OFFERs during a flood")
	stop, err := b.service(setup{Driver: sqlite})
	if err != nil {
		return nil, err
	}
	defer stop()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	at := netip.MustParseAddrPort("10.88.0.1:67")
	select { // the service reads the inventory's MACs when it starts; nobody is known before
	case <-time.After(time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	relay, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 88, 0, 1)})
	if err != nil {
		return nil, err
	}
	defer relay.Close()
	stopFlood := make(chan struct{})
	var flooding sync.WaitGroup
	flooding.Go(func() {
		m, err := dhcpv4.NewDiscovery(net.HardwareAddr{2, 1, 0, 0, 0, 0}, dhcpv4.WithGatewayIP(net.IPv4(10, 88, 0, 1)))
		if err != nil {
			return
		}
		p := m.ToBytes()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := uint32(0); ; {
			select {
			case <-stopFlood:
				return
			case <-tick.C:
			}
			for range 100 {
				n++
				binary.BigEndian.PutUint32(p[30:], n)
				if _, err := relay.WriteToUDPAddrPort(p, at); err != nil {
					return
				}
			}
		}
	})
	defer flooding.Wait()
	defer close(stopFlood)
	var took []float64
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	in := make([]byte, 1500)
	for i := range 2000 {
		<-pace.C
		n := 0x01020304 + i
		d, err := dhcpv4.NewDiscovery(net.HardwareAddr{0, 0x0c, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, dhcpv4.WithGatewayIP(net.IPv4(10, 88, 0, 1)))
		if err != nil {
			return nil, err
		}
		d.Options[82] = []byte{19, 0} // RFC 8357: answered at this socket's port
		begin := time.Now()
		if _, err := relay.WriteToUDPAddrPort(d.ToBytes(), at); err != nil {
			return nil, err
		}
		if err := relay.SetReadDeadline(begin.Add(2 * time.Second)); err != nil {
			return nil, err
		}
		for {
			got, err := relay.Read(in)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				took = append(took, math.Inf(1))
				break
			}
			if err != nil {
				return nil, err
			}
			if got > 8 && [4]byte(in[4:8]) == d.TransactionID {
				took = append(took, float64(time.Since(begin).Microseconds())/1000)
				break
			}
		}
	}
	slices.Sort(took)
	p99 := took[len(took)*99/100]
	if math.IsInf(p99, 1) {
		return nil, errors.New("more than 1 % of the servers had no OFFER within 2 s during a flood")
	}
	return []Result{{Name: "OFFER to a server during a flood of 10,000 packets/s, p99", Unit: "ms", Value: p99, AtMost: 50}}, nil
}

// memory is what 10,000 leases and the book over them take.
func (b *bench) memory() ([]Result, error) {
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	before := heap()
	book := lease.NewBook(lease.NewMemory(), lease.Options{})
	p := lease.Pool{Subnet: "10.88.0.0/16", Prefix: netip.MustParsePrefix("10.88.0.0/16"), Ranges: []lease.Range{{From: netip.MustParseAddr("10.88.1.0"), To: netip.MustParseAddr("10.88.250.255")}}}
	for i := range 10_000 {
		mac := boot.MAC(net.HardwareAddr{0, 0x0c, 0, 0, byte(i >> 8), byte(i)})
		ip, err := book.Offer(b.ctx, p, mac, netip.Addr{})
		if err == nil {
			_, err = book.Bind(b.ctx, p, lease.Claim{MAC: mac, IP: ip, For: time.Hour, Server: "srv-" + mac})
		}
		if err != nil {
			return nil, err
		}
	}
	used := heap() - before
	runtime.KeepAlive(book)
	return []Result{{Name: "memory for 10,000 leases", Unit: "MiB", Value: used, AtMost: 64}}, nil
}
