package ndisc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/ipv6"
)

// Seen is what one router advertises.
type Seen struct {
	From    netip.Addr
	Managed bool // flag M: addresses come from DHCPv6
}

// Look asks who advertises on an interface and collects the answers until ctx ends. An error is what kept it from
// asking.
func Look(ctx context.Context, ifname string) ([]Seen, error) {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return nil, fmt.Errorf("interface %q: %w", ifname, err)
	}
	l, err := open(i, ipv6.ICMPTypeRouterAdvertisement)
	if err != nil {
		return nil, err
	}
	defer l.pc.Close()
	defer l.until(ctx)()
	if err := l.send(&ndp.RouterSolicitation{Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: i.HardwareAddr}}}, allRouters); err != nil {
		return nil, err
	}
	var all []Seen
	for {
		m, from, err := l.receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		ra, ok := m.(*ndp.RouterAdvertisement)
		if !ok || slices.ContainsFunc(all, func(s Seen) bool { return s.From == from }) {
			continue
		}
		all = append(all, Seen{from, ra.ManagedConfiguration})
	}
}
