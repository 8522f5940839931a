package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/proc"
)

// record is all that is kept of one task. The journal holds one line for each change; the last line of a task is its
// record.
type record struct {
	ID      string          `json:"id"`
	Kind    schema.TaskKind `json:"kind"`
	Epoch   int64           `json:"epoch,omitempty"`
	Payload json.RawMessage `json:"payload,omitempty"` // in a task's first line only
	Boot    string          `json:"boot,omitempty"`    // boot id under which it was begun
	Begun   schema.Instant  `json:"begun"`
	Tries   int             `json:"tries,omitempty"` // how often a looking task was begun

	Devices []string `json:"devices,omitempty"` // identities that a run task holds
	Dir     string   `json:"dir,omitempty"`     // of a run task: its output, its exit status
	Proc    proc.ID  `json:"proc,omitzero"`     // of a run task: the shell over it, or its sandbox's init
	Image   string   `json:"image,omitempty"`   // of a run task: the container image that it runs in
	Brings  bool     `json:"brings,omitempty"`  // its image is being brought: nothing of it has run
	User    int      `json:"user,omitempty"`    // of a run task that is kept apart: whom it runs as

	Stop   bool   `json:"stop,omitempty"`
	Signal string `json:"signal,omitempty"`
	Grace  int64  `json:"grace_ms,omitempty"`

	End  *end  `json:"end,omitempty"`
	Sent *sent `json:"sent,omitempty"` // the last report that was made
	Done bool  `json:"done,omitempty"` // its end was accepted
}

// end is how a task ended.
type end struct {
	State    schema.TaskState `json:"state"`
	ExitCode *int             `json:"exit_code,omitempty"`
	Signal   string           `json:"signal,omitempty"`
	Text     string           `json:"text,omitempty"`
	Result   json.RawMessage  `json:"result,omitempty"`
	NoneLeft bool             `json:"none_left"`
	At       schema.Instant   `json:"at"`
}

// sent is one report: enough to make the very same again, so that a repeat is a repeat.
type sent struct {
	Seq      int64            `json:"seq"`
	State    schema.TaskState `json:"state"`
	From     int64            `json:"from"` // bytes of output it carries
	To       int64            `json:"to"`
	Text     string           `json:"text,omitempty"`
	At       schema.Instant   `json:"at"`
	Final    bool             `json:"final,omitempty"`
	Accepted bool             `json:"accepted,omitempty"`
}

// line is one line of the journal: a record, or the highest epoch a device was given out under.
type line struct {
	*record
	Device string `json:"device,omitempty"`
	High   int64  `json:"high,omitempty"`
}

// journal is an append-only file of lines. Its owner serialises the calls.
type journal struct {
	path string
	f    *os.File
	buf  bytes.Buffer
	size int64
}

// compactAt is the size from which a journal is written anew with only what still matters.
const compactAt = 4 << 20

// openJournal reads what path holds. A torn last line is what a power cut leaves of a line that nobody acted upon.
func openJournal(path string) (*journal, map[string]*record, map[string]int64, error) {
	records, epochs := map[string]*record{}, map[string]int64{}
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil, err
	}
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, maxAnswer)
	n := 0
	var torn error
	for sc.Scan() {
		n++
		if torn != nil {
			return nil, nil, nil, torn
		}
		var l line
		l.record = &record{}
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			torn = fmt.Errorf("%s line %d is damaged: %w (hint: the tasks of this server can't be told from new ones; drain it, empty the folder, onboard it again)", path, n, err)
			continue
		}
		if l.Device != "" {
			epochs[l.Device] = max(epochs[l.Device], l.High)
			continue
		}
		if old := records[l.ID]; old != nil && l.Payload == nil && !l.Done {
			l.Payload = old.Payload
		}
		records[l.ID] = l.record
		for _, d := range l.Devices {
			epochs[d] = max(epochs[d], l.Epoch)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	j := &journal{path: path}
	return j, records, epochs, j.rewrite(records, epochs)
}

// rewrite replaces the file by what is given, whole or not at all.
func (j *journal) rewrite(records map[string]*record, epochs map[string]int64) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for d, e := range epochs {
		if err := enc.Encode(line{Device: d, High: e}); err != nil {
			return err
		}
	}
	for _, r := range records {
		if err := enc.Encode(line{record: r}); err != nil {
			return err
		}
	}
	if err := writeFile(j.path, b.Bytes(), true); err != nil {
		return err
	}
	f, err := os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if j.f != nil {
		_ = j.f.Close() // the old file, replaced
	}
	j.f, j.size = f, int64(b.Len())
	return nil
}

// add appends the records' present state; first says that their payload is written too. durable waits for the disk.
func (j *journal) add(first, durable bool, rs ...*record) error {
	j.buf.Reset()
	enc := json.NewEncoder(&j.buf)
	for _, r := range rs {
		c := *r
		if !first {
			c.Payload = nil
		}
		if err := enc.Encode(line{record: &c}); err != nil {
			return err
		}
	}
	n, err := j.f.Write(j.buf.Bytes())
	if err != nil {
		// Half a line must not stay: the next one would be joined to it.
		return fmt.Errorf("%s: %w", filepath.Base(j.path), errors.Join(err, j.f.Truncate(j.size)))
	}
	j.size += int64(n)
	if durable {
		return syscall.Fdatasync(int(j.f.Fd()))
	}
	return nil
}

func (j *journal) close() error { return j.f.Close() }

// report makes the report that s stands for. output is what the task's output file holds of [From, To).
func (r *record) report(s *sent, output string) agentproto.TaskReport {
	t := agentproto.TaskReport{Task: r.ID, Seq: s.Seq, State: s.State, Text: s.Text, Output: output, Devices: r.Devices, At: s.At}
	if s.Final && r.End != nil {
		t.ExitCode, t.Signal, t.Result, t.NoneLeft = r.End.ExitCode, r.End.Signal, r.End.Result, r.End.NoneLeft
	}
	return t
}
