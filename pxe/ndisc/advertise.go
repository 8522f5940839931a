package ndisc

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/ipv6"
	"golang.org/x/time/rate"
)

// RFC 4861 sections 6.2.1 and 10.
const (
	minInterval = 20 * time.Second
	maxInterval = time.Minute
	minDelay    = 3 * time.Second        // between two advertisements to all nodes
	maxAnswer   = 500 * time.Millisecond // before one that was asked for
	initial     = 3                      // advertisements in quick succession at the start
	initialWait = 5 * time.Second
	onLinkFor   = 30 * 24 * time.Hour // RFC 4861's AdvValidLifetime
)

var (
	allNodes   = netip.MustParseAddr("ff02::1")
	allRouters = netip.MustParseAddr("ff02::2")
)

// Advertiser tells the hosts on one interface to ask DHCPv6.
type Advertiser struct {
	Interface string
	Prefixes  []netip.Prefix // that are on this link
	DNS       []netip.Addr
	Log       *slog.Logger
}

// advertisement is what is sent.
func (a Advertiser) advertisement(hw net.HardwareAddr) *ndp.RouterAdvertisement {
	m := &ndp.RouterAdvertisement{ManagedConfiguration: true, OtherConfiguration: true}
	if len(hw) == 6 {
		m.Options = append(m.Options, &ndp.LinkLayerAddress{Direction: ndp.Source, Addr: hw})
	}
	for _, p := range a.Prefixes {
		m.Options = append(m.Options, &ndp.PrefixInformation{Prefix: p.Addr(), PrefixLength: uint8(p.Bits()), OnLink: true, ValidLifetime: onLinkFor, PreferredLifetime: onLinkFor})
	}
	if len(a.DNS) > 0 {
		m.Options = append(m.Options, &ndp.RecursiveDNSServer{Lifetime: 3 * maxInterval, Servers: a.DNS}) // RFC 8106
	}
	return m
}

// retry is how long an interface that can't be used yet is left alone: it has no link-local address until it has looked
// whether another host has the same.
const (
	retry    = 2 * time.Second
	patience = 3 // tries, before it is worth a word
)

// Serve advertises until ctx ends. Where the interface is away or not ready it waits for it.
func (a Advertiser) Serve(ctx context.Context) error {
	for tries := 1; ctx.Err() == nil; tries++ {
		err := a.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if tries == patience {
			a.Log.Warn("IPv6 router advertisements wait for the interface", "interface", a.Interface, "err", err)
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
		}
	}
	return nil
}

func (a Advertiser) serve(ctx context.Context) error {
	i, err := net.InterfaceByName(a.Interface)
	if err != nil {
		return err
	}
	l, err := open(i, ipv6.ICMPTypeRouterSolicitation)
	if err != nil {
		return err
	}
	defer l.until(ctx)()
	var reader sync.WaitGroup
	defer reader.Wait()
	defer l.pc.Close()
	if err := l.join(allRouters); err != nil {
		return fmt.Errorf("join the group of routers: %w", err)
	}
	asked := make(chan netip.Addr, 64)
	failed := make(chan error, 1)
	reader.Go(func() {
		for {
			m, from, err := l.receive()
			if err != nil {
				failed <- err
				return
			}
			s, ok := m.(*ndp.RouterSolicitation)
			if !ok || from.IsUnspecified() && len(s.Options) > 0 { // section 6.1.1: who has no address names no other
				continue
			}
			select {
			case asked <- from:
			default: // a flood: the advertisement to all is due within a minute anyway
			}
		}
	})
	m := a.advertisement(i.HardwareAddr)
	answers := rate.NewLimiter(50, 50)
	due := time.Now().Add(rand.N(maxAnswer))
	next := time.NewTimer(time.Until(due))
	defer next.Stop()
	sent, last := 0, time.Time{}
	for {
		select {
		case err := <-failed:
			return err
		case from := <-asked:
			if !from.IsUnspecified() {
				if answers.Allow() {
					if err := l.send(m, from); err != nil {
						return err
					}
				}
				continue
			}
			// It has no address to be answered at: all are told, soon, and never later however many ask.
			if at := time.Now().Add(max(rand.N(maxAnswer), time.Until(last.Add(minDelay)))); at.Before(due) {
				due = at
				next.Reset(time.Until(due))
			}
		case <-next.C:
			if err := l.send(m, allNodes); err != nil {
				return err
			}
			sent, last = sent+1, time.Now()
			wait := minInterval + rand.N(maxInterval-minInterval)
			if sent < initial {
				wait = initialWait
			}
			due = last.Add(wait)
			next.Reset(wait)
		}
	}
}
