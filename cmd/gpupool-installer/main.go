// Command gpupool-installer is init of the install environment: what an armed server boots from the network to be given
// its operating system. Only wiring is here; see worker/installer.
package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"gpupool/worker/installer"
)

// networkWithin is how long a network may take to come up: spanning tree alone holds a port back for 30 s.
const networkWithin = 3 * time.Minute

func main() {
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey { // the clock of a new server is wrong; the time since its start is what helps
			return slog.String("up", time.Since(started).Round(10*time.Millisecond).String())
		}
		return a
	}}))
	if os.Getpid() != 1 {
		log.Error("this is the init of gpupool's install environment: it overwrites a disk, and is not to be started by hand")
		os.Exit(2)
	}
	if err := install(log); err != nil {
		log.Error("the install failed; this server waits to be switched off", "err", err)
		rest() // the platform was told, and a person reads the console
	}
	unix.Sync() // of a system that was brought into memory this is never reached
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil {
		log.Error("restart", "err", err)
	}
	rest()
}

// rest never returns: init may not.
func rest() {
	for {
		_ = unix.Pause() // only a signal ends it
	}
}

var started = time.Now()

func install(log *slog.Logger) error {
	if err := installer.Prepare(log); err != nil {
		return err
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	cfg, err := installer.ParseCmdline(string(line))
	if err != nil {
		return err
	}
	ctx := context.Background()
	network, cancel := context.WithTimeout(ctx, networkWithin)
	defer cancel()
	if err := installer.Network(network, cfg.MAC, log); err != nil {
		return err
	}
	if cfg.Sanitise {
		if err := installer.Sanitise(ctx, cfg, log); err != nil {
			return err
		}
		rest() // it is switched off; what it would boot is gone
	}
	if cfg.Live == "" {
		return installer.Install(ctx, cfg, log)
	}
	if err := installer.Live(ctx, cfg, log); err != nil {
		return err
	}
	return installer.Switch()
}
