package health

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// session is one server of a record that can be closed at any moment, as a controller's death closes it, and its agent.
type session struct {
	t      *testing.T
	clock  *clock
	path   string // of the record's file
	db     *store.Store
	server string
	boot   int
	told   []agentproto.Evidence // all that the agent has told, by its own ids
	gone   string                // serial that is no longer in its slot
	fresh  string                // serial that is there instead
	proofs int
	cure   schema.Cure // the last reset
}

// template is a record with one server in the pool, made once: each run begins with a copy.
func template(t *testing.T) (path string, server string, now int64) {
	t.Helper()
	c := newClock()
	path = filepath.Join(t.TempDir(), "template.db")
	s, err := store.Open(t.Context(), store.Config{Driver: "sqlite", DSN: path, Clock: c.now})
	ok(t, err)
	v := storetest.Available(t, s, 1, model, 8)
	ok(t, s.Close())
	return path, v.ID, c.ms.Load()
}

func begin(t *testing.T, template, server string, now int64) *session {
	t.Helper()
	b, err := os.ReadFile(template)
	ok(t, err)
	s := &session{t: t, clock: &clock{}, path: filepath.Join(t.TempDir(), "gpupool.db"), server: server, boot: 1}
	s.clock.ms.Store(now)
	ok(t, os.WriteFile(s.path, b, 0o600))
	s.open()
	return s
}

func (s *session) open() {
	s.t.Helper()
	var err error
	s.db, err = store.Open(s.t.Context(), store.Config{Driver: "sqlite", DSN: s.path, Clock: s.clock.now})
	ok(s.t, err)
}

// die closes the record and opens it again. What was told to the controller is told again, from the beginning: its cursor
// may be as far behind as it likes.
func (s *session) die() {
	s.t.Helper()
	ok(s.t, s.db.Close())
	s.open()
	s.beat(s.told...)
	s.judge()
}

func (s *session) judge() {
	s.t.Helper()
	faults, err := s.db.Faults(s.t.Context(), s.server)
	ok(s.t, err)
	slices.Reverse(faults) // the oldest first, as they are delivered
	for _, f := range faults {
		ok(s.t, Judge(s.t.Context(), s.db, f.ID))
	}
}

// devices are what the agent reads: eight, by slot.
func (s *session) devices() []agentproto.Device {
	v, err := s.db.Server(s.t.Context(), s.server)
	ok(s.t, err)
	list := storetest.Devices(v.Name, model, 8)
	for i := range list {
		if list[i].Serial == s.gone {
			list[i].Serial, list[i].UUID = s.fresh, s.fresh
		}
	}
	return slices.DeleteFunc(list, func(d agentproto.Device) bool { return d.Serial == "" })
}

func (s *session) beat(e ...agentproto.Evidence) {
	s.t.Helper()
	_, err := s.db.Heartbeat(s.t.Context(), s.server, agentproto.Heartbeat{Apart: true, BootID: fmt.Sprint("b", s.boot), Devices: s.devices(), Evidence: e})
	ok(s.t, err)
}

// tell is evidence: KIND CODE SLOT [severity], or that it is over.
func (s *session) tell(args []string, clear bool) {
	s.t.Helper()
	e := agentproto.Evidence{Kind: args[0], Code: args[1], Severity: schema.SeverityWarning, Text: strings.Join(args, " "), At: s.db.Now(), Clear: clear, ID: fmt.Sprint("b/", len(s.told))}
	if len(args) > 2 && args[2] != "-" {
		n, err := strconv.Atoi(strings.TrimPrefix(args[2], "#"))
		ok(s.t, err)
		e.Device = s.devices()[n].Serial
	}
	if len(args) > 3 {
		e.Severity = schema.Severity(args[3])
	}
	s.told = append(s.told, e)
	s.beat(e)
	s.judge()
}

func (s *session) repair() (schema.Repair, bool) {
	s.t.Helper()
	all, err := s.db.Repairs(s.t.Context(), store.RepairFilter{Server: s.server})
	ok(s.t, err)
	if len(all) == 0 {
		return schema.Repair{}, false
	}
	return all[0], true
}

// do carries out one line, and says why it was refused. again is the same once more, by a controller that died before it
// could note that it was done.
func (s *session) do(line string, again bool) error {
	ctx, a := s.t.Context(), &Activities{Store: s.db}
	f := strings.Fields(line)
	r, _ := s.repair()
	switch f[0] {
	case "fault", "clear":
		if !again { // what was told is told again by die
			s.tell(f[1:], f[0] == "clear")
		}
		return nil
	case "passes":
		d, err := time.ParseDuration(f[1])
		ok(s.t, err)
		if !again {
			s.clock.pass(d)
			s.beat()
		}
		return nil
	case "idle":
		_, err := a.RepairIdle(ctx, r.ID, false)
		return err
	case "drained":
		_, err := a.RepairDrained(ctx, r.ID)
		return err
	case "reset", "reset-fails":
		if !again {
			next, err := a.NextReset(ctx, r.ID, "")
			if s.cure = next.Cure; err != nil {
				return err
			}
		}
		if s.cure == schema.CureBurnIn || s.cure == schema.CureTechnician {
			return nil
		}
		return a.ResetTried(ctx, r.ID, s.cure, f[0] == "reset", "tried")
	case "proof-fails":
		if again {
			return nil // its process waits for the technician by now, and asks nothing more
		}
		_, err := a.RepairUnproven(ctx, r.ID, "burn-in failed", false)
		return err
	case "proof":
		return s.prove(r, again)
	case "claim":
		_, err := s.db.RepairClaim(ctx, r.ID, "tech", false)
		return err
	case "done":
		in := DoneInput{Repair: r.ID, By: "tech"}
		for _, x := range f[1:] {
			name, value, _ := strings.Cut(x, "=")
			switch name {
			case "old":
				in.OldSerial = value
			case "new":
				in.NewSerial = value
			}
		}
		return a.RepairDone(ctx, in)
	case "swap": // SLOT SERIAL: the part in it is another one now
		n, err := strconv.Atoi(strings.TrimPrefix(f[1], "#"))
		ok(s.t, err)
		if !again {
			s.gone, s.fresh = s.devices()[n].Serial, f[2]
			s.boot++
			s.beat()
		}
		return nil
	case "could-not-fix":
		if again && r.Owner == schema.OwnerOperators {
			return nil
		}
		return a.RepairCouldNotFix(ctx, DoneInput{Repair: r.ID, Note: "no spare", By: "tech"})
	}
	s.t.Fatalf("no such line: %s", line)
	return nil
}

