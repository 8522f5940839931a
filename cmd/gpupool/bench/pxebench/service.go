package pxebench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"gpupool/activities/install/bootstore"
	"gpupool/pxe"
	"gpupool/pxe/boot"
	"gpupool/pxe/dhcp"
	"gpupool/schema/store"
)

// ServiceEnv in the environment makes this program the boot service that is measured: see Serve.
const ServiceEnv = "GPUPOOL_BENCH_SERVICE"

// setup of the service that is measured: where its boot files are, and where its leases.
type setup struct {
	Dir      string `json:"dir"`
	Driver   string `json:"driver"` // of the record, with DSN and Sync, as store.Config has them
	DSN      string `json:"dsn"`
	Sync     string `json:"sync,omitempty"`
	Evidence bool   `json:"evidence,omitempty"` // an event for each message
}

// Serve is the boot service in a process of its own, as its peers are: it serves until its standard input ends. spec is
// what ServiceEnv says.
func Serve(ctx context.Context, spec string) error {
	var c setup
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return fmt.Errorf("%s: %w", ServiceEnv, err)
	}
	db, err := store.Open(ctx, store.Config{Driver: c.Driver, DSN: c.DSN, Sync: c.Sync})
	if err != nil {
		return err
	}
	defer db.Close()
	debug.SetGCPercent(pxe.GCPercent) // as the process of a boot service has it
	p := bootstore.New(db, 0)
	var to boot.Recorder
	if c.Evidence {
		to = p
	}
	s, err := pxe.New(pxe.Config{
		Interface: "br0", ServerID: "10.88.0.1", Root: c.Dir, NoProbe: true, // Kea and dnsmasq --no-ping don't probe either
		Limits: dhcp.Limits{PerMAC: 1000, Burst: 1000}, TFTPPerClient: 2 * many,
		Subnets: []pxe.Subnet{{CIDR: "10.88.0.0/16", Range: "10.88.1.0-10.88.250.255"}},
	}, pxe.Deps{Inventory: p, Leases: bootstore.Leases{DB: db}, Tokens: p, Recorder: to, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	fmt.Println("up")
	return s.Run(ctx)
}

// service starts the boot service, on a record of its own, until stop is called.
func (b *bench) service(c setup) (stop func(), err error) {
	c.Dir = b.dir
	if c.DSN, err = b.record(c.Driver); err != nil {
		return nil, err
	}
	spec, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	p := exec.CommandContext(b.ctx, os.Args[0], "bench", "--only", "pxe")
	p.Env = append(os.Environ(), ServiceEnv+"="+string(spec))
	p.Stderr = os.Stderr
	in, err := p.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	stop = func() {
		in.Close()
		if err := p.Wait(); err != nil {
			b.say("the boot service: " + err.Error())
		}
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		stop()
		return nil, fmt.Errorf("the boot service does not come up: %w", err)
	}
	return stop, nil
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
