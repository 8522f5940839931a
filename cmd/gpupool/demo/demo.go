// Package demo tells the main job from end to end on a simulated data centre: servers join, jobs queue and run, a GPU
// fails, a technician returns it, the GPU-hours add up; and checks each claim.
//
// Invariant: it knows nothing that a user of the API does not. Not here: what it shows.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gpupool/cmd/gpupool/serve"
)

// Command is `gpupool demo`.
func Command() *cobra.Command {
	var dir, trees string
	c := &cobra.Command{Use: "demo", Short: "Show the whole story on six simulated servers, and check it", Args: cobra.NoArgs,
		Long: "Start `gpupool up --lab demo` on a folder of its own and tell the story. On a terminal it then stays up with the\nconsole's address; with DEMO_EXIT=1, or without a terminal, it ends. The exit code is 0 only if every check held.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("lab-trees") {
				trees = captured()
			}
			return run(cmd, dir, trees)
		}}
	c.Flags().StringVar(&dir, "data-dir", "", "keep the demo's data here (else a temporary folder, removed at the end)")
	c.Flags().StringVar(&trees, "lab-trees", "", "folder of captured Redfish trees for the BMCs of four of the servers; empty: they are generated (else ../shared/data/redfish beside the repository, where there is one)")
	return c
}

// ErrFailed says that the story was told and not all of it was true.
var ErrFailed = errors.New("not every check held")

func run(cmd *cobra.Command, dir, trees string) (err error) {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	begun := time.Now()
	if dir == "" {
		if dir, err = os.MkdirTemp("", "gpupool-demo-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	var args []string
	if trees != "" {
		args = []string{"--lab-trees", trees}
	}
	up, err := Start(ctx, os.Args[0], dir, 0, args...)
	if err != nil {
		return err
	}
	defer up.Stop()
	fmt.Fprintf(out, "gpupool is up after %.1f s. API and console: %s\n", time.Since(begun).Seconds(), up.URL)
	if len(up.Trees) == 0 {
		up.Trees = []string{"the servers' BMCs serve generated trees (--lab-trees names none that were captured)"}
	}
	for _, t := range up.Trees {
		fmt.Fprintln(out, "  "+t)
	}
	s := &Story{URL: up.URL, Token: up.Token, LabDir: up.Lab, WorkDir: dir, Out: out}
	checks, err := s.Tell(ctx)
	fmt.Fprintf(out, "\n── What happened (%.0f s)\n", time.Since(begun).Seconds())
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	held := err == nil
	for _, c := range checks {
		mark := "ok"
		if !c.True {
			mark, held = "FAILED", false
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", mark, c.What, c.Seen)
	}
	if ferr := w.Flush(); ferr != nil {
		return ferr
	}
	if err != nil {
		return fmt.Errorf("%w (the server's log is %s)", err, up.keepLog())
	}
	if !held {
		return ErrFailed
	}
	if stay() {
		fmt.Fprintf(out, "\nStill up. Console: %s   sign in with %s\nAnother fault: %s lab --dir %s fault r1s2 SXM1 xid79\nCtrl-C ends it.\n", up.URL, up.Token, os.Args[0], up.Lab)
		select {
		case <-ctx.Done():
		case <-up.Ended:
			return errors.New("gpupool up ended")
		}
	}
	return nil
}

// captured is the folder of captured trees beside the repository that the working directory is in, or "".
func captured() string {
	dir, err := os.Getwd()
	for err == nil {
		if _, notHere := os.Stat(filepath.Join(dir, "go.mod")); notHere == nil {
			trees := filepath.Join(filepath.Dir(dir), "shared", "data", "redfish")
			if _, err := os.Stat(trees); err != nil {
				return ""
			}
			return trees
		}
		if filepath.Dir(dir) == dir {
			break
		}
		dir = filepath.Dir(dir)
	}
	return ""
}

// stay says whether somebody is there to look.
func stay() bool {
	if os.Getenv("DEMO_EXIT") != "" {
		return false
	}
	i, err := os.Stdout.Stat()
	return err == nil && i.Mode()&os.ModeCharDevice != 0
}

// Up is a running `gpupool up --lab demo`, a process of its own.
type Up struct {
	serve.Ready
	Ended <-chan struct{} // closed when the process has ended
	cmd   *exec.Cmd
	dir   string
	log   *os.File
}

// Start runs program's `up --lab demo` with more arguments on dir and waits until it is ready. port 0 takes a free one;
// a restart on the same dir needs the same port, since installed servers know it.
func Start(ctx context.Context, program, dir string, port int, more ...string) (_ *Up, err error) {
	if port == 0 {
		if port, err = freePort(); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	u := &Up{dir: dir}
	if u.log, err = os.OpenFile(filepath.Join(dir, "up.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	ready := filepath.Join(dir, "ready.json")
	if err := os.Remove(ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	args := []string{"up", "--lab", "demo", "--data-dir", filepath.Join(dir, "data"), "--set", fmt.Sprintf("api.listen=127.0.0.1:%d", port), "--set", "timing.power_rest=1s", "--ready-file", ready}
	u.cmd = exec.Command(program, append(args, more...)...)
	u.cmd.Stdout, u.cmd.Stderr = u.log, u.log
	u.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is the parent's to hear
	if err := u.cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	u.Ended = ended
	go func() { _ = u.cmd.Wait(); close(ended) }()
	err = until(ctx, time.Minute, "gpupool up", func(context.Context) (bool, error) {
		select {
		case <-ended:
			return false, fmt.Errorf("gpupool up ended while it started (see %s)", u.log.Name())
		default:
		}
		b, err := os.ReadFile(ready)
		if err != nil {
			return false, nil
		}
		return true, json.Unmarshal(b, &u.Ready)
	})
	if err != nil {
		u.Kill()
		return nil, err
	}
	return u, nil
}

// Stop ends the process in order; Kill ends it as a power cut would.
func (u *Up) Stop() {
	_ = u.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-u.Ended:
	case <-time.After(20 * time.Second):
		u.Kill()
	}
	u.log.Close()
}

// Kill is SIGKILL, and waits until the process is gone.
func (u *Up) Kill() {
	_ = u.cmd.Process.Kill()
	<-u.Ended
}

// keepLog moves the log out of a folder that will be removed.
func (u *Up) keepLog() string {
	b, err := os.ReadFile(u.log.Name())
	if err != nil {
		return u.log.Name()
	}
	f, err := os.CreateTemp("", "gpupool-demo-*.log")
	if err != nil {
		return u.log.Name()
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return u.log.Name()
	}
	return f.Name()
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
