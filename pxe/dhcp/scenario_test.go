package dhcp_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
	"go.uber.org/goleak"

	"gpupool/pxe/boot"
	"gpupool/pxe/dhcp"
	"gpupool/pxe/lease"
	"gpupool/pxe/pxetest"
	"gpupool/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is one DHCP server with its leases, its clock and the platform around it.
type world struct {
	*dhcp.Server
	*pxetest.Platform
	store *lease.Memory
	now   time.Time
	noted []schema.BootEvidence
	busy  map[string]bool // addresses that answer a probe
	xid   uint32
}

func (w *world) InUse(_ context.Context, a netip.Addr, _ string) bool { return w.busy[a.String()] }

func (w *world) start(c dhcp.Config) error {
	clock := func() time.Time { return w.now }
	book := lease.NewBook(w.store, lease.Options{Now: clock, Prober: w, Conflict: func(a netip.Addr, mac string) {
		w.noted = append(w.noted, schema.BootEvidence{Kind: boot.KindConflict, IP: a.String(), Result: "in use"})
	}})
	c.ScriptURL = func(mac string) string { return "http://10.0.0.2/boot/" + mac + "/script.ipxe" }
	c.FilesURL = "http://10.0.0.2/files"
	if !c.ServerID.IsValid() {
		c.ServerID = netip.MustParseAddr("10.0.0.2")
	}
	s, err := dhcp.New(c, dhcp.Deps{Inventory: w, Book: book, Now: clock, Record: func(e schema.BootEvidence) { w.noted = append(w.noted, e) }})
	w.Server = s
	return err
}

// TestScenarios runs testdata: each file is a story of packets and the whole of what is answered and recorded.
func TestScenarios(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := &world{Platform: pxetest.New(), store: lease.NewMemory(), now: time.Unix(1_800_000_000, 0), busy: map[string]bool{}}
		w.Platform.Now = func() time.Time { return w.now }
		var cfg dhcp.Config
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.noted = nil
			arg := func(name, def string) string {
				if d.HasArg(name) {
					for _, a := range d.CmdArgs {
						if a.Key == name {
							return strings.Join(a.Vals, ",")
						}
					}
				}
				return def
			}
			switch d.Cmd {
			case "server":
				cfg = dhcp.Config{Mode: dhcp.Mode(arg("mode", "full")), Unknown: dhcp.Policy(arg("unknown", "")), UserClass: arg("user-class", ""), SecureBoot: d.HasArg("secure-boot")}
				if id := arg("id", ""); id != "" {
					cfg.ServerID = netip.MustParseAddr(id)
				}
				for _, line := range strings.Split(strings.TrimSpace(d.Input), "\n") {
					if line != "" {
						cfg.Subnets = append(cfg.Subnets, subnet(line))
					}
				}
				if err := w.start(cfg); err != nil {
					return err.Error() + "\n"
				}
				return "ok\n"
			case "restart": // another process on the same leases
				if err := w.start(cfg); err != nil {
					return err.Error()
				}
				return "ok\n"
			case "machine":
				w.Put(boot.Machine{ID: arg("id", ""), Name: arg("name", ""), Phase: schema.Phase(arg("phase", "available")), Arch: arg("arch", "")}, arg("mac", ""))
				return "ok\n"
			case "arm":
				n, _ := strconv.Atoi(arg("attempt", "1"))
				w.Arm(arg("id", ""), n)
				return "ok\n"
			case "busy":
				w.busy[arg("ip", "")] = !d.HasArg("off")
				return "ok\n"
			case "script": // the machine fetched its script
				w.Progressed(arg("mac", ""))
				return "ok\n"
			case "wait":
				n, err := time.ParseDuration(arg("for", ""))
				if err != nil {
					t.Fatal(err)
				}
				w.now = w.now.Add(n)
				return "ok\n"
			case "taken": // another server on the same database gives an address out
				l := schema.Lease{IP: arg("ip", ""), Subnet: arg("subnet", "10.0.0.0/24"), MAC: arg("mac", "aa:aa:aa:aa:aa:aa"), State: schema.LeaseBound, BoundAt: schema.At(w.now), ExpiresAt: schema.At(w.now.Add(time.Hour))}
				errs, err := w.store.Commit(t.Context(), w.now, []schema.Lease{l})
				return fmt.Sprintln(errs[0], err)
			case "leases":
				var b strings.Builder
				rows, _ := w.store.List(t.Context(), arg("subnet", "10.0.0.0/24"))
				for _, l := range rows {
					fmt.Fprintf(&b, "%s %s %s %s for %s\n", l.IP, l.State, l.MAC, l.Server, l.ExpiresAt.Time().Sub(w.now))
				}
				return b.String() + "."
			case "send":
				return w.send(t, d, arg)
			}
			t.Fatalf("no command %q", d.Cmd)
			return ""
		})
	})
}

