package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
)

// maxEvidence bounds what is kept for a platform that doesn't answer: a broken device can tell thousands of faults.
const maxEvidence = 1000

// evidence keeps faults on the disk until the platform has them. mu guards all of it.
type evidence struct {
	path string
	boot string
	now  func() schema.Instant
	wake chan struct{} // there is something new

	mu   sync.Mutex
	kept struct {
		Next    int64                 `json:"next"`
		Dropped int64                 `json:"dropped,omitempty"`
		Pending []agentproto.Evidence `json:"pending"`
	}
}

func openEvidence(dir, boot string, now func() schema.Instant) (*evidence, error) {
	e := &evidence{path: filepath.Join(dir, "evidence.json"), boot: boot, now: now, wake: make(chan struct{}, 1)}
	return e, readJSON(e.path, &e.kept)
}

// add keeps a sign. One that was read again (same Key) while it waits is not kept twice; after that the platform knows
// its ID.
func (e *evidence) add(source string, s accelerator.Sign) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := s.Key
	if key == "" {
		e.kept.Next++
		key = "n" + strconv.FormatInt(e.kept.Next, 10)
	}
	ev := agentproto.Evidence{
		Device: s.Device, Kind: s.Kind, Code: s.Code, Part: s.Part, Value: s.Value, Severity: s.Severity, Text: s.Text, At: s.At, Clear: s.Clear,
		ID: e.boot + "/" + source + "/" + key,
	}
	if ev.At == 0 {
		ev.At = e.now()
	}
	if slices.ContainsFunc(e.kept.Pending, func(o agentproto.Evidence) bool { return o.ID == ev.ID }) {
		return nil
	}
	if len(e.kept.Pending) == maxEvidence {
		// The first signs say most about a cause, and the last about what is; so one from the middle goes.
		e.kept.Pending = slices.Delete(e.kept.Pending, maxEvidence/2, maxEvidence/2+1)
		e.kept.Dropped++
	}
	e.kept.Pending = append(e.kept.Pending, ev)
	select {
	case e.wake <- struct{}{}:
	default:
	}
	return e.save()
}

// pending is what waits, at most as much as one heartbeat carries.
func (e *evidence) pending() []agentproto.Evidence {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.kept.Pending[:min(len(e.kept.Pending), 200)])
}

// acknowledge drops what the platform has. It reports whether more waits.
func (e *evidence) acknowledge(ids []string) (more bool, err error) {
	if len(ids) == 0 {
		return false, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept.Pending = slices.DeleteFunc(e.kept.Pending, func(o agentproto.Evidence) bool { return slices.Contains(ids, o.ID) })
	return len(e.kept.Pending) > 0, e.save()
}

func (e *evidence) save() error {
	b, err := json.Marshal(e.kept)
	if err != nil {
		return err
	}
	return writeFile(e.path, b, true)
}

// readJSON reads a file that the agent itself wrote whole; a file that isn't there leaves v as it is.
func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s is damaged: %w (hint: move it away; what it held is lost)", path, err)
	}
	return nil
}
