package agent

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
)

// RuntimeProbe finds the server's container runtime and says what it says of itself: "containerd 2.1.4".
type RuntimeProbe func(ctx context.Context) (string, error)

// ErrNoRuntime says that no container runtime answered.
var ErrNoRuntime = errors.New("no container runtime: none of containerd, docker, podman answers --version")

var versionNumber = regexp.MustCompile(`\bv?(\d+\.\d+[\w.~+-]*)`)

// ProbeRuntime asks the programs themselves: that a package is installed proves nothing.
func ProbeRuntime(ctx context.Context) (string, error) {
	for _, name := range []string{"containerd", "docker", "podman"} {
		out, err := exec.CommandContext(ctx, name, "--version").CombinedOutput()
		if m := versionNumber.FindSubmatch(out); err == nil && m != nil {
			return name + " " + string(m[1]), nil
		}
		if err != nil && !errors.Is(err, exec.ErrNotFound) {
			return "", fmt.Errorf("%s --version: %w: %s", name, err, lastLine(out))
		}
	}
	return "", ErrNoRuntime
}

func (t *tasks) inventory(ctx context.Context) (any, string, error) {
	m := t.cfg.Machine()
	list, known := t.devices.read(ctx)
	if !known {
		return nil, "", errors.New("the devices could not be read: a driver has not answered yet")
	}
	inv := agentproto.Inventory{Serial: m.Serial, UUID: m.UUID, CPUs: m.CPUs, MemoryBytes: m.MemoryBytes, Devices: list, Drivers: map[string]string{}}
	read := t.cfg.Parts()
	inv.Hardware = &read
	for _, r := range t.cfg.Readers {
		v, err := r.Driver(ctx)
		if err == nil && v != "" {
			inv.Drivers[string(r.Vendor())] = v
		}
	}
	// A server without a runtime is a server without one: whether that is right, the runtime step says.
	if rt, err := t.cfg.Runtime(ctx); err == nil {
		inv.Runtime = rt
	}
	return inv, fmt.Sprintf("%d devices, %d CPUs, %d GiB", len(list), m.CPUs, m.MemoryBytes>>30), nil
}

// drivers proves a vendor's driver by its devices: each must answer, and the driver must say its version.
func (t *tasks) drivers(ctx context.Context, s agentproto.Setup) (string, error) {
	list, _ := t.devices.read(ctx)
	var said []string
	var proven []schema.Vendor
	for _, r := range t.cfg.Readers {
		v := r.Vendor()
		if s.Vendor != "" && string(v) != s.Vendor {
			continue
		}
		mine := slices.DeleteFunc(slices.Clone(list), func(d agentproto.Device) bool { return d.Vendor != v })
		if s.Vendor == "" && len(mine) == 0 {
			continue
		}
		version, err := r.Driver(ctx)
		if err != nil {
			return "", fmt.Errorf("the %s driver does not answer: %w (profile %q)", v, err, s.Profile)
		}
		if len(mine) == 0 {
			return "", fmt.Errorf("the %s driver %s answers, but lists no device (profile %q)", v, version, s.Profile)
		}
		for _, d := range mine {
			if d.Error != "" {
				return "", fmt.Errorf("device %s (%s) does not answer the %s driver %s: %s", accelerator.Identity(d), d.Slot, v, version, d.Error)
			}
		}
		proven = append(proven, v)
		said = append(said, fmt.Sprintf("%s driver %s: %d devices answer", v, version, len(mine)))
	}
	switch {
	case len(proven) > 0:
		return strings.Join(said, "; "), nil
	case s.Vendor != "":
		return "", fmt.Errorf("this agent has no reader for vendor %q", s.Vendor)
	default:
		return "", errors.New("no device of any vendor answers its driver")
	}
}

// runtime proves the container runtime by a container that sees the devices.
func (t *tasks) runtime(ctx context.Context, s agentproto.Setup) (string, error) {
	if name, _, _ := strings.Cut(s.Profile, "/"); name == "none" {
		return "the profile asks for no container runtime", nil
	}
	v, err := t.cfg.Runtime(ctx)
	if err != nil {
		return "", fmt.Errorf("%w (profile %q)", err, s.Profile)
	}
	if t.cfg.Contain == nil {
		return v + " answers", nil
	}
	var nodes []string
	list, _ := t.devices.read(ctx)
	for _, d := range list {
		if s.Vendor != "" && string(d.Vendor) != s.Vendor {
			continue
		}
		of, err := t.cfg.Nodes(d)
		if err != nil {
			return "", fmt.Errorf("device nodes of %s (%s): %w", accelerator.Identity(d), d.Slot, err)
		}
		nodes = append(nodes, of...)
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	said, err := t.cfg.Contain(ctx, t.cfg.StateDir, v, nodes)
	if err != nil {
		return "", fmt.Errorf("%s runs no container: %w (profile %q)", v, err, s.Profile)
	}
	return v + " " + said, nil
}