func subnet(line string) dhcp.Subnet {
	var s dhcp.Subnet
	for i, f := range strings.Fields(line) {
		k, v, _ := strings.Cut(f, "=")
		switch {
		case i == 0:
			s.Prefix = netip.MustParsePrefix(f)
		case k == "range":
			from, to, _ := strings.Cut(v, "-")
			s.Ranges = append(s.Ranges, lease.Range{From: netip.MustParseAddr(from), To: netip.MustParseAddr(to)})
		case k == "router":
			s.Routers = append(s.Routers, netip.MustParseAddr(v))
		case k == "relay":
			s.Relays = append(s.Relays, netip.MustParseAddr(v))
		case k == "dns":
			s.DNS = append(s.DNS, netip.MustParseAddr(v))
		case k == "interface":
			s.Interface = v
		}
	}
	return s
}

var types = map[string]dhcpv4.MessageType{
	"discover": dhcpv4.MessageTypeDiscover, "request": dhcpv4.MessageTypeRequest, "decline": dhcpv4.MessageTypeDecline,
	"release": dhcpv4.MessageTypeRelease, "inform": dhcpv4.MessageTypeInform, "offer": dhcpv4.MessageTypeOffer,
}

// send builds one client message from the arguments, gives it to the server and prints what came of it.
func (w *world) send(t *testing.T, d *datadriven.TestData, arg func(string, string) string) string {
	hw, err := net.ParseMAC(arg("mac", "52:54:00:00:00:01"))
	if err != nil {
		t.Fatal(err)
	}
	if n := arg("xid", ""); n != "" {
		v, _ := strconv.ParseUint(n, 10, 32)
		w.xid = uint32(v)
	} else {
		w.xid++
	}
	m, err := dhcpv4.New(dhcpv4.WithHwAddr(hw), dhcpv4.WithMessageType(types[d.CmdArgs[0].Key]),
		dhcpv4.WithTransactionID(dhcpv4.TransactionID{byte(w.xid >> 24), byte(w.xid >> 16), byte(w.xid >> 8), byte(w.xid)}))
	if err != nil {
		t.Fatal(err)
	}
	a := dhcp.Arrival{Src: netip.MustParseAddrPort(arg("src", "0.0.0.0:68")), Dst: netip.MustParseAddr(arg("dst", "255.255.255.255")), IfIndex: loopback(t), PXEPort: d.HasArg("port4011")}
	ip := func(name string) net.IP { return net.ParseIP(arg(name, "")).To4() }
	set := func(code uint8, v []byte) { m.Options[code] = v }
	for _, c := range d.CmdArgs[1:] {
		v := strings.Join(c.Vals, ",")
		switch c.Key {
		case "broadcast":
			m.SetBroadcast()
		case "ciaddr":
			m.ClientIPAddr = ip("ciaddr")
		case "giaddr":
			m.GatewayIPAddr = ip("giaddr")
		case "requested":
			set(50, ip("requested"))
		case "server":
			set(54, ip("server"))
		case "class":
			set(60, []byte(v))
		case "user-class":
			set(77, unescape(v))
		case "client-id":
			set(61, unescape(v))
		case "option175":
			set(175, unescape(v))
		case "uuid":
			set(97, unescape(v))
		case "option82":
			set(82, unescape(v))
		case "max":
			n, _ := strconv.Atoi(v)
			set(57, []byte{byte(n >> 8), byte(n)})
		case "params":
			var list []byte
			for _, p := range strings.Split(v, ",") {
				n, _ := strconv.Atoi(p)
				list = append(list, byte(n))
			}
			set(55, list)
		case "arch":
			var list []iana.Arch
			for _, p := range strings.Split(v, ",") {
				n, _ := strconv.Atoi(p)
				list = append(list, iana.Arch(n))
			}
			m.UpdateOption(dhcpv4.OptClientArch(list...))
		}
	}
	r, ok := w.Answer(t.Context(), m.ToBytes(), a)
	var b strings.Builder
	if !ok {
		b.WriteString("silence\n")
	} else {
		describe(t, &b, m, r)
	}
	for _, e := range w.noted {
		fmt.Fprintf(&b, "# %s", e.Kind)
		for _, f := range []struct{ k, v string }{{"ip", e.IP}, {"server", e.Server}, {"what", e.What}} {
			if f.v != "" {
				fmt.Fprintf(&b, " %s=%s", f.k, f.v)
			}
		}
		if e.Attempt != 0 {
			fmt.Fprintf(&b, " attempt=%d", e.Attempt)
		}
		fmt.Fprintf(&b, ": %s\n", e.Result)
	}
	return b.String()
}

