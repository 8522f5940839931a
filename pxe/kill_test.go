package pxe_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"gpupool/pxe"
	"gpupool/pxe/boot"
	"gpupool/pxe/pxetest"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// childEnv makes the test binary a boot service on the database it names; childNet is the network that it serves, as 127.78.0.
const (
	childEnv = "GPUPOOL_PXE_TEST_DATABASE"
	childNet = "GPUPOOL_PXE_TEST_NETWORK"
)

const clients = 50

func clientMAC(i int) string { return fmt.Sprintf("52:54:00:66:00:%02x", i) }

// child is a boot service in a process of its own, to be killed.
func child(dsn string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	driver := "sqlite"
	if strings.HasPrefix(dsn, "postgres:") {
		driver = "postgres"
	}
	db, err := store.Open(context.Background(), store.Config{Driver: driver, DSN: dsn})
	if err != nil {
		fail(err)
	}
	network := os.Getenv(childNet)
	p := pxetest.New()
	for i := range clients {
		p.Put(boot.Machine{ID: fmt.Sprint("srv-", i), Phase: schema.PhaseAvailable}, clientMAC(i))
	}
	root, err := os.MkdirTemp("", "boot")
	if err != nil {
		fail(err)
	}
	s, err := pxe.New(pxe.Config{Mode: "relay", ServerID: "127.0.0.1", DHCP: "127.0.0.1:0", PXE: pxe.Off, TFTP: pxe.Off, HTTP: pxe.Off, URL: "http://127.0.0.1", Root: root,
		Subnets: []pxe.Subnet{{CIDR: network + "0/24", Range: network + "100-" + network + "160"}}}, pxe.Deps{Inventory: p, Tokens: p, Leases: pxetest.Leases{Store: db}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		fail(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(s.Addrs().DHCP); err != nil {
		fail(err)
	}
	fail(s.Run(context.Background()))
}

// start runs a child and returns it and where it listens.
func start(t *testing.T, dsn, network string) (*exec.Cmd, netip.AddrPort) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childEnv+"="+dsn, childNet+"="+network, "TMPDIR="+t.TempDir())
	c.Stderr = t.Output()
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var at netip.AddrPort
	if err == nil {
		err = json.Unmarshal(line, &at)
	}
	if err != nil {
		t.Fatalf("child: %v", err)
	}
	return c, at
}

// relayed is one client behind a relay of its own; it repeats what isn't answered, as clients do.
type relayed struct {
	conn *net.UDPConn
	hw   net.HardwareAddr
	ip   net.IP // leased
	id   net.IP // of the server that leased it
}

var errUnanswered = errors.New("not answered")

func (r *relayed) ask(ctx context.Context, to func() netip.AddrPort, m *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	m.GatewayIPAddr = r.conn.LocalAddr().(*net.UDPAddr).IP.To4()
	m.Options[82] = []byte{19, 0}
	b := make([]byte, 1500)
	for ctx.Err() == nil {
		if _, err := r.conn.WriteToUDPAddrPort(m.ToBytes(), to()); err != nil {
			return nil, err
		}
		r.conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		for {
			n, err := r.conn.Read(b)
			if err != nil {
				break
			}
			a, err := dhcpv4.FromBytes(b[:n])
			if err != nil || a.TransactionID != m.TransactionID || a.MessageType() == dhcpv4.MessageTypeOffer && m.MessageType() != dhcpv4.MessageTypeDiscover {
				continue // the last is a late answer to a DISCOVER that was repeated
			}
			return a, nil
		}
	}
	return nil, errUnanswered
}

// bind goes through DORA until it is acknowledged. A client whose REQUEST stays unanswered begins again, as RFC 2131
// section 3.1 has it: the server that offered may be gone, and its offer with it.
func (r *relayed) bind(ctx context.Context, to func() netip.AddrPort) error {
	for {
		patience, cancel := context.WithTimeout(ctx, time.Second)
		err := r.dora(patience, to)
		cancel()
		if !errors.Is(err, errUnanswered) || ctx.Err() != nil {
			return err
		}
	}
}

func (r *relayed) dora(ctx context.Context, to func() netip.AddrPort) error {
	d, err := dhcpv4.NewDiscovery(r.hw)
	if err != nil {
		return err
	}
	offer, err := r.ask(ctx, to, d)
	if err != nil {
		return err
	}
	q, err := dhcpv4.NewRequestFromOffer(offer)
	if err != nil {
		return err
	}
	ack, err := r.ask(ctx, to, q)
	if err != nil {
		return err
	}
	if ack.MessageType() == dhcpv4.MessageTypeAck {
		r.ip, r.id = ack.YourIPAddr, ack.ServerIdentifier()
		return nil
	}
	return fmt.Errorf("%s to the REQUEST of the %s that was offered", ack.MessageType(), offer.YourIPAddr)
}

// TestKilledRightAfterAnACK: fifty clients bind, a server is killed in the middle of it, a standby on the same
// database goes on: one that is started then, or one that has answered every other packet all the time. Whoever had an ACK
// keeps its address with the same server identifier, by INIT-REBOOT, by rebinding through the relay and by renewing in person;
// the others get one; none is given twice.
func TestKilledRightAfterAnACK(t *testing.T) {
	t.Parallel()
	t.Run("SQLite, the standby is started then", func(t *testing.T) {
		t.Parallel()
		killedRightAfterAnACK(t, filepath.Join(t.TempDir(), "gpupool.db"), "127.78.0.", false)
	})
	t.Run("PostgreSQL, both answer", func(t *testing.T) {
		t.Parallel()
		killedRightAfterAnACK(t, storetest.Database(t, storetest.Postgres(t)), "127.79.0.", true)
	})
}

func killedRightAfterAnACK(t *testing.T, dsn, network string, both bool) {
	active, first := start(t, dsn, network)
	var standby netip.AddrPort
	var at atomic.Pointer[[]netip.AddrPort]
	if at.Store(&[]netip.AddrPort{first}); both {
		_, standby = start(t, dsn, network)
		at.Store(&[]netip.AddrPort{first, standby})
	}
	var packets atomic.Int64
	to := func() netip.AddrPort { l := *at.Load(); return l[packets.Add(1)%int64(len(l))] }
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	all := make([]*relayed, clients)
	var acked atomic.Int32
	half := make(chan struct{})
	var wg sync.WaitGroup
	for i := range all {
		hw, err := net.ParseMAC(clientMAC(i))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(fmt.Sprint(network, 1+i))})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		all[i] = &relayed{conn: conn, hw: hw}
		wg.Go(func() {
			if err := all[i].bind(ctx, to); err != nil {
				t.Errorf("client %d: %v", i, err)
			}
			if acked.Add(1) == clients/2 {
				close(half)
			}
		})
	}
	select {
	case <-half:
	case <-ctx.Done():
		t.Fatal("half of the clients were not bound")
	}
	if err := active.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	active.Wait()
	if !both {
		_, standby = start(t, dsn, network)
	}
	at.Store(&[]netip.AddrPort{standby})
	wg.Wait()
	if t.Failed() {
		return
	}

	seen := map[string]int{}
	for i, c := range all {
		if j, ok := seen[c.ip.String()]; ok {
			t.Fatalf("clients %d and %d both have %s", i, j, c.ip)
		}
		seen[c.ip.String()] = i
		if !c.id.Equal(net.IPv4(127, 0, 0, 1)) {
			t.Fatalf("client %d: server identifier %s", i, c.id)
		}
	}
	keeps := func(how string, i int, m *dhcpv4.DHCPv4) {
		t.Helper()
		a, err := all[i].ask(ctx, to, m)
		if err != nil || a.MessageType() != dhcpv4.MessageTypeAck || !a.YourIPAddr.Equal(all[i].ip) || !a.ServerIdentifier().Equal(all[i].id) {
			t.Fatalf("client %d (%s) %s: %v %v", i, all[i].ip, how, a, err)
		}
	}
	for i, c := range all {
		rebind, err := dhcpv4.New(dhcpv4.WithHwAddr(c.hw), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(c.ip))
		if err != nil {
			t.Fatal(err)
		}
		keeps("rebinds", i, rebind)
		reboot, err := dhcpv4.New(dhcpv4.WithHwAddr(c.hw), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(c.ip)))
		if err != nil {
			t.Fatal(err)
		}
		keeps("comes up again", i, reboot)
	}
	renewInPerson(t, standby, all)
}

// renewInPerson renews by unicast without a relay, from the leased address's port 68, where the answer comes.
func renewInPerson(t *testing.T, server netip.AddrPort, all []*relayed) {
	t.Helper()
	for i, c := range all {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: c.ip, Port: 68})
		if errors.Is(err, os.ErrPermission) {
			t.Log("renewing in person is left out: port 68 needs root")
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		m, err := dhcpv4.New(dhcpv4.WithHwAddr(c.hw), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(c.ip))
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1500)
		_, err = conn.WriteToUDPAddrPort(m.ToBytes(), server)
		if err != nil {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := conn.Read(b)
		conn.Close()
		if err != nil {
			t.Fatalf("client %d renews: %v", i, err)
		}
		a, err := dhcpv4.FromBytes(b[:n])
		if err != nil || a.MessageType() != dhcpv4.MessageTypeAck || !a.YourIPAddr.Equal(c.ip) || !a.ServerIdentifier().Equal(c.id) {
			t.Fatalf("client %d renews: %v %v", i, a, err)
		}
	}
}
