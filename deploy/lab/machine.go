package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gpupool/deploy/lab/bmc"
	"gpupool/deploy/lab/device"
	"gpupool/worker/agent"
	"gpupool/worker/agent/proc"
)

// machine is one server. Its BMC's hooks switch it on and off; each power-on is a life, which ends with the power.
//
// mu guards all below it and is never held while a life is waited for. power is held over a whole change of power.
// Lock order: power, mu, then the device set's and the BMC's own.
type machine struct {
	lab   *Lab
	cfg   ServerConfig
	dir   string
	model device.Model
	bmc   *bmc.Server
	log   *slog.Logger
	ln    net.Listener
	http  *http.Server

	power sync.Mutex

	mu      sync.Mutex
	ctx     context.Context // of Run; nil before
	st      state
	life    *life
	set     *device.Set // nil while no operating system is up
	changed chan struct{}
	console []string
}

// life is one time that a machine has power.
type life struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// build makes a machine, or finds it in its folder.
func (l *Lab) build(i int, c ServerConfig) (*machine, error) {
	p, err := c.profile()
	if err != nil {
		return nil, err
	}
	m := &machine{lab: l, cfg: c, dir: filepath.Join(l.cfg.Dir, "servers", c.Name), model: device.Models[c.Devices.Model], log: l.cfg.Log.With("lab", c.Name), changed: make(chan struct{})}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return nil, err
	}
	st, found, err := loadState(m.dir)
	if err != nil {
		return nil, err
	}
	m.st = st
	if !found {
		m.st.Stage = StageOff
		for k := range c.Devices.Count {
			m.st.Parts = append(m.st.Parts, m.model.New(c.Serial, k))
		}
		for _, f := range c.Faults {
			kind, dev, _ := strings.Cut(f, " ")
			if err := m.fault(strings.TrimSpace(dev), kind); err != nil {
				return nil, err
			}
		}
	}
	user, password := l.cfg.User, l.cfg.Password
	if m.st.User != "" {
		user, password = m.st.User, m.st.Password
	}
	id := bmc.Identity{Serial: c.Serial, UUID: c.UUID, MACs: c.MACs}
	for _, part := range m.st.Parts {
		id.GPUs = append(id.GPUs, m.shown(part))
	}
	m.bmc = bmc.New(p, bmc.Hooks{PowerOn: m.powerOn, PowerOff: func(bool) { m.powerOff() }, Shutdown: m.shutdown, Locate: m.locate},
		bmc.WithIdentity(id), bmc.WithCredential(user, password), bmc.WithPower(m.st.On), bmc.WithLogCap(1000))
	m.restoreOverride()
	if err := m.restoreUnits(); err != nil {
		return nil, err
	}
	if err := m.listen(i); err != nil {
		return nil, err
	}
	return m, m.st.save(m.dir)
}

// listen opens the BMC's address: the one that it had, or the first free port from 8000 of its own loopback address. An
// address of its own, since the kernel takes ports of 127.0.0.1 for connections that go out.
func (m *machine) listen(i int) error {
	var err error
	if m.st.BMC != "" {
		// A lab that ended just now may still hold it: a program that is being started has its sockets until it is executed.
		until(2*time.Second, func() bool {
			m.ln, err = net.Listen("tcp", m.st.BMC)
			return !errors.Is(err, syscall.EADDRINUSE)
		})
		if err != nil {
			return fmt.Errorf("its BMC's address: %w", err)
		}
		return nil
	}
	a := m.lab.cfg.bmcNet.Masked().Addr().As4()
	n := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3]) + uint32(i) + 1
	ip := netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	if !m.lab.cfg.bmcNet.Contains(ip) {
		return fmt.Errorf("bmc_net: %s has no address for server %d", m.lab.cfg.bmcNet, i+1)
	}
	for port := uint16(8000); port < 8200; port++ {
		at := netip.AddrPortFrom(ip, port).String()
		if m.ln, err = net.Listen("tcp", at); err == nil {
			m.st.BMC = at
			return nil
		}
	}
	return fmt.Errorf("its BMC's address: %w", err)
}

