package burnin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// result is how a program ended. code is -1 where it could not be started or was killed.
type result struct {
	out  []byte
	code int
	late bool
	err  error
}

// maxOutput bounds what is read of a program that prints for ever.
const maxOutput = 16 << 20

// bounded keeps the first maxOutput bytes. Its writers are stdout and stderr at once.
type bounded struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *bounded) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if room := maxOutput - w.b.Len(); room > 0 {
		w.b.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// run runs a program in a process group of its own. When ctx ends or limit is over the group is told to end, and killed
// after grace: a hung program's children hold devices as well as it does.
func run(ctx context.Context, limit, grace time.Duration, file string, args ...string) result {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.Command(file, args...)
	out := &bounded{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = grace // a child that left the group may hold the pipe
	if err := cmd.Start(); err != nil {
		return result{code: -1, err: err}
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var err error
	late := false
	select {
	case err = <-done:
	case <-ctx.Done():
		late = errors.Is(ctx.Err(), context.DeadlineExceeded)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // it may be gone by itself
		t := time.NewTimer(grace)
		defer t.Stop()
		select {
		case err = <-done:
		case <-t.C:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			err = <-done
		}
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it left behind in its group
	out.mu.Lock()
	defer out.mu.Unlock()
	r := result{out: bytes.Clone(out.b.Bytes()), late: late, err: err, code: cmd.ProcessState.ExitCode()}
	return r
}

// Ran is how a program ended that is no test.
type Ran struct {
	Output []byte // of both streams, its first 16 MiB
	SHA256 string // of Output
	Code   int    // -1 where it could not be started, or was killed
	Late   bool   // it was not done in time, and was ended
	Err    error
}

// Program runs a program as tests are run: with all that it starts it is over when this returns, at the latest soon after
// limit.
func Program(ctx context.Context, limit time.Duration, file string, args ...string) Ran {
	r := run(ctx, limit, 10*time.Second, file, args...)
	sum := sha256.Sum256(r.out)
	return Ran{Output: r.out, SHA256: hex.EncodeToString(sum[:]), Code: r.code, Late: r.late, Err: r.err}
}

// Shell is Program for a command of the shell, which stops at its first failure.
func Shell(ctx context.Context, limit time.Duration, command string) Ran {
	return Program(ctx, limit, "/bin/sh", "-euc", command)
}
