package demo_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gpupool/cmd/gpupool/serve"
	"gpupool/deploy/lab"
	"gpupool/schema/secret"
	"gpupool/worker/embedded"
)

// cluster is a pool whose roles are processes of their own: the same binary, one configuration file, PostgreSQL and a
// Temporal server elsewhere. The data centre is the test's.
type cluster struct {
	dir   string
	file  string // the configuration that all processes read
	url   string // of the API, through the balancer
	lab   *lab.Lab
	procs map[string]*proc
}

// proc is one process, which may be killed and started again.
type proc struct {
	name  string
	args  []string
	ready string // file; empty = the process says nothing
	log   *os.File
	cmd   *exec.Cmd
	ended chan struct{}
	serve.Ready
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ports are free ones; each is bound again by a process, so they are not port 0.
func ports(t testing.TB, network string, n int) []int {
	t.Helper()
	var out []int
	for range n {
		if network == "udp" {
			c, err := net.ListenPacket("udp4", "127.0.0.1:0")
			must(t, err)
			defer c.Close() // only at the end, so that no port comes twice
			out = append(out, c.LocalAddr().(*net.UDPAddr).Port)
			continue
		}
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		must(t, err)
		defer l.Close()
		out = append(out, l.Addr().(*net.TCPAddr).Port)
	}
	return out
}

func at(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// startCluster starts every process at the same moment, on an empty database and a Temporal that knows no namespace, and
// the data centre whose servers boot from the pxe process.
func startCluster(t testing.TB, database string) *cluster {
	t.Helper()
	c := &cluster{dir: t.TempDir(), procs: map[string]*proc{}}
	udp, tcp := ports(t, "udp", 2), ports(t, "tcp", 4)
	dhcp, tftp := udp[0], udp[1]
	temporal, http, apis := tcp[0], tcp[1], tcp[2:]
	c.url = balance(t, at(apis[0]), at(apis[1]))
	for _, name := range []string{"payload.keys", "secrets.keys"} {
		must(t, os.WriteFile(filepath.Join(c.dir, name), secret.Keys{secret.NewKey()}.Format(), 0o600))
	}
	boot := filepath.Join(c.dir, "boot")
	must(t, lab.BootFiles(boot))
	c.file = filepath.Join(c.dir, "gpupool.yaml")
	must(t, os.WriteFile(c.file, fmt.Appendf(nil, `
database: {driver: postgres, dsn: "%s", max_connections: 10}
temporal: {mode: external, address: "%s", payload_key_file: %s}
secrets: {key_file: %s}
api: {external_url: "%s"}
timing: {phone_home: 15s, bmc: 1m, heartbeat: 1s}
log: {level: warn, format: text}
pxe:
  mode: relay
  server_id: 127.0.0.1
  dhcp_listen: "%s"
  tftp_listen: "%s"
  http_listen: "%s"
  boot_dir: %s
  subnets: [{cidr: 127.77.0.0/16, range: 127.77.1.1-127.77.9.250}]
`, database, at(temporal), filepath.Join(c.dir, "payload.keys"), filepath.Join(c.dir, "secrets.keys"), c.url, at(dhcp), at(tftp), at(http), boot), 0o600))

	t.Cleanup(func() {
		for _, p := range c.procs {
			p.end()
			if t.Failed() {
				if b, err := os.ReadFile(p.log.Name()); err == nil {
					t.Logf("the end of the log of %s:\n%s", p.name, b[max(0, len(b)-3000):])
				}
			}
			_ = p.log.Close()
		}
	})
	c.add(t, "temporal", "temporal", filepath.Join(c.dir, "temporal"), strconv.Itoa(temporal))
	for i, port := range apis {
		c.role(t, fmt.Sprint("api-", i+1), "api", "--set", "api.listen="+at(port))
	}
	for i := range 2 {
		c.role(t, fmt.Sprint("worker-", i+1), "worker", "--site", "lab")
		c.role(t, fmt.Sprint("allocator-", i+1), "allocator", "--region", "eu-north")
	}
	c.role(t, "pxe", "pxe", "--site", "lab")
	for _, p := range c.procs {
		must(t, p.await())
	}

	var err error
	c.lab, err = lab.New(lab.Config{Dir: filepath.Join(c.dir, "lab"), Servers: lab.Demo(), DHCP: at(dhcp), TFTPPort: tftp, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- c.lab.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
	return c
}

// role starts a process of gpupool's own.
func (c *cluster) role(t testing.TB, name string, args ...string) {
	t.Helper()
	ready := filepath.Join(c.dir, name+".ready")
	c.add(t, name, append(args, "--config", c.file, "--data-dir", filepath.Join(c.dir, name), "--ready-file", ready)...)
	c.procs[name].ready = ready
}

func (c *cluster) add(t testing.TB, name string, args ...string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	must(t, err)
	p := &proc{name: name, args: args, log: f}
	c.procs[name] = p
	must(t, p.start())
}

func (p *proc) start() error {
	if p.ready != "" {
		if err := os.Remove(p.ready); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	p.cmd = exec.Command(os.Args[0], p.args...)
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Dir(p.log.Name())}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) { _ = cmd.Wait(); close(ended) }(p.cmd, p.ended)
	return nil
}

// await returns once the process says that it is ready.
func (p *proc) await() error {
	late := time.After(2 * time.Minute)
	for p.ready != "" {
		if b, err := os.ReadFile(p.ready); err == nil {
			token := p.Token // told by the first start only
			if err := json.Unmarshal(b, &p.Ready); err != nil {
				return err
			}
			if p.Token == "" {
				p.Token = token
			}
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended while it started", p.name)
		case <-late:
			return fmt.Errorf("%s is not ready after two minutes", p.name)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// kill is SIGKILL, and waits until the process is gone.
func (p *proc) kill() {
	_ = p.cmd.Process.Kill() // it may have ended, which the story then shows
	<-p.ended
}

// again kills the process and starts it anew.
func (p *proc) again() error {
	p.kill()
	if err := p.start(); err != nil {
		return err
	}
	return p.await()
}

// end ends the process in order, or by force where it doesn't end.
func (p *proc) end() {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		p.kill()
	}
}

// temporalServer is a Temporal server alone, on its own file, until it is told to end.
func temporalServer(dir, port string) int {
	n, err := strconv.Atoi(port)
	if err == nil {
		var s *embedded.Server
		// Its namespace is not the pool's: that one is registered by the pool's processes.
		s, err = embedded.Start(context.Background(), embedded.Options{Dir: dir, Port: n, Namespace: "another", Sync: embedded.SyncNormal,
			Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
		if err == nil {
			<-s.Failed()
			err = s.Err()
		}
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// balance is a load balancer for TCP: each connection goes to the next of the addresses that answers.
func balance(t testing.TB, to ...string) (url string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); _ = ln.Close(); wg.Wait() })
	wg.Go(func() {
		for next := 0; ; next++ {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			first := next
			wg.Go(func() {
				defer in.Close()
				for i := range to {
					out, err := net.Dial("tcp", to[(first+i)%len(to)])
					if err != nil {
						continue
					}
					stop := context.AfterFunc(ctx, func() { _ = in.Close(); _ = out.Close() })
					defer stop()
					done := make(chan struct{})
					go func() {
						defer close(done)
						_, _ = io.Copy(out, in) // the ends are the callers' to notice
						_ = out.Close()
					}()
					_, _ = io.Copy(in, out)
					_ = in.Close()
					<-done
					return
				}
			})
		}
	})
	return "http://" + strings.Replace(ln.Addr().String(), "[::]", "127.0.0.1", 1)
}