// prove has the agent test all its devices, and the store decide.
func (s *session) prove(r schema.Repair, again bool) error {
	ctx := s.t.Context()
	if !again {
		s.proofs++
	}
	id := fmt.Sprintf("server/%s/repair/%s/burn-in/%d", s.server, r.ID, s.proofs)
	if !again {
		s.beat()
		proof := agentproto.BurnInResult{Outcome: "passed", Tests: []string{"memory"}}
		for _, d := range s.devices() {
			proof.Devices = append(proof.Devices, d.Serial)
		}
		result, err := json.Marshal(proof)
		ok(s.t, err)
		s.clock.pass(time.Second)
		ok(s.t, s.db.QueueTask(ctx, schema.Task{ID: id, Server: s.server, Kind: schema.TaskBurnIn, Payload: "{}"}))
		_, err = s.db.ClaimTasks(ctx, s.server)
		ok(s.t, err)
		_, err = s.db.Report(ctx, s.server, agentproto.Report{Tasks: []agentproto.TaskReport{{Task: id, Seq: 1, State: schema.TaskDone, Result: result, NoneLeft: true, At: s.db.Now()}}})
		ok(s.t, err)
	}
	out, err := (&Activities{Store: s.db}).RepairReturn(ctx, r.ID, id)
	if err == nil && out.Failure != nil {
		err = fmt.Errorf("%s", out.Failure.Text)
	}
	return err
}

// state is all that must not depend on who died: the server, its cordons, its repair, and how many repairs there are.
func (s *session) state() string {
	s.t.Helper()
	v, err := s.db.Server(s.t.Context(), s.server)
	ok(s.t, err)
	cordons, err := s.db.Cordons(s.t.Context(), s.server)
	ok(s.t, err)
	accs, err := s.db.Accelerators(s.t.Context(), store.AcceleratorFilter{Server: s.server})
	ok(s.t, err)
	off := []string{}
	for _, c := range cordons {
		name := "server"
		for _, a := range accs {
			if a.ID == c.Accelerator {
				name = a.Slot
			}
		}
		off = append(off, name)
	}
	slices.Sort(off)
	all, err := s.db.Repairs(s.t.Context(), store.RepairFilter{Server: s.server})
	ok(s.t, err)
	out := fmt.Sprintf("%s cordoned=%v repairs=%d", v.Phase, off, len(all))
	if len(all) == 0 {
		return out
	}
	r := all[0]
	out += fmt.Sprintf(" last: %s action=%s cure=%s tried=%s owner=%s returns=%d", r.State, r.Action, r.Cure, r.Tried, r.Owner, r.Returns)
	if r.NewSerial != "" {
		out += " new=" + r.NewSerial
	}
	// At all times exactly one owns an open repair, and knows what comes next and until when.
	if open := r.ClosedAt == 0; open != (r.Owner != "") || open != (r.NextStep != "") || open != (r.Deadline != 0) {
		s.t.Errorf("%s is %s with owner %q, next step %q, deadline %s", r.ID, r.State, r.Owner, r.NextStep, r.Deadline)
	}
	return out
}

// TestSessions goes through each session of testdata/sessions, and through it again for each of its lines with the controller
// killed behind that line: the record is closed and opened, all that was told is told and judged again, and the line is carried
// out once more, as by one that died before it could note that it was done. Nothing comes out differently.
func TestSessions(t *testing.T) {
	t.Parallel()
	path, server, now := template(t)
	runs := 0
	datadriven.Walk(t, "testdata/sessions", func(t *testing.T, file string) {
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			lines := strings.Split(strings.TrimSpace(d.Input), "\n")
			through := func(killed int) string {
				runs++
				s := begin(t, path, server, now)
				defer func() { ok(t, s.db.Close()) }()
				var b strings.Builder
				for i, line := range lines {
					err := s.do(line, false)
					if i == killed {
						s.die()
						_ = s.do(line, true) // refused or not: it must change nothing
					}
					fmt.Fprintf(&b, "%s\n  %s\n", line, s.state())
					if err != nil {
						fmt.Fprintf(&b, "  refused: %s\n", strings.Split(plain(err), " (hint")[0])
					}
				}
				return b.String()
			}
			want := through(-1)
			for i := range lines {
				if got := through(i); got != want {
					t.Fatalf("%s: with the controller killed after line %d, %q:\n%s\nwithout:\n%s", d.Pos, i+1, lines[i], got, want)
				}
			}
			return want
		})
	})
	if runs < 60 {
		t.Fatalf("%d runs", runs)
	}
}

// plain is an error without the ids that differ from run to run.
func plain(err error) string {
	f := strings.Fields(err.Error())
	for i, w := range f {
		if strings.HasPrefix(w, "rep_") || strings.HasPrefix(w, "server/") {
			f[i] = "X"
		}
	}
	return strings.Join(f, " ")
}