// start serves the BMC and takes up the machine's life where it was left.
func (m *machine) start(ctx context.Context, wg *sync.WaitGroup) {
	m.http = &http.Server{Handler: m, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	wg.Go(func() {
		if err := m.http.Serve(m.ln); !errors.Is(err, http.ErrServerClosed) {
			m.log.Error("BMC", "err", err)
		}
	})
	m.power.Lock()
	defer m.power.Unlock()
	m.mu.Lock()
	m.ctx = ctx
	on, stage, boot := m.st.On, m.st.Stage, m.st.Boot
	m.mu.Unlock()
	if !on {
		m.killProcesses() // the last process may have died between switch and power
		return
	}
	switch stage {
	case StageOS:
		m.live(func(ctx context.Context) { m.runOS(ctx, false) })
	case StageStart:
		m.live(func(ctx context.Context) { m.runOS(ctx, true) })
	default:
		m.live(func(ctx context.Context) { m.firmware(ctx, boot) })
	}
}

// stop ends what the machine does in this process. Its power stays as it is.
func (m *machine) stop() error {
	var err error
	if m.http != nil {
		err = m.http.Close()
	}
	m.power.Lock()
	defer m.power.Unlock()
	m.endLife()
	return err
}

func (m *machine) close() error {
	var errs []error
	if m.bmc != nil {
		errs = append(errs, m.bmc.Close())
	}
	errs = append(errs, m.stop()) // a hook may have begun another life
	if m.ln != nil {
		if err := m.ln.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// ServeHTTP is the BMC's port. What a request changed of the next boot, or of the account, is kept.
func (m *machine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if m.hasFault(BMCDown) {
		panic(http.ErrAbortHandler)
	}
	m.bmc.ServeHTTP(w, r)
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return
	}
	over := m.bmc.BootOverride()
	user, password := m.bmc.Credential()
	m.change(func(s *state) {
		s.Override = over
		if user != m.lab.cfg.User || password != m.lab.cfg.Password || s.User != "" {
			s.User, s.Password = user, password
		}
	})
}

// restoreOverride tells a new BMC what the old one would boot next.
func (m *machine) restoreOverride() {
	o := m.st.Override
	if o.Target == "" || o.Target == "None" {
		return
	}
	enabled := "Continuous"
	if o.Once {
		enabled = "Once"
	}
	boot := bmc.Doc{"BootSourceOverrideEnabled": enabled, "BootSourceOverrideTarget": o.Target}
	if o.Mode != "" {
		boot["BootSourceOverrideMode"] = o.Mode
	}
	if o.HTTPURI != "" {
		boot["HttpBootUri"] = o.HTTPURI
	}
	paths := []string{m.bmc.SystemPath()}
	if set, ok := m.bmc.Resource(paths[0])["@Redfish.Settings"].(map[string]any); ok {
		if obj, ok := set["SettingsObject"].(map[string]any); ok {
			if id, ok := obj["@odata.id"].(string); ok {
				paths = append(paths, id)
			}
		}
	}
	for _, p := range paths {
		if _, ok := m.bmc.Resource(p)["Boot"]; !ok {
			continue
		}
		if err := m.bmc.Patch(p, bmc.Doc{"Boot": boot}); err != nil {
			m.log.Error("the BMC's boot override could not be restored", "err", err)
		}
	}
}

// change changes the state and keeps it, before anyone acts upon it.
func (m *machine) change(f func(*state)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changeLocked(f)
}

func (m *machine) changeLocked(f func(*state)) {
	f(&m.st)
	if m.set != nil {
		m.st.Parts = m.set.Parts()
	}
	if err := m.st.save(m.dir); err != nil {
		m.log.Error("the server's state could not be kept", "err", err)
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

// powerOn is the BMC's hook.
func (m *machine) powerOn(b bmc.Boot) {
	m.power.Lock()
	defer m.power.Unlock()
	m.endLife()
	m.change(func(s *state) { s.On, s.Stage, s.Boot, s.Override = true, StagePOST, b, m.bmc.BootOverride() })
	m.live(func(ctx context.Context) { m.firmware(ctx, b) })
}

// powerOff is the BMC's hook, and a pulled cord: nothing runs on.
func (m *machine) powerOff() {
	m.power.Lock()
	defer m.power.Unlock()
	m.off()
}

func (m *machine) off() {
	m.endLife()
	m.change(func(s *state) { s.On, s.Stage = false, StageOff })
	m.killProcesses()
}

// shutdown asks the operating system to halt.
func (m *machine) shutdown() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.st.Stage == StageOS
}

func (m *machine) locate(on bool) { m.change(func(s *state) { s.Locator = on }) }

// live begins a life. The caller holds power.
func (m *machine) live(f func(ctx context.Context)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx == nil || m.ctx.Err() != nil {
		return // the lab isn't running; its next Run takes it up
	}
	ctx, cancel := context.WithCancel(m.ctx)
	l := &life{cancel: cancel, done: make(chan struct{})}
	m.life = l
	go func() {
		defer close(l.done)
		defer cancel()
		f(ctx)
	}()
}

// endLife stops what runs, and waits for it. The caller holds power.
func (m *machine) endLife() {
	m.mu.Lock()
	l := m.life
	m.life = nil
	m.mu.Unlock()
	if l == nil {
		return
	}
	l.cancel()
	<-l.done
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.set != nil {
		m.st.Parts, m.set = m.set.Parts(), nil
	}
}

// killProcesses ends every process of the server's jobs, as lost power does.
func (m *machine) killProcesses() {
	m.mu.Lock()
	d := m.st.Disk
	m.mu.Unlock()
	if d == nil {
		return
	}
	var err error
	gone := until(time.Second, func() bool {
		var marks map[string][]proc.Process
		if marks, err = m.lab.table.Marks(agent.MarkServer); err != nil {
			return true
		}
		for _, p := range marks[d.Server] {
			_ = syscall.Kill(p.PID, syscall.SIGKILL) // it may be gone by itself
		}
		return len(marks[d.Server]) == 0
	})
	switch {
	case err != nil:
		m.log.Error("processes could not be ended", "err", err)
	case !gone:
		m.log.Error("a process outlived the server's power")
	}
}

// until looks each millisecond whether ok holds, for at most within, and reports whether it did.
func until(within time.Duration, ok func() bool) bool {
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(within); !ok(); <-look.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func (m *machine) hasFault(kind string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Contains(m.st.Faults, kind)
}

// waitFault waits until the server has, or has not, a fault.
func (m *machine) waitFault(ctx context.Context, kind string, want bool) error {
	for {
		m.mu.Lock()
		has, ch := slices.Contains(m.st.Faults, kind), m.changed
		m.mu.Unlock()
		if has == want {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *machine) fault(dev, kind string) error {
	if err := checkKind(kind); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(serverKinds, kind) {
		if dev != "" && dev != "-" {
			return fmt.Errorf("fault %q is the whole server's, not of device %q", kind, dev)
		}
		m.changeLocked(func(s *state) {
			if !slices.Contains(s.Faults, kind) {
				s.Faults = append(s.Faults, kind)
			}
		})
		return nil
	}
	if slices.Contains(unitKinds, kind) {
		return m.unitFault(dev, kind)
	}
	i, err := m.slotOf(dev)
	if err != nil {
		return err
	}
	if m.set != nil {
		err = m.set.Fail(i, device.Kind(kind))
	} else {
		err = device.Fail(m.model, &m.st.Parts[i], device.Kind(kind))
	}
	if err != nil {
		return err
	}
	m.changeLocked(func(*state) {})
	m.show(i)
	return nil
}

func (m *machine) clear(dev, kind string) error {
	if kind != "" { // "" is every kind
		if err := checkKind(kind); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	mended, err := m.clearUnits(dev, kind)
	if err != nil || slices.Contains(unitKinds, kind) || mended && dev != "" && dev != "-" {
		return err
	}
	if dev == "" || dev == "-" {
		m.changeLocked(func(s *state) {
			s.Faults = slices.DeleteFunc(s.Faults, func(f string) bool { return kind == "" || f == kind })
		})
		return nil
	}
	i, err := m.slotOf(dev)
	if err != nil {
		return err
	}
	if m.set != nil {
		m.set.Clear(i, device.Kind(kind))
	} else {
		device.Clear(&m.st.Parts[i], device.Kind(kind))
	}
	m.changeLocked(func(*state) {})
	m.show(i)
	return nil
}

// unitFault makes a unit fail; before there is a BMC that is kept for it. The caller holds mu.
func (m *machine) unitFault(name, kind string) error {
	if name == "-" {
		name = ""
	}
	if m.bmc != nil {
		var err error
		if name, err = m.bmc.SetUnit(bmc.Unit(kind), name, "Critical"); err != nil {
			return err
		}
	}
	m.changeLocked(func(s *state) {
		if f := kind + " " + name; !slices.Contains(s.Faults, f) {
			s.Faults = append(s.Faults, f)
		}
	})
	return nil
}

// clearUnits mends the units of a name, or all of a kind; "" is any. It says whether there was one. The caller holds mu.
func (m *machine) clearUnits(name, kind string) (mended bool, err error) {
	if name == "-" {
		name = ""
	}
	var left []string
	for _, f := range m.st.Faults {
		of, unit, ok := strings.Cut(f, " ")
		if !ok || kind != "" && of != kind || name != "" && unit != name {
			left = append(left, f)
			continue
		}
		if _, err := m.bmc.SetUnit(bmc.Unit(of), unit, "OK"); err != nil {
			return mended, err
		}
		mended = true
	}
	m.changeLocked(func(s *state) { s.Faults = left })
	return mended, nil
}

// restoreUnits shows the units that failed before the lab was started anew.
func (m *machine) restoreUnits() error {
	for i, f := range m.st.Faults {
		if kind, unit, ok := strings.Cut(f, " "); ok {
			name, err := m.bmc.SetUnit(bmc.Unit(kind), unit, "Critical")
			if err != nil {
				return err
			}
			m.st.Faults[i] = kind + " " + name
		}
	}
	return nil
}

func (m *machine) replace(slot, serial string) error {
	if serial == "" || strings.ContainsAny(serial, " \t\n") {
		return fmt.Errorf("serial: %q: want the new part's serial", serial)
	}
	m.power.Lock()
	defer m.power.Unlock()
	m.mu.Lock()
	i, err := m.slotOf(slot)
	on := m.st.On
	m.mu.Unlock()
	if err != nil {
		return err
	}
	if on {
		m.off()
	}
	m.mu.Lock()
	m.changeLocked(func(s *state) { s.Parts[i] = m.model.Make(serial, i) })
	m.show(i)
	m.mu.Unlock()
	if on {
		b := bmc.Boot{Target: "None"}
		m.change(func(s *state) { s.On, s.Stage, s.Boot = true, StagePOST, b })
		m.live(func(ctx context.Context) { m.firmware(ctx, b) })
	}
	return nil
}

// show brings the BMC's view of a slot up to date. The caller holds mu; the BMC may not exist yet.
func (m *machine) show(i int) {
	if m.bmc == nil || i >= m.bmc.GPUs() {
		return
	}
	if err := m.bmc.SetGPU(i, m.shown(m.st.Parts[i])); err != nil {
		m.log.Error("BMC", "err", err)
	}
}

func (m *machine) shown(p device.Part) bmc.GPU {
	g := bmc.GPU{Serial: p.Serial, UUID: strings.TrimPrefix(p.UUID, "GPU-"), Health: "OK", State: "Enabled"}
	switch {
	case p.Has(device.XID79), p.Has(device.Absent):
		g.Health, g.State = "Critical", "Absent"
	case p.Has(device.XID48), p.Has(device.RAS), p.Has(device.ECC):
		g.Health = "Critical"
	case p.Has(device.Thermal):
		g.Health = "Warning"
	}
	return g
}

// print writes a line to the console.
func (m *machine) print(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	m.log.Debug("console", "line", line)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.console = append(m.console, line); len(m.console) > 100 {
		m.console = slices.Delete(m.console, 0, len(m.console)-80)
	}
}

// sleep waits for hardware.
func (m *machine) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(time.Duration(float64(d) / m.lab.cfg.Speed))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *machine) state() ServerState {
	user, password := m.bmc.Credential()
	m.mu.Lock()
	defer m.mu.Unlock()
	s := ServerState{
		Name: m.cfg.Name, Rack: m.cfg.Rack, Serial: m.cfg.Serial, UUID: m.cfg.UUID, MACs: m.cfg.MACs, Arch: m.cfg.Arch, Model: m.model.Name,
		BMC: "http://" + m.st.BMC, User: user, Password: password, On: m.st.On, Stage: m.st.Stage, BootID: m.st.BootID,
		Installs: m.st.Installs, Boots: m.st.Boots, Locator: m.st.Locator, Faults: slices.Clone(m.st.Faults), Devices: slices.Clone(m.st.Parts),
		Console: slices.Clone(m.console),
	}
	if m.set != nil {
		s.Devices = m.set.Parts()
	}
	if d := m.st.Disk; d != nil {
		s.Server, s.Attempt = d.Server, d.Attempt
	}
	return s
}
