package pxe_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"gpupool/pxe"
	"gpupool/pxe/boot"
	"gpupool/schema"
)

// TestServersAreAnsweredDuringAFlood: 10,000 DISCOVERs a second with made-up MACs, and a server of the
// inventory that boots every 20 ms.
func TestServersAreAnsweredDuringAFlood(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.23", func(c *pxe.Config) { c.Subnets[0].Range = "127.77.23.1-127.77.23.90" })
	const servers = 60
	for i := range servers {
		s.Put(boot.Machine{ID: clientMAC(i), Phase: schema.PhaseAvailable}, clientMAC(i))
	}
	<-time.After(3500 * time.Millisecond) // the service reads the inventory's list of MACs every 3 s
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stop := make(chan struct{})
	var flood sync.WaitGroup
	sent := 0
	flood.Go(func() {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 77, 23, 250)})
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		m, err := dhcpv4.NewDiscovery(net.HardwareAddr{2, 1, 0, 0, 0, 0}, dhcpv4.WithGatewayIP(net.IPv4(127, 77, 23, 250)))
		if err != nil {
			t.Error(err)
			return
		}
		b := m.ToBytes()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := uint32(0); ; {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			for range 100 {
				n++
				sent++
				binary.BigEndian.PutUint32(b[30:], n)
				if _, err := c.WriteToUDPAddrPort(b, s.Addrs().DHCP); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	var took []time.Duration
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	for i := range servers {
		<-pace.C
		hw, err := net.ParseMAC(clientMAC(i))
		if err != nil {
			t.Fatal(err)
		}
		r := &relayed{hw: hw}
		if r.conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 77, 23, byte(100+i))}); err != nil {
			t.Fatal(err)
		}
		d, err := dhcpv4.NewDiscovery(hw)
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		_, err = r.ask(ctx, func() netip.AddrPort { return s.Addrs().DHCP }, d)
		took = append(took, time.Since(begin))
		r.conn.Close()
		if err != nil {
			t.Fatalf("server %d: %v", i, err)
		}
	}
	close(stop)
	flood.Wait()
	if sent < 5000 {
		t.Skipf("only %d packets of the flood could be sent: this machine is too busy to tell", sent)
	}
	slices.Sort(took)
	t.Logf("offers took %v at the median, %v at most", took[len(took)/2], took[len(took)-1])
	if took[len(took)/2] > 50*time.Millisecond {
		t.Errorf("offers took %v at the median during a flood", took[len(took)/2])
	}
}
