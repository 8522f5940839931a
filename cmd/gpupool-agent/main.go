// Command gpupool-agent is the node agent: it runs on a server of the pool. Only flags and wiring are here; see
// worker/agent.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gpupool/schema"
	"gpupool/worker/agent"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/amd"
	"gpupool/worker/agent/accelerator/ascend"
	"gpupool/worker/agent/accelerator/exporter"
	"gpupool/worker/agent/accelerator/infiniband"
	"gpupool/worker/agent/accelerator/intel"
	"gpupool/worker/agent/accelerator/kmsg"
	"gpupool/worker/agent/accelerator/nvidia"
	"gpupool/worker/agent/accelerator/pci"
	"gpupool/worker/agent/burnin"
	"gpupool/worker/agent/image"
	"gpupool/worker/agent/sandbox"
)

// version is set by the build: -ldflags "-X main.version=v1.2.3".
var version = "dev"

// Exit codes. exitRefused tells the unit not to start it again: only a person can help.
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitRefused = 78 // EX_CONFIG of sysexits.h
)

func main() {
	sandbox.Init() // where this is the first process of a job
	config := flag.String("config", "/etc/gpupool/agent.json", "the file that the install left: who this server is")
	state := flag.String("state", "/var/lib/gpupool-agent", "folder of the agent's own state")
	show := flag.Bool("version", false, "print the version")
	apart := flag.Bool("apart", true, "keep jobs apart from each other, where the agent is root: each as its own user, with its own processes, files, devices and limits")
	users := flag.Int("first-user", sandbox.DefaultUsers.First, "the first of the user ids that jobs run as; no account of this server may be in the range")
	count := flag.Int("users", sandbox.DefaultUsers.Count, "how many user ids there are for jobs")
	disk := flag.Int64("job-disk", 0, "bytes that a job may have on this server's disk; 0 = its share, by its devices, of nine tenths of it")
	socket := flag.String("containerd", image.Address, "containerd's socket, for jobs in container images; empty = such jobs are refused")
	metrics := flag.String("metrics", "127.0.0.1:9401", "where the devices' metrics are shown to Prometheus, under /metrics; empty = nowhere")
	page := flag.String("exporter", "", "page of a dcgm-exporter or AMD Device Metrics Exporter on this server, such as http://127.0.0.1:9400/metrics, for devices that the agent can't read itself; empty = none")
	devices := flag.Bool("devices", false, "print what the readers see, once, and exit")
	flag.Parse()
	switch {
	case *show:
		fmt.Println(version)
	case flag.NArg() > 0:
		fmt.Fprintf(os.Stderr, "unknown argument %q; see -help\n", flag.Arg(0))
		os.Exit(exitUsage)
	case *devices:
		os.Exit(printDevices(readers(*page)))
	default:
		os.Exit(run(*config, *state, *apart, sandbox.Users{First: *users, Count: *count}, *disk, *socket, *metrics, *page))
	}
}

func readers(page string) []accelerator.Reader {
	boot := bootTime()
	list := []accelerator.Reader{nvidia.New(kmsg.Path, boot), amd.New("", kmsg.Path, boot), intel.New(""), ascend.New("")}
	if page != "" {
		list = append(list, exporter.New(page))
	}
	return append(list, kmsg.NewHost(kmsg.Path, boot), infiniband.New(""), pci.New(""))
}

func run(config, state string, apart bool, users sandbox.Users, disk int64, socket, metrics, page string) int {
	p, err := agent.ReadPhoneHome(config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg := agent.Config{PhoneHome: p, StateDir: state, Version: version, Readers: readers(page), Tools: &burnin.Box{}, Suites: suites(), Disk: disk, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if metrics != "" {
		// Work goes on without it: another program may have the port.
		if cfg.Metrics, err = net.Listen("tcp", metrics); err != nil {
			cfg.Log.Warn("metrics are not shown", "address", metrics, "why", err)
		}
	}
	if apart {
		if cfg.Apart, err = sandbox.Open(ctx, state, users); err != nil {
			cfg.Log.Warn("jobs of this server are not kept apart", "why", err)
			cfg.Shared = err.Error()
		}
	} else {
		cfg.Shared = "the agent runs with -apart=false"
	}
	if cfg.Apart != nil && socket != "" {
		images, err := image.Open(socket)
		if err != nil {
			cfg.Log.Warn("jobs in container images are refused", "why", err)
		} else {
			defer images.Close()
			cfg.Images = images
		}
	}
	err = agent.New(cfg).Run(ctx)
	var refused *agent.RefusedError
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return exitOK
	case errors.As(err, &refused):
		fmt.Fprintln(os.Stderr, err)
		return exitRefused
	default:
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
}

// suites are the general ones, and those that prove a vendor's servers by its test programs.
func suites() map[string][]agent.Check {
	all := maps.Clone(agent.Suites)
	for _, vendor := range []schema.Vendor{schema.VendorNVIDIA, schema.VendorAMD} {
		maps.Copy(all, agent.ToolSuites(string(vendor)))
	}
	return all
}

func printDevices(rs []accelerator.Reader) int {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, r := range rs {
		list, err := r.Read(ctx)
		if err != nil {
			fmt.Printf("%s: %v\n", r.Vendor(), err)
			continue
		}
		v, _ := r.Driver(ctx) // "" where there is none
		fmt.Printf("%s: driver %q, %d devices\n", r.Vendor(), v, len(list))
		for _, d := range list {
			fmt.Printf("  %d %s %s %s serial=%q uuid=%q %s %v\n", d.Index, d.PCI, d.Model, d.Slot, d.Serial, d.UUID, d.Error, d.Samples)
		}
	}
	return exitOK
}

// bootTime is when the kernel's clock began: btime of /proc/stat. Zero where it can't be read.
func bootTime() time.Time {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}
	}
	for line := range strings.Lines(string(b)) {
		if s, ok := strings.CutPrefix(line, "btime "); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64); err == nil {
				return time.Unix(n, 0)
			}
		}
	}
	return time.Time{}
}
