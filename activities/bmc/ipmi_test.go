package bmc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/credential"
	"gpupool/activities/bmc/watch"
	"gpupool/schema/store/storetest"
)

// ipmiSim starts OpenIPMI's simulator, a BMC that isn't ours. Its machine is a folder: power, boot and identify are files, and done tells
// what was changed. A change that the file hold names, as in "before power 0" or "after power 0", waits until that is gone. Its
// console takes the commands of its configuration while it runs. more are further lines of its BMC's configuration.
func ipmiSim(t *testing.T, more ...string) (address, machine string, console io.Writer) {
	t.Helper()
	sim, err := exec.LookPath("ipmi_sim")
	if err != nil {
		t.Skip("no ipmi_sim: install the package openipmi")
	}
	dir := t.TempDir()
	write := func(name string, mode os.FileMode, text string) string {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	l, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.LocalAddr().(*net.UDPAddr).Port
	l.Close()
	write("power", 0o644, "0")
	write("boot", 0o644, "none")
	// The simulator calls: control get <what>..., control set <what> <value>...
	control := write("control", 0o755, `#!/bin/sh
cd "`+dir+`" || exit 1
# held waits before or after a change for as long as the file hold names it.
held() { [ "$(cat hold 2>/dev/null)" != "$*" ] || { touch reached; while [ -e hold ]; do sleep 0.02; done; }; }
op=$1; shift
while [ $# -gt 0 ]; do
  if [ "$op" = set ]; then
    held before "$1" "$2"; echo "$1 $2" >> done; printf %s "$2" > "$1"; held after "$1" "$2"; shift 2
  else
    printf '%s:%s\n' "$1" "$(cat "$1" 2>/dev/null || echo 0)"; shift
  fi
done
`)
	lan := write("lan.conf", 0o644, fmt.Sprintf(`name "lab"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 %d
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "%s"
  user 1 true "" "test" user 10 none md2 md5 straight
  user 2 true "admin" "right-password" admin 10 none md2 md5 straight
  %s
`, port, control, strings.Join(more, "\n  ")))
	emu := write("bmc.emu", 0o644, `mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
sel_add 0x20 0x02 0x01 0x02 0x03 0x04 0x20 0x00 0x04 0x01 0x30 0x01 0x59 0x64 0x5f
sensor_add 0x20 0 1 1 1
sensor_set_event_support 0x20 0 1 enable scanning per-state 000000000000000 000000000000000 000000000000000 000000000000000
sensor_set_threshold 0x20 0 1 settable 111000 0xa0 0x5a 0x50 0 0 0
sensor_set_value 0x20 0 1 41 0
main_sdr_add 0x20 0x00 0x00 0x51 0x01 0x2f 0x20 0x00 0x01 0x07 0x01 0x67 0x48 0x01 0x01 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x01 0x00 0x00 0x01 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0xff 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0xc4 0x54 0x65 0x6d 0x70
mc_enable 0x20
`)
	cmd := exec.CommandContext(t.Context(), sim, "-c", lan, "-f", emu, "-s", filepath.Join(dir, "state"))
	console, err = cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if t.Failed() {
			t.Log(out.String())
		}
	})
	address = fmt.Sprintf("127.0.0.1:%d", port)
	eventually(t, "the simulator listens", func() bool { return answers(address) })
	return address, dir, console
}

// answers reports whether an ASF ping to an address of IPMI's is answered.
func answers(address string) bool {
	c, err := net.Dial("udp4", address)
	if err != nil {
		return false
	}
	defer c.Close()
	ping := []byte{6, 0, 0xff, 6, 0, 0, 0x11, 0xbe, 0x80, 0, 0, 0}
	if _, err := c.Write(ping); err != nil || c.SetReadDeadline(time.Now().Add(200*time.Millisecond)) != nil {
		return false
	}
	n, err := c.Read(make([]byte, 64))
	return err == nil && n > 0
}

