package bmc_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

// A serial line that speaks for as long as somebody may listen; the simulator carries it over LAN.
func TestTheConsoleIsListenedToOverLAN(t *testing.T) {
	t.Parallel()
	line, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	speak := func(c net.Conn) { // ends with the simulator
		defer c.Close()
		pace := time.NewTicker(5 * time.Millisecond)
		defer pace.Stop()
		for range pace.C {
			if _, err := fmt.Fprint(c, "Kernel panic - not syncing: gpupool\r\n"); err != nil {
				return
			}
		}
	}
	go func() { // ends with the listener
		for {
			c, err := line.Accept()
			if err != nil {
				return
			}
			go speak(c)
		}
	}()
	address, _, _ := ipmiSim(t, `sol "tcp:`+line.Addr().(*net.TCPAddr).IP.String()+`:`+strconv.Itoa(line.Addr().(*net.TCPAddr).Port)+`" 115200`)
	t.Cleanup(func() { line.Close() })
	timing := quick
	timing.Call, timing.Poll = 8*time.Second, 20*time.Millisecond
	for _, way := range []struct {
		name, address string
		listen        time.Duration
	}{
		{"as it is", address, time.Second},
		{"its first words come later than the listening ends", slowWay(t, address, 40*time.Millisecond), time.Millisecond},
		{"a quarter of a second each way, a second's listening", slowWay(t, address, 500*time.Millisecond), time.Second},
	} {
		c, err := pool(t, bmc.Config{Timing: timing}).IPMI(bmc.Endpoint{Address: way.address, Protocol: bmc.IPMI, Credential: bmc.Static("admin", "right-password")})
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the simulator answers", func() bool { _, err := c.Power(t.Context()); return err == nil })
		got, err := c.Console(t.Context(), way.listen)
		if err != nil || got.Via != "sol" || !strings.Contains(got.Text, "Kernel panic - not syncing: gpupool") {
			t.Fatalf("%s: via %q, %v: %q", way.name, got.Via, err, got.Text)
		}
		if _, err := c.Power(t.Context()); err != nil {
			t.Fatalf("%s: after the console: %v", way.name, err)
		}
	}
}

// slowWay is an address that leads to another over UDP; what comes back comes late by so much.
func slowWay(t *testing.T, to string, late time.Duration) string {
	t.Helper()
	here, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	there, err := net.Dial("udp4", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close(); there.Close() })
	var client atomic.Value
	go func() { // ends with the socket
		for b := make([]byte, 4096); ; {
			n, from, err := here.ReadFrom(b)
			if err != nil {
				return
			}
			client.Store(from)
			_, _ = there.Write(b[:n]) // a network loses packets too
		}
	}()
	go func() {
		for b := make([]byte, 4096); ; {
			n, err := there.Read(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			packet := bytes.Clone(b[:n])
			time.AfterFunc(late, func() {
				if to, ok := client.Load().(net.Addr); ok {
					_, _ = here.WriteTo(packet, to)
				}
			})
		}
	}()
	return here.LocalAddr().String()
}

// One BMC that is asked by Redfish, and for its console by IPMI, sees two refused logins at most by both together.
func TestRedfishAndIPMIOfOneBMCShareOneLoginBudget(t *testing.T) {
	t.Parallel()
	address, _, _ := ipmiSim(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, captured(t, "supermicro"), lab.Hooks{})
	if u, err := url.Parse(s.URL()); err != nil || u.Hostname() != "127.0.0.1" {
		t.Fatalf("the lab's bmc is at %s, the simulator at %s", s.URL(), address)
	}
	user, password := s.Credential()
	p := pool(t, bmc.Config{Shared: bmc.NewShared()})
	// Redfish takes this password, IPMI (whose account has another) refuses it.
	c := client(t, p, s.URL(), bmc.Static(user, password))
	ipmiOn(t, s, n)
	for range 5 {
		if _, err := c.Console(t.Context(), 50*time.Millisecond); !errors.Is(err, bmc.ErrCredential) {
			t.Fatalf("the console: %v, want that the login was refused", err)
		}
	}
	// The budget that IPMI used up is Redfish's too: a wrong password is not even tried there.
	s.ClearRequests()
	s.SetPassword("changed-behind-your-back")
	s.DropSessions()
	for range 5 {
		if _, err := c.Power(t.Context()); !errors.Is(err, bmc.ErrCredential) {
			t.Fatalf("redfish after it: %v", err)
		}
	}
	if n := s.FailedLogins(); n != 0 {
		t.Fatalf("%d refused logins by Redfish after IPMI had used up the budget", n)
	}
}

// ipmiOn makes a lab BMC say that IPMI listens at a port.
func ipmiOn(t *testing.T, s *lab.Server, port int) {
	t.Helper()
	if err := s.Patch("/redfish/v1/Managers/1/NetworkProtocol", lab.Doc{"IPMI": lab.Doc{"ProtocolEnabled": true, "Port": port}}); err != nil {
		t.Fatal(err)
	}
}

// What a BMC keeps of the console is read as it is, on the host system and no other.
func TestAConsoleThatTheBMCKeepsIsRead(t *testing.T) {
	t.Parallel()
	profile, err := lab.ByName(lab.SupermicroHGX)
	if err != nil {
		t.Fatal(err)
	}
	for kept, want := range map[bool]string{true: "POST\nBdsDxe: failed to load\n", false: ""} {
		var with []lab.Option
		if kept {
			with = append(with, lab.WithHostLogger())
		}
		s := lab.New(profile, lab.Hooks{}, with...)
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		if kept {
			if err := s.ReplaceLog(s.HostLogger(), []string{"POST", "BdsDxe: failed to load"}); err != nil {
				t.Fatal(err)
			}
		}
		got, err := client(t, pool(t, bmc.Config{Timing: quick}), s.URL(), bmc.Static("admin", "gpupool-lab")).Console(t.Context(), 50*time.Millisecond)
		if got.Text != want || kept != (err == nil && got.Via == "log") {
			t.Errorf("kept %v: via %q, %q, %v", kept, got.Via, got.Text, err)
		}
	}
}
