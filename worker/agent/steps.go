package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/burnin"
)

// progress is how far a setup has come. It is on the disk before a restart is ordered, and after each step.
type progress struct {
	Task string                `json:"task"`
	Done []agentproto.SetupRun `json:"done"`
}

// Kept of a step's output, and how long a server may take to go down.
const (
	keptOutput = 16 << 10
	goesDown   = 10 * time.Minute
)

// setUp takes a setup's steps and then proves what they were to bring. It goes on where it was after a restart, its own or
// the agent's: a step that was cut off is taken again.
func (t *tasks) setUp(ctx context.Context, id string, payload json.RawMessage, proof func(context.Context, agentproto.Setup) (string, error)) (any, string, error) {
	var s agentproto.Setup
	if err := json.Unmarshal(payload, &s); err != nil {
		return nil, "", fmt.Errorf("the task's payload could not be read: %w", err)
	}
	file := filepath.Join(t.cfg.StateDir, "setup.json")
	var p progress
	if err := readJSON(file, &p); err != nil {
		return nil, "", err
	}
	if p.Task != id {
		p = progress{Task: id}
	}
	result := func() any { return agentproto.SetupResult{Profile: s.Profile, Steps: p.Done} }
	keep := func() error {
		b, err := json.Marshal(p)
		if err == nil {
			err = writeFile(file, b, true)
		}
		return err
	}
	for i, step := range s.Steps {
		if i >= len(p.Done) {
			run, err := t.step(ctx, step)
			if ctx.Err() != nil {
				return nil, "", ctx.Err()
			}
			p.Done = append(p.Done, run)
			if err != nil {
				return result(), "", fmt.Errorf("step %d of %d of setup %s: %w", i+1, len(s.Steps), s.Profile, err)
			}
			if err := keep(); err != nil {
				return result(), "", fmt.Errorf("the setup's progress could not be kept: %w", err)
			}
		}
		if run := p.Done[i]; run.Reboot && run.Boot == t.boot {
			return result(), "", fmt.Errorf("restart after step %s of setup %s: %w", step.Name, s.Profile, t.restart(ctx, id))
		}
	}
	said, err := t.settled(ctx, s, proof)
	if err != nil {
		return result(), "", err
	}
	text := said
	if n := len(p.Done); n > 0 {
		text = fmt.Sprintf("%s; setup %s, %d steps", said, s.Profile, n)
	}
	return agentproto.SetupResult{Profile: s.Profile, Steps: p.Done, Proof: said}, text, nil
}

// settled asks for the proof until it is had: drivers come up after the system, and the first readings of eight devices take
// their time.
func (t *tasks) settled(ctx context.Context, s agentproto.Setup, proof func(context.Context, agentproto.Setup) (string, error)) (string, error) {
	for end := time.Now().Add(t.cfg.Settle); ; {
		said, err := proof(ctx, s)
		if err == nil || !time.Now().Before(end) {
			return said, err
		}
		if perr := pause(ctx, time.Second); perr != nil {
			return "", perr
		}
	}
}

// step runs one command, unless another says that there is nothing to do.
func (t *tasks) step(ctx context.Context, s agentproto.SetupStep) (agentproto.SetupRun, error) {
	limit := time.Duration(s.LimitMS) * time.Millisecond
	if limit <= 0 {
		limit = 15 * time.Minute
	}
	run := agentproto.SetupRun{Name: s.Name, Began: t.now(), Boot: t.boot}
	if s.Unless != "" {
		if r := burnin.Shell(ctx, limit, s.Unless); r.Code == 0 {
			run.Skipped, run.Ended = true, t.now()
			return run, nil
		}
	}
	t.cfg.Log.InfoContext(ctx, "setup", "step", s.Name)
	r := burnin.Shell(ctx, limit, s.Run)
	run.ExitCode, run.Ended, run.SHA256 = r.Code, t.now(), r.SHA256
	run.Output = strings.ToValidUTF8(string(r.Output[max(0, len(r.Output)-keptOutput):]), "\uFFFD")
	switch {
	case r.Late:
		return run, fmt.Errorf("%s was not done within %s: %s", s.Name, schema.Setting(limit), lastLine(r.Output))
	case r.Err != nil && r.Code < 0:
		return run, fmt.Errorf("%s: %w", s.Name, r.Err)
	case r.Code != 0:
		return run, fmt.Errorf("%s ended with exit code %d: %s", s.Name, r.Code, lastLine(r.Output))
	}
	run.Reboot = s.Reboot
	return run, nil
}

// restart restarts the server, and does not return while it goes down: its next life takes the task up again. It returns with
// an error only. At the moment of the act no job may be on the server.
func (t *tasks) restart(ctx context.Context, id string) error {
	t.mu.Lock()
	for other := range t.live {
		if r := t.records[other]; r != nil && r.Kind == schema.TaskRun {
			t.mu.Unlock()
			return fmt.Errorf("job task %s runs on this server", other)
		}
	}
	if r := t.records[id]; r != nil {
		r.Tries = 0 // this end of the agent is asked for
		t.save(r)
	}
	t.mu.Unlock()
	t.cfg.Log.WarnContext(ctx, "restarts the server, as the setup asks", "task", id)
	if err := t.cfg.Reboot(ctx); err != nil {
		return err
	}
	if err := pause(ctx, goesDown); err != nil {
		return err
	}
	return fmt.Errorf("it was ordered, and the server is still up after %s", goesDown)
}

// Reboot restarts the server in order: services are stopped first.
func Reboot(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "systemctl", "reboot").CombinedOutput()
	if err != nil && ctx.Err() == nil {
		return errors.Join(fmt.Errorf("systemctl reboot: %w", err), errors.New(lastLine(out)))
	}
	return nil
}
