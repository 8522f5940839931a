package netboot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Relay is one DHCP relay agent and the wire behind it. It owns one goroutine; Close waits for it.
//
// mu guards clients: who waits for an answer, by transaction.
type Relay struct {
	conn   *net.UDPConn
	server netip.AddrPort
	giaddr net.IP
	done   chan struct{}

	mu      sync.Mutex
	clients map[dhcpv4.TransactionID]chan *dhcpv4.DHCPv4
}

// NewRelay opens a relay at giaddr (an address of this machine, in the subnet whose leases its clients want) towards
// the DHCP server.
func NewRelay(giaddr netip.Addr, server netip.AddrPort) (*Relay, error) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: giaddr.AsSlice()})
	if err != nil {
		return nil, fmt.Errorf("lab's DHCP relay at %s: %w", giaddr, err)
	}
	r := &Relay{conn: conn, server: server, giaddr: giaddr.AsSlice(), done: make(chan struct{}), clients: map[dhcpv4.TransactionID]chan *dhcpv4.DHCPv4{}}
	go r.serve()
	return r, nil
}

// Close ends the relay.
func (r *Relay) Close() error {
	err := r.conn.Close()
	<-r.done
	return err
}

func (r *Relay) serve() {
	defer close(r.done)
	buf := make([]byte, 2048)
	for {
		n, _, err := r.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error of an earlier packet: the server is not up yet
		}
		m, err := dhcpv4.FromBytes(buf[:n])
		if err != nil || m.OpCode != dhcpv4.OpcodeBootReply || !m.GatewayIPAddr.Equal(r.giaddr) {
			continue
		}
		r.mu.Lock()
		ch := r.clients[m.TransactionID]
		r.mu.Unlock()
		if ch != nil {
			select {
			case ch <- m:
			default: // it has enough to read
			}
		}
	}
}

// open lets a client hear the answers to a transaction.
func (r *Relay) open(xid dhcpv4.TransactionID) (answers <-chan *dhcpv4.DHCPv4, free func()) {
	ch := make(chan *dhcpv4.DHCPv4, 4)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients[xid] = ch
	return ch, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.clients, xid)
	}
}

// forward relays a client's broadcast: giaddr, a hop, and option 82 with the port it came in by (circuit, sub-option 1)
// and the request to be answered at this socket's port (sub-option 19, RFC 8357).
func (r *Relay) forward(_ context.Context, m *dhcpv4.DHCPv4, circuit string) error {
	m.GatewayIPAddr, m.HopCount = r.giaddr, m.HopCount+1
	circuit = circuit[:min(len(circuit), 64)]
	o82 := append([]byte{dhcpv4.AgentCircuitIDSubOption.Code(), byte(len(circuit))}, circuit...)
	m.Options[dhcpv4.OptionRelayAgentInformation.Code()] = append(o82, dhcpv4.RelaySourcePortSubOption.Code(), 0)
	_, err := r.conn.WriteToUDPAddrPort(m.ToBytes(), r.server)
	return err
}
