package pxebench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
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

// dora is how many exchanges of four messages are done in a second, with leases that outlive the process.
func (b *bench) dora() ([]Result, error) {
	conf := fmt.Sprintf(`{"Dhcp4":{"interfaces-config":{"interfaces":["br0"],"dhcp-socket-type":"raw"},"lease-database":{"type":"memfile","persist":true,"name":"%s","lfc-interval":0},
		"valid-lifetime":3600,"subnet4":[{"subnet":"10.88.0.0/16","pools":[{"pool":"10.88.1.0-10.88.250.255"}]}],"multi-threading":{"enable-multi-threading":true,"thread-pool-size":2},
		"loggers":[{"name":"kea-dhcp4","severity":"ERROR","output_options":[{"output":"stderr"}]}]}}`, b.path("kea.csv"))
	if err := os.WriteFile(b.path("kea.json"), []byte(conf), 0o644); err != nil {
		return nil, err
	}
	n := 0
	ours := func(c setup) func() (func(), error) {
		return func() (func(), error) { // each round has leases of its own
			n++
			c := c
			c.Record = b.path(fmt.Sprint("record", n))
			return b.service(c)
		}
	}
	perf := func() ([]float64, error) {
		v, err := b.perfdhcp()
		return []float64{v}, err
	}
	const normal, full, whole = "gpupool, SQLite", "gpupool, SQLite flushed", "gpupool, SQLite with evidence"
	m, err := b.turns("DORA", []one{
		{"kea", func() (func(), error) {
			_ = os.Remove(b.path("kea.csv"))
			return b.daemon("67", "kea-dhcp4", "-c", b.path("kea.json"))
		}, perf},
		{normal, ours(setup{Sync: "normal"}), perf},
		{full, ours(setup{Sync: "full"}), perf},
		{whole, ours(setup{Sync: "normal", Evidence: true}), perf},
		{"dnsmasq", func() (func(), error) {
			_ = os.Remove(b.path("dnsmasq.leases"))
			return b.daemon("67", "dnsmasq", "-k", "-p", "0", "--dhcp-range=10.88.1.0,10.88.250.255,255.255.0.0,1h", "--dhcp-leasefile="+b.path("dnsmasq.leases"), "--no-ping",
				"--dhcp-lease-max=60000", "--user=root", "--pid-file=", "--log-facility=-", "--quiet-dhcp")
		}, perf},
	})
	if err != nil {
		return nil, err
	}
	peers := peersOf(m, 0)
	return []Result{
		{Name: "DORA, leases in SQLite, kept over kill -9 as the peer's", Unit: "1/s", Value: m[normal][0], Peers: peers},
		{Name: "DORA, leases in SQLite, kept over a power cut", Unit: "1/s", Value: m[full][0], Peers: peers},
		{Name: "DORA, leases in SQLite, and an event for each message", Unit: "1/s", Value: m[whole][0], Peers: peers},
	}, nil
}

var rate = regexp.MustCompile(`Rate: ([0-9.e+]+) 4-way`)

// perfdhcp asks for more exchanges than any server here can do, and returns how many it got in a second.
func (b *bench) perfdhcp() (float64, error) {
	// It ends with 3 where packets were lost, which at this rate they are.
	out, err := b.far.run(b.ctx, "perfdhcp", "-4", "-l", "eth0", "-B", "-r", "12000", "-R", strconv.Itoa(clients), "-p", "5", "-W", "500000")
	m := rate.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("perfdhcp: %w: %s", err, out)
	}
	return strconv.ParseFloat(m[1], 64)
}

// flood is how long servers wait for their OFFER while others send ten times as many packets as they do, and more than
// any site has: 10,000 DISCOVERs a second with made-up MACs.
func (b *bench) flood() ([]Result, error) {
	b.say("OFFERs during a flood")
	stop, err := b.service(setup{})
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