// describe prints a reply: where it goes, its header, and each option in the order it is in.
func describe(t *testing.T, b *strings.Builder, m *dhcpv4.DHCPv4, r dhcp.Reply) {
	p, err := dhcpv4.FromBytes(r.Bytes)
	if err != nil {
		t.Fatalf("reply can't be read: %v", err)
	}
	if p.OpCode != dhcpv4.OpcodeBootReply || p.TransactionID != m.TransactionID || !bytes.Equal(p.ClientHWAddr, m.ClientHWAddr) || !p.GatewayIPAddr.Equal(m.GatewayIPAddr) || p.HopCount != 0 || len(r.Bytes) < 300 {
		t.Fatalf("reply's header is wrong (%d bytes): %s", len(r.Bytes), p.Summary())
	}
	fmt.Fprintf(b, "%s to %s", p.MessageType(), r.To)
	if r.HWAddr != nil {
		fmt.Fprintf(b, " on the link")
	}
	b.WriteString("\n")
	for _, f := range []struct {
		k string
		v net.IP
	}{{"ciaddr", p.ClientIPAddr}, {"yiaddr", p.YourIPAddr}, {"siaddr", p.ServerIPAddr}} {
		if !f.v.IsUnspecified() {
			fmt.Fprintf(b, "  %s %s\n", f.k, f.v)
		}
	}
	if p.Flags != m.Flags {
		fmt.Fprintf(b, "  flags %#04x\n", p.Flags)
	}
	if p.BootFileName != "" {
		fmt.Fprintf(b, "  file %s\n", p.BootFileName)
	}
	o := r.Bytes[240:]
	for len(o) > 0 && o[0] != 255 {
		v := o[2 : 2+int(o[1])]
		fmt.Fprintf(b, "  %d %s\n", o[0], value(o[0], v))
		o = o[2+int(o[1]):]
	}
}

func value(code byte, v []byte) string {
	switch {
	case code == 53:
		return dhcpv4.MessageType(v[0]).String()
	case slices.Contains([]byte{1, 3, 6, 42, 50, 54}, code):
		var all []string
		for ; len(v) >= 4; v = v[4:] {
			all = append(all, net.IP(v[:4]).String())
		}
		return strings.Join(all, " ")
	case code == 51 || code == 58 || code == 59:
		n, _ := strconv.ParseUint(hex.EncodeToString(v), 16, 32)
		return (time.Duration(n) * time.Second).String()
	case slices.Contains([]byte{12, 15, 56, 60, 66, 67}, code):
		return string(v)
	}
	return hex.EncodeToString(v)
}

// unescape reads hex:... as bytes, anything else as itself.
func unescape(s string) []byte {
	if h, ok := strings.CutPrefix(s, "hex:"); ok {
		b, err := hex.DecodeString(h)
		if err != nil {
			panic(err)
		}
		return b
	}
	return []byte(s)
}

func loopback(t *testing.T) int {
	i, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skip("no loopback interface named lo")
	}
	return i.Index
}
