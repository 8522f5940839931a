package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/hardware"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/image"
	"gpupool/worker/agent/parts"
	"gpupool/worker/agent/proc"
	"gpupool/worker/agent/sandbox"
)

// PhoneHome is the file that the install left on the disk: who this server is and how it may say so.
type PhoneHome struct {
	Server   string `json:"server"`           // server id
	Attempt  int    `json:"attempt"`          // onboarding attempt that installed this disk
	API      string `json:"api_url"`          // https://host[:port]
	Token    string `json:"phone_home_token"` // good for one registration
	Profile  string `json:"profile,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	CA       string `json:"ca,omitempty"` // PEM of the API's certificate authority; empty = the system's
}

// ReadPhoneHome reads and checks the file.
func ReadPhoneHome(path string) (PhoneHome, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return PhoneHome{}, fmt.Errorf("read the phone-home file: %w", err)
	}
	return ParsePhoneHome(b)
}

// ParsePhoneHome checks a phone-home file's content. Fields it doesn't know are left alone: a later install may say more.
func ParsePhoneHome(b []byte) (PhoneHome, error) {
	var p PhoneHome
	if err := json.Unmarshal(b, &p); err != nil {
		return PhoneHome{}, fmt.Errorf("phone-home file: %w", err)
	}
	return p, p.check()
}

func (p PhoneHome) check() error {
	_, reachable := schema.ParseURL(p.API)
	switch {
	case p.Server == "" || strings.ContainsAny(p.Server, ": \t\r\n"):
		return fmt.Errorf("phone-home file: server %q is not a server id", p.Server)
	case !reachable:
		return fmt.Errorf("phone-home file: api_url %q is not of the form https://host[:port]", p.API)
	case p.Attempt < 0:
		return fmt.Errorf("phone-home file: attempt %d is negative", p.Attempt)
	}
	return nil
}

// Machine is what the server says of itself.
type Machine struct {
	BootID      string
	Serial      string // chassis, by SMBIOS
	UUID        string // SMBIOS
	Hostname    string
	CPUs        int
	MemoryBytes int64
}

// Player gives, for a command that it knows, a function that stands for the job's process: it runs until it gives the exit
// code, or until ctx ends because the job is stopped, and leaves nothing behind. nil means that the command is a program to
// be started. It dies with the agent, where a process would live on: so it is for simulated servers only.
type Player func(command []string) func(ctx context.Context) (code int)

// Images are the container images of this server. See package image.
type Images interface {
	// Get has an image on the server, which may take minutes.
	Get(ctx context.Context, ref string) error
	// Show tells how a job sees an image that is there; the view is the key's until Drop.
	Show(ctx context.Context, key, ref string) (image.View, error)
	Drop(ctx context.Context, key string) error
}

// DeviceNodes lists the device nodes of this server through which a program uses d.
type DeviceNodes func(d agentproto.Device) ([]string, error)

// Config is what an agent needs. Only PhoneHome and StateDir have no default.
type Config struct {
	PhoneHome PhoneHome
	StateDir  string // the agent's own; mode 0700. A reinstall empties it.
	Version   string // of the agent; reported

	Readers []accelerator.Reader
	BurnIn  Tester                      // tests devices; nil = only what readings show, so that burn-in is inconclusive
	Tools   Toolbox                     // runs test programs; nil = none, so that a suite that asks for one is inconclusive
	Runtime RuntimeProbe                // nil = containerd, docker, podman, by asking each for its version
	Contain ContainerProbe              // runs a container; nil = RunContainer, where Runtime is nil too, else none is run
	Reboot  func(context.Context) error // restarts the server; nil = Reboot
	Machine func() Machine              // nil = this machine, from /proc and /sys
	Parts   func() hardware.Read        // beside the devices; nil = this machine's, from /sys
	HTTP    *http.Client                // nil = one of its own, with PhoneHome.CA
	Table   *proc.Table                 // nil = /proc
	Now     func() time.Time            // nil = time.Now
	Log     *slog.Logger                // nil = slog.Default
	Env     map[string]string           // what every job finds in its environment; nil = a PATH and a locale
	Suites  map[string][]Check          // burn-in suites by name; nil = Suites
	Play    Player                      // plays jobs on a server that is simulated; nil = every job is a process

	Apart  *sandbox.Host // keeps jobs apart; nil = they run as the agent's own user, and see each other
	Shared string        // why Apart is nil, for the platform to know; "" = it was not asked for
	Images Images        // brings container images; nil = jobs in images are refused. It needs Apart
	Disk   int64         // bytes that a job kept apart may have on the disk; 0 = its share of nine tenths of it, by its devices
	Nodes  DeviceNodes   // which nodes a program uses a device by; nil = accelerator.Nodes

	// Metrics is where the last reading is shown to Prometheus, under /metrics; nil = nowhere. The agent closes it.
	Metrics net.Listener

	Heartbeat   time.Duration // until the API says otherwise; 0 = 10 s
	ReadTimeout time.Duration // how long one reading of a vendor's devices may take; 0 = 10 s
	Hang        time.Duration // when a driver that does not come back is a fault in itself; 0 = 45 s
	Settle      time.Duration // how long drivers and runtime may take to answer once their setup is done; 0 = 2 minutes, negative = no time
	Batch       time.Duration // how long a report waits for others to go with it; 0 = 10 ms, negative = not at all
	PollWait    time.Duration // how long the API holds a poll; 0 = 30 s
	Progress    time.Duration // how often a running job's new output is sent; 0 = 1 s
	Grace       time.Duration // between signal and kill where a stop names none, and for what a job left behind; 0 = 10 s
	Output      int64         // bytes kept of a job's output; 0 = 1 MiB
	RetryMin    time.Duration // first wait after a failed call; 0 = 200 ms. It doubles up to RetryMax, with jitter
	RetryMax    time.Duration // 0 = 15 s
}

func (c Config) withDefaults() (Config, error) {
	if err := c.PhoneHome.check(); err != nil {
		return c, err
	}
	if c.StateDir == "" {
		return c, errors.New("agent: StateDir is empty: it needs a folder that outlives it")
	}
	orDefault(&c.Heartbeat, 10*time.Second)
	orDefault(&c.ReadTimeout, 10*time.Second)
	orDefault(&c.Hang, 45*time.Second)
	orDefault(&c.Settle, 2*time.Minute)
	orDefault(&c.Batch, 10*time.Millisecond)
	orDefault(&c.PollWait, 30*time.Second)
	orDefault(&c.Progress, time.Second)
	orDefault(&c.Grace, 10*time.Second)
	orDefault(&c.Output, 1<<20)
	orDefault(&c.RetryMin, 200*time.Millisecond)
	orDefault(&c.RetryMax, 15*time.Second)
	if c.Machine == nil {
		c.Machine = ThisMachine
	}
	if c.Parts == nil {
		c.Parts = parts.ThisMachine
	}
	if c.Runtime == nil {
		c.Runtime = ProbeRuntime
		if c.Contain == nil {
			c.Contain = RunContainer
		}
	}
	if c.Reboot == nil {
		c.Reboot = Reboot
	}
	if c.Table == nil {
		c.Table = proc.New("")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Env == nil {
		c.Env = map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
	}
	if c.Suites == nil {
		c.Suites = Suites
	}
	if c.Apart != nil {
		c.Shared = ""
	} else if c.Shared == "" {
		c.Shared = "they run as the agent's own user"
	}
	if c.Nodes == nil {
		c.Nodes = func(d agentproto.Device) ([]string, error) { return accelerator.Nodes("/", d) }
	}
	return c, nil
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
