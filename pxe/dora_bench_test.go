package pxe_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"gpupool/pxe/boot"
	"gpupool/pxe/dhcp"
	"gpupool/pxe/lease"
	"gpupool/pxe/pxetest"
	"gpupool/schema"
	"gpupool/schema/store"
)

// known is an inventory in which every MAC is a server.
type known struct{}

func (known) ByMAC(_ context.Context, mac string) (boot.Machine, bool, error) {
	return boot.Machine{ID: "srv-" + mac, Phase: schema.PhaseAvailable}, true, nil
}
func (known) ByID(context.Context, string) (boot.Machine, bool, error) {
	return boot.Machine{}, false, nil
}

// BenchmarkDORA is one new machine's DISCOVER and REQUEST through the server, without sockets, 64 at a time, on each
// store. What is left of it with the memory store is the protocol's own cost.
func BenchmarkDORA(b *testing.B) {
	for name, open := range map[string]func(dir string) (lease.Store, func() error){
		"memory": func(string) (lease.Store, func() error) { return lease.NewMemory(), func() error { return nil } },
		"sqlite": func(dir string) (lease.Store, func() error) {
			db, err := store.Open(b.Context(), store.Config{Driver: "sqlite", DSN: filepath.Join(dir, "db")})
			if err != nil {
				b.Fatal(err)
			}
			return pxetest.Leases{Store: db}, db.Close
		},
	} {
		b.Run(name, func(b *testing.B) {
			st, end := open(b.TempDir())
			defer func() {
				if err := end(); err != nil {
					b.Error(err)
				}
			}()
			s, err := dhcp.New(dhcp.Config{ServerID: netip.MustParseAddr("10.0.0.1"), ScriptURL: func(string) string { return "" }, Subnets: []dhcp.Subnet{{Prefix: netip.MustParsePrefix("10.0.0.0/10")}}},
				dhcp.Deps{Inventory: known{}, Book: lease.NewBook(st, lease.Options{})})
			if err != nil {
				b.Fatal(err)
			}
			relay := dhcpv4.WithRelay(net.IPv4(10, 0, 0, 9))
			var n atomic.Uint32
			b.SetParallelism(32)
			b.ReportAllocs()
			b.ResetTimer()
			used := processorTime()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					i := n.Add(1)
					hw := net.HardwareAddr{2, 0, byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)}
					d, _ := dhcpv4.NewDiscovery(hw, relay)
					r, ok := s.Answer(b.Context(), d.ToBytes(), dhcp.Arrival{})
					if !ok {
						b.Error("no OFFER")
						return
					}
					offer, err := dhcpv4.FromBytes(r.Bytes)
					if err != nil {
						b.Error(err)
						return
					}
					q, _ := dhcpv4.NewRequestFromOffer(offer, relay)
					r, ok = s.Answer(b.Context(), q.ToBytes(), dhcp.Arrival{})
					if !ok || r.Type != dhcpv4.MessageTypeAck {
						b.Error("no ACK: ", strings.ToLower(fmt.Sprint(r.Type)))
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "DORA/s")
			b.ReportMetric(float64((processorTime()-used).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

// processorTime is what this process has used: unlike the rate it doesn't depend on who else is at work here.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
