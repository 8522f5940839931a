package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"gpupool/deploy/lab/netboot"
	"gpupool/worker/agent"
	"gpupool/worker/agent/proc"
)

// Lab is the data centre. Its machines are made by New and don't change; each has a lock of its own.
type Lab struct {
	cfg      resolved
	machines []*machine
	byName   map[string]*machine
	lock     *os.File
	table    *proc.Table
	load     *loads
	relay    *netboot.Relay // nil without DHCP
	control  *control

	mu    sync.Mutex
	https map[string]*http.Client // by certificate authority; shared by all agents
}

// New builds the lab, or finds it as it was left, and opens the addresses of the BMCs and of its control; they are served by Run.
func New(c Config) (_ *Lab, err error) {
	cfg, err := c.resolve()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, err
	}
	l := &Lab{cfg: cfg, byName: map[string]*machine{}, table: proc.New(""), https: map[string]*http.Client{}}
	l.load = newLoads(cfg.Now)
	if l.lock, err = lockDir(cfg.Dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	for i, s := range cfg.Servers {
		m, err := l.build(i, s)
		if err != nil {
			return nil, fmt.Errorf("lab server %s: %w", s.Name, err)
		}
		l.machines = append(l.machines, m)
		l.byName[s.Name] = m
	}
	if cfg.dhcp.IsValid() {
		if l.relay, err = netboot.NewRelay(cfg.relay, cfg.dhcp); err != nil {
			return nil, err
		}
	}
	if l.control, err = l.openControl(); err != nil { // last: a lab that can be reached is there
		return nil, err
	}
	return l, nil
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lab.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lab %s runs in another process", dir), f.Close())
	}
	return f, nil
}

// Run gives the machines life until ctx ends. Servers that are on stay on: their jobs live, and the next Run finds them.
func (l *Lab) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, l.close()) }()
	var wg sync.WaitGroup
	wg.Go(func() { l.control.serve(ctx) })
	for _, m := range l.machines {
		m.start(ctx, &wg)
	}
	<-ctx.Done()
	var errs []error
	for _, m := range l.machines {
		errs = append(errs, m.stop())
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (l *Lab) close() error {
	var errs []error
	for _, m := range l.machines {
		errs = append(errs, m.close())
	}
	if l.relay != nil {
		errs = append(errs, l.relay.Close())
		l.relay = nil
	}
	if l.control != nil {
		if err := l.control.ln.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	l.mu.Lock()
	for _, h := range l.https {
		h.CloseIdleConnections()
	}
	l.mu.Unlock()
	// Closing alone would not do: a program that is being started elsewhere in this process holds the file too, until it
	// is executed, and with the file the lock.
	errs = append(errs, syscall.Flock(int(l.lock.Fd()), syscall.LOCK_UN), l.lock.Close())
	return errors.Join(errs...)
}

// http is the agents' client for an API behind a certificate authority.
func (l *Lab) http(ca string) (*http.Client, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.https[ca]; h != nil {
		return h, nil
	}
	h, err := agent.NewHTTP(ca, len(l.machines))
	if err != nil {
		return nil, err
	}
	l.https[ca] = h
	return h, nil
}

func (l *Lab) machine(name string) (*machine, error) {
	if m := l.byName[name]; m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("the lab has no server %q", name)
}

// Fault makes a part fail, or the server where device is empty. device is a slot (SXM3), an index from 0, or a serial.
// The fault stays over power cycles until the part is replaced or the fault cleared.
func (l *Lab) Fault(server, device, kind string) error {
	m, err := l.machine(server)
	if err != nil {
		return err
	}
	return m.fault(device, kind)
}

// Clear takes a fault away; an empty kind takes all of that part, or of the server itself.
func (l *Lab) Clear(server, device, kind string) error {
	m, err := l.machine(server)
	if err != nil {
		return err
	}
	return m.clear(device, kind)
}

// Replace is the technician's hands: the power cord is pulled, the part in a slot swapped for a new one, and the server
// switched on again if it was on.
func (l *Lab) Replace(server, slot, serial string) error {
	m, err := l.machine(server)
	if err != nil {
		return err
	}
	return m.replace(slot, serial)
}

// State is every server as it stands.
func (l *Lab) State() []ServerState {
	all := make([]ServerState, len(l.machines))
	for i, m := range l.machines {
		all[i] = m.state()
	}
	return all
}

// slotOf reads a device's name: slot, index or serial.
func (m *machine) slotOf(name string) (int, error) {
	for i, p := range m.st.Parts {
		if p.Slot == name || p.Serial == name || strconv.Itoa(i) == name {
			return i, nil
		}
	}
	var have []string
	for _, p := range m.st.Parts {
		have = append(have, p.Slot)
	}
	return 0, fmt.Errorf("server %s has no device %q: want a slot of %v, an index from 0, or a serial", m.cfg.Name, name, have)
}
