package pxebench

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gpupool/pxe"
	"gpupool/pxe/boot"
	"gpupool/pxe/dhcp"
	"gpupool/pxe/lease"
	"gpupool/pxe/pxetest"
	"gpupool/schema"
)

// site is an inventory of perfdhcp's machines, as a site of that many servers.
type site struct {
	*pxetest.Platform
	macs []string
}

func newSite() *site {
	s := &site{Platform: pxetest.New()}
	for i := range clients + 10 {
		n := 0x01020304 + i // perfdhcp counts up from 00:0c:01:02:03:04
		s.macs = append(s.macs, fmt.Sprintf("00:0c:%02x:%02x:%02x:%02x", byte(n>>24), byte(n>>16), byte(n>>8), byte(n)))
	}
	return s
}

func (s *site) MACs(context.Context) ([]string, error) { return s.macs, nil }

func (s *site) ByMAC(_ context.Context, mac string) (boot.Machine, bool, error) {
	return boot.Machine{ID: "srv-" + mac, Phase: schema.PhaseAvailable}, strings.HasPrefix(mac, "00:0c:"), nil
}

// service runs the boot service in this process until stop is called. Evidence goes to to, where it isn't nil.
func (b *bench) service(leases lease.Store, to boot.Recorder) (stop func(), err error) {
	p := newSite()
	s, err := pxe.New(pxe.Config{
		Interface: "br0", ServerID: "10.88.0.1", Root: b.dir, NoProbe: true, // Kea and dnsmasq --no-ping don't probe either
		Limits: dhcp.Limits{PerMAC: 1000, Burst: 1000}, TFTPPerClient: 2 * many,
		Subnets: []pxe.Subnet{{CIDR: "10.88.0.0/16", Range: "10.88.1.0-10.88.250.255"}},
	}, pxe.Deps{Inventory: p, Leases: leases, Tokens: p, Recorder: to, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			b.say(err.Error())
		}
	}, nil
}

// daemon runs a peer until stop is called; it is up once something listens on port.
func (b *bench) daemon(port, program string, args ...string) (stop func(), err error) {
	c := exec.CommandContext(b.ctx, program, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its children end with it
	c.Env = append(os.Environ(), "KEA_PIDFILE_DIR="+b.dir, "KEA_LOCKFILE_DIR="+b.dir)
	log, err := os.Create(b.path(filepath.Base(program) + ".log"))
	if err != nil {
		return nil, err
	}
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		log.Close()
		return nil, err
	}
	stop = func() {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		_ = c.Wait() // killed
		log.Close()
	}
	for until := time.Now().Add(15 * time.Second); ; <-time.After(50 * time.Millisecond) {
		out, err := exec.CommandContext(b.ctx, "ss", "-Hlnutp").Output()
		if err != nil {
			stop()
			return nil, err
		}
		for _, line := range strings.Split(string(out), "\n") {
			if f := strings.Fields(line); len(f) > 4 && strings.HasSuffix(f[4], ":"+port) {
				return stop, nil
			}
		}
		if time.Now().After(until) {
			stop()
			said, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("does not listen on port %s: %s", port, said)
		}
	}
}