func TestIPMIDrivesASimulatorThatIsNotOurs(t *testing.T) {
	t.Parallel()
	address, machine, _ := ipmiSim(t)
	timing := quick
	timing.Call, timing.Poll = 4*time.Second, 20*time.Millisecond
	p := pool(t, bmc.Config{Timing: timing})
	open := func(password string) *bmc.IPMIClient {
		c, err := p.IPMI(bmc.Endpoint{Address: address, Protocol: bmc.IPMI, Credential: bmc.Static("admin", password)})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := open("right-password")
	eventually(t, "the simulator answers", func() bool { _, err := c.Power(t.Context()); return err == nil })
	ctx := t.Context()
	file := func(name string) string {
		b, err := os.ReadFile(filepath.Join(machine, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}

	set, err := c.BootOnceFromNetwork(ctx, bmc.PXE)
	if err != nil || set.Target != "Pxe" || set.Enabled != "Once" {
		t.Fatalf("boot %+v, %v", set, err)
	}
	if got := file("boot"); got != "pxe" {
		t.Fatalf("the machine would boot %s", got)
	}
	if _, err := c.BootOnceFromNetwork(ctx, bmc.UEFIHTTP); !errors.Is(err, bmc.ErrUnsupported) {
		t.Fatalf("http boot: %v", err)
	}
	for _, step := range []struct {
		want bmc.Want
		file string
	}{{bmc.On, "1"}, {bmc.On, "1"}, {bmc.Cycle, "1"}, {bmc.Off, "0"}, {bmc.Off, "0"}} {
		if err := c.SetPower(ctx, step.want); err != nil {
			t.Fatalf("%s: %v", step.want, err)
		}
		if got := file("power"); got != step.file {
			t.Fatalf("after %s the machine's power is %s", step.want, got)
		}
	}
	if err := c.SetPower(ctx, bmc.ACCycle); !errors.Is(err, bmc.ErrUnsupported) || file("power") != "0" {
		t.Fatalf("ac cycle: %v", err)
	}
	if err := c.ClearBootOverride(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.LocateLED(ctx, true); err != nil {
		t.Fatal(err)
	}
	id, err := c.Identify(ctx)
	if err != nil || id.BMCFirmware == "" {
		t.Fatalf("identity %+v, %v", id, err)
	}
	sensors, err := c.Sensors(ctx)
	if err != nil || len(sensors) != 1 || sensors[0].Name != "Temp" || sensors[0].Value == nil || *sensors[0].Value != 41 {
		t.Fatalf("sensors %+v, %v", sensors, err)
	}
	entries, cursor, err := c.LogEntries(ctx, nil)
	if err != nil || len(entries) == 0 || !entries[0].History {
		t.Fatalf("log %+v, %v", entries, err)
	}
	if again, _, err := c.LogEntries(ctx, cursor); err != nil || len(again) != 0 {
		t.Fatalf("log again %+v, %v", again, err)
	}

	for range 5 {
		if _, err := open("wrong-password").Power(ctx); !errors.Is(err, bmc.ErrCredential) || strings.Contains(err.Error(), "wrong-password") {
			t.Fatalf("wrong password: %v", err)
		}
	}
	if _, err := c.Power(ctx); err != nil {
		t.Fatalf("the right password after it: %v", err)
	}
}

func TestAnIPMIBMCThatIsNotThereIsUnreachable(t *testing.T) {
	t.Parallel()
	l, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // takes datagrams and never answers
	timing := quick
	timing.Call = time.Second
	p := pool(t, bmc.Config{Timing: timing})
	c, err := p.Controller(bmc.Endpoint{Address: l.LocalAddr().String(), Protocol: bmc.IPMI, Credential: bmc.Static("a", "b")})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if _, err := c.Power(t.Context()); !errors.Is(err, bmc.ErrUnreachable) || time.Since(start) > 5*time.Second {
		t.Fatalf("%v after %s", err, time.Since(start))
	}
}

// A rotation over IPMI is the same as over Redfish: kept first, set, proven by a login, and the old one opens no more.
func TestAPasswordIsRotatedOverIPMI(t *testing.T) {
	t.Parallel()
	address, _, _ := ipmiSim(t)
	timing := quick
	timing.Call, timing.Poll = 4*time.Second, 20*time.Millisecond
	keys := storetest.Ring(t)
	rows := &ipmiRows{}
	store := credential.NewStore(rows, keys)
	if err := store.Set(t.Context(), "srv-1", "admin", "right-password"); err != nil {
		t.Fatal(err)
	}
	open := func(cred bmc.Credential) *bmc.IPMIClient {
		c, err := pool(t, bmc.Config{Timing: timing}).IPMI(bmc.Endpoint{Address: address, Protocol: bmc.IPMI, Credential: cred})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := open(store.For("srv-1"))
	eventually(t, "the simulator answers", func() bool { _, err := c.Power(t.Context()); return err == nil })
	for range 2 {
		if err := store.Rotate(t.Context(), c, "srv-1"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Power(t.Context()); err != nil {
			t.Fatalf("with the new password: %v", err)
		}
	}
	if rows.row.Pending != "" {
		t.Fatal("the rotation is still pending")
	}
	if _, err := open(bmc.Static("admin", "right-password")).Power(t.Context()); !errors.Is(err, bmc.ErrCredential) {
		t.Fatalf("the old password: %v", err)
	}
	// Cut off between the BMC and the commit: both are known, and the one that opens is kept.
	l, err := store.Login(t.Context(), "srv-1")
	if err != nil {
		t.Fatal(err)
	}
	rows.failAt = rows.puts + 2
	if err := store.Rotate(t.Context(), c, "srv-1"); err == nil {
		t.Fatal("the commit did not fail")
	}
	if err := store.Settle(t.Context(), open(store.For("srv-1")), "srv-1"); err != nil {
		t.Fatal(err)
	}
	if now, err := store.Login(t.Context(), "srv-1"); err != nil || now.Pending != nil || now.Password == l.Password {
		t.Fatalf("after the cut: %v", err)
	}
	if err := c.SetPassword(t.Context(), "nobody", "a-long-password"); !errors.Is(err, bmc.ErrNotFound) {
		t.Fatalf("an account that there is not: %v", err)
	}
	if err := c.SetPassword(t.Context(), "admin", "a-password-that-is-too-long"); !errors.Is(err, bmc.ErrUnsupported) {
		t.Fatalf("a password that is too long: %v", err)
	}
}

// ipmiRows is a database of one row; the put number failAt doesn't happen.
type ipmiRows struct {
	row          credential.Row
	puts, failAt int
}

func (r *ipmiRows) Get(context.Context, string) (credential.Row, error) { return r.row, nil }

func (r *ipmiRows) Put(_ context.Context, _ string, row credential.Row) error {
	if r.puts++; r.puts == r.failAt {
		return errors.New("killed")
	}
	row.Version++
	r.row = row
	return nil
}

// The watch over IPMI: what the event log has at first sight is history, what comes then is evidence, each once; and so is a
// sensor beyond its critical threshold.
func TestTheWatchReadsEventLogAndSensorsOverIPMI(t *testing.T) {
	t.Parallel()
	address, machine, console := ipmiSim(t)
	if err := os.WriteFile(filepath.Join(machine, "power"), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	timing := quick
	timing.Call, timing.Poll = 4*time.Second, 20*time.Millisecond
	p := pool(t, bmc.Config{Timing: timing})
	type seen struct {
		watch.Snapshot
		signs []watch.Sign
	}
	snaps := make(chan seen, 100)
	w := watch.New(p, watch.Config{Interval: 50 * time.Millisecond, Deep: 1, Log: testLog(t), Sink: func(_ context.Context, s watch.Snapshot, signs []watch.Sign, _ []byte) error {
		snaps <- seen{s, signs}
		return nil
	}})
	w.Set([]watch.Target{{Server: "srv-1", Endpoint: bmc.Endpoint{Address: address, Protocol: bmc.IPMI, Credential: bmc.Static("admin", "right-password")}}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	next := func(what string, ok func(seen) bool) seen {
		t.Helper()
		deadline := time.After(20 * time.Second)
		for {
			select {
			case s := <-snaps:
				if ok(s) {
					return s
				}
			case <-deadline:
				t.Fatalf("not within 20 s: %s", what)
			}
		}
	}
	first := next("a first sight", func(s seen) bool { return s.Err == nil && s.Readings != nil })
	if len(first.signs) != 0 || first.Vitals.Power != bmc.PowerOn || len(first.Readings) != 1 || len(first.Entries) == 0 {
		t.Fatalf("first sight %+v", first)
	}
	// Memory, sensor-specific, uncorrectable ECC (IPMI 2.0 table 42-3, sensor type 0Ch offset 1).
	fmt.Fprintln(console, "sel_add 0x20 0x02 0x00 0x00 0x00 0x00 0x20 0x00 0x04 0x0c 0x07 0x6f 0x01 0xff 0xff")
	got := next("the memory error", func(s seen) bool { return len(s.signs) > 0 })
	if x := got.signs[0]; len(got.signs) != 1 || x.Kind != "mce" || !strings.Contains(x.Text, "Memory") || x.Server != "srv-1" {
		t.Fatalf("signs %+v", got.signs)
	}
	fmt.Fprintln(console, "sensor_set_value 0x20 0 1 95 0")
	got = next("the temperature", func(s seen) bool { return len(s.signs) > 0 })
	if x := got.signs[0]; len(got.signs) != 1 || x.Kind != "thermal" || x.Part != "Temp" || !strings.Contains(x.Text, "sensor Temp") || !strings.Contains(x.Text, "95") {
		t.Fatalf("signs %+v", got.signs)
	}
	for range 3 {
		if again := next("another look", func(seen) bool { return true }); len(again.signs) != 0 {
			t.Fatalf("told twice: %+v", again.signs)
		}
	}
	fmt.Fprintln(console, "sensor_set_value 0x20 0 1 40 0")
	got = next("that it is over", func(s seen) bool { return len(s.signs) > 0 })
	if x := got.signs[0]; len(got.signs) != 1 || !x.Over || x.Kind != "thermal" || x.Part != "Temp" {
		t.Fatalf("signs %+v", got.signs)
	}
}
