package installer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Prepare makes a freshly started kernel usable: its file systems are mounted and the modules in /modules loaded, in the
// order that /modules/order lists. A module that can't be loaded is said, and no failure: it may be for other hardware.
func Prepare(log *slog.Logger) error {
	for _, m := range []struct{ what, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/run"}} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.what, m.at, m.what, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	if err := os.MkdirAll("/mnt", 0o755); err != nil {
		return err
	}
	order, err := os.ReadFile("/modules/order")
	if err != nil {
		return fmt.Errorf("kernel modules: %w", err)
	}
	for _, name := range strings.Fields(string(order)) {
		if err := load(filepath.Join("/modules", name)); err != nil && !errors.Is(err, unix.EEXIST) {
			log.Warn("kernel module not loaded", "module", name, "err", err)
		}
	}
	return nil
}

func load(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// Network gets an address by DHCP on the card that the server booted from, or where that isn't known on the first that
// has a link. It tries until ctx ends.
func Network(ctx context.Context, mac string, log *slog.Logger) error {
	if lo, err := netlink.LinkByName("lo"); err == nil {
		if err := netlink.LinkSetUp(lo); err != nil {
			return fmt.Errorf("loopback: %w", err)
		}
	}
	var last error
	for {
		cards, err := cards(mac)
		if err != nil {
			return err
		}
		for _, c := range cards {
			if last = address(ctx, c, log); last == nil {
				return nil
			}
			log.Warn("no address yet", "card", c.Attrs().Name, "mac", c.Attrs().HardwareAddr.String(), "err", last)
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			if last == nil {
				last = fmt.Errorf("no network card has MAC %q: is its driver in the installer?", mac)
			}
			return fmt.Errorf("no address: %w", last)
		}
	}
}

// cards are the Ethernet cards that may be the one, set up.
func cards(mac string) ([]netlink.Link, error) {
	all, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list network cards: %w", err)
	}
	var fit []netlink.Link
	for _, l := range all {
		a := l.Attrs()
		if l.Type() != "device" || a.Flags&net.FlagLoopback != 0 || len(a.HardwareAddr) != 6 || mac != "" && a.HardwareAddr.String() != mac {
			continue
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return nil, fmt.Errorf("%s: %w", a.Name, err)
		}
		fit = append(fit, l)
	}
	return fit, nil
}

// address asks a card's network for an address, and takes it with its route. The lease isn't renewed: an install is over
// long before half of it has passed.
func address(ctx context.Context, card netlink.Link, log *slog.Logger) error {
	c, err := nclient4.New(card.Attrs().Name, nclient4.WithTimeout(2*time.Second), nclient4.WithRetry(4))
	if err != nil {
		return err
	}
	defer c.Close()
	lease, err := c.Request(ctx, dhcpv4.WithOption(dhcpv4.OptClassIdentifier("gpupool-installer")))
	if err != nil {
		return err
	}
	ack := lease.ACK
	a := &netlink.Addr{IPNet: &net.IPNet{IP: ack.YourIPAddr, Mask: ack.SubnetMask()}}
	if err := netlink.AddrReplace(card, a); err != nil {
		return fmt.Errorf("address %s: %w", a.IPNet, err)
	}
	if gw := ack.Router(); len(gw) > 0 { // the first is preferred (RFC 2132 section 3.5)
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: card.Attrs().Index, Gw: gw[0]}); err != nil {
			return fmt.Errorf("route by %s: %w", gw[0], err)
		}
	}
	log.Info("network", "card", card.Attrs().Name, "address", a.IPNet.String())
	return nil
}
