package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

// watch follows onboardings until each has arrived or stopped. Events only wake it: what it shows is read anew.
type watch struct {
	cmd      *cobra.Command
	c        *client.Client
	screen   *screen
	cursor   int64
	followed []*followed

	batch *batch             // servers that have not begun; nil = all have
	begin func(string) error // begins one of them and follows it
}

type followed struct {
	id, name string
	starting bool           // asked to start, and not yet seen onboarding
	attempt  int            // its number before the start
	stale    schema.Instant // end of the failure that was answered with retry or skip
	server   contract.Server
	steps    []schema.StepRun
	over     bool
}

// newWatch notes where the events stand now, so that nothing between the verb and the watch is missed.
func newWatch(cmd *cobra.Command, c *client.Client) (*watch, error) {
	head, err := call.Do[contract.EventList](c.ListEvents(cmd.Context(), &contract.ListEventsParams{Tail: opt(true)}))
	return &watch{cmd: cmd, c: c, screen: newScreen(cmd.OutOrStdout()), cursor: head.Next}, err
}

func (w *watch) follow(s contract.Server, starting bool, stale schema.Instant) {
	w.followed = append(w.followed, &followed{id: s.Id, name: s.Name, starting: starting, attempt: s.Attempt, stale: stale})
}

func (w *watch) run() error {
	for {
		for _, f := range w.followed {
			if !f.over {
				if err := w.read(f); err != nil {
					return err
				}
			}
		}
		if err := w.more(); err != nil {
			return err
		}
		w.draw()
		if !slices.ContainsFunc(w.followed, func(f *followed) bool { return !f.over }) {
			return w.end()
		}
		if err := w.wait(); err != nil {
			return err
		}
	}
}

func (w *watch) read(f *followed) error {
	s, err := again(w.cmd, func() (contract.Server, error) {
		return call.Do[contract.Server](w.c.GetServer(w.cmd.Context(), f.id, &contract.GetServerParams{}))
	})
	if err != nil {
		return err
	}
	steps, err := again(w.cmd, func() (contract.StepList, error) {
		return call.Do[contract.StepList](w.c.ListSteps(w.cmd.Context(), f.id, &contract.ListStepsParams{}))
	})
	if err != nil {
		return err
	}
	f.server, f.steps = s, steps.Items
	if f.starting && s.Attempt == f.attempt && s.Phase != schema.PhaseOnboarding {
		f.steps = nil // those of the attempt before
		return nil
	}
	f.starting = false
	// The server may be read before the verb took hold and the steps after: only a later failure than the answered one counts.
	stopped := s.Failure != nil && (f.stale.IsZero() || lastFailure(f.steps) > f.stale)
	held := s.Pause != nil && s.Pause.HeldAt != 0
	f.over = stopped || held || s.Phase != schema.PhaseOnboarding && s.Phase != schema.PhaseRetiring
	return nil
}

// more begins those servers of the batch whose turn it is.
func (w *watch) more() error {
	if w.batch == nil {
		return nil
	}
	for { // one that was refused leaves its turn to the next
		running, stopped := 0, 0
		for _, f := range w.followed {
			if !f.over {
				running++
			} else if f.server.Phase != schema.PhaseAvailable {
				stopped++
			}
		}
		turn := w.batch.next(running, stopped)
		if len(turn) == 0 {
			return nil
		}
		for _, name := range turn {
			if err := w.begin(name); err != nil {
				return err
			}
		}
	}
}

// lastFailure is when the newest failed step ended; 0 where none has.
func lastFailure(steps []schema.StepRun) (at schema.Instant) {
	for _, s := range steps {
		if s.State == schema.StepFailed {
			at = max(at, s.Ended)
		}
	}
	return at
}

// wait returns when something happened to a server, or after a second, so that the ticking durations move.
func (w *watch) wait() error {
	patience := longPoll
	if w.screen.live {
		patience = time.Second
	}
	_, err := again(w.cmd, func() (contract.EventList, error) {
		l, err := call.Do[contract.EventList](w.c.ListEvents(w.cmd.Context(), &contract.ListEventsParams{
			After: &w.cursor, Wait: opt(patience.String()), Limit: opt(1000),
			Kind: &[]string{string(schema.EventServerStep), string(schema.EventServerPhase), string(schema.EventServerFailure), string(schema.EventServerPause)},
		}))
		if err == nil {
			w.cursor = l.Next
		}
		return l, err
	})
	if err != nil {
		return err
	}
	// A storm of events is read a few times a second, not once for each.
	select {
	case <-time.After(200 * time.Millisecond):
		return nil
	case <-w.cmd.Context().Done():
		return w.cmd.Context().Err()
	}
}

func (w *watch) draw() {
	now := nowInstant()
	var lines []line
	single := len(w.followed) == 1
	for _, f := range w.followed {
		switch {
		case f.starting:
			lines = append(lines, line{stable: f.name + "  starting"})
		case single:
			lines = append(lines, line{stable: fmt.Sprintf("%s  %s, attempt %d", f.name, f.server.Phase, f.server.Attempt)})
			lines = append(lines, stepLines(f.steps, now)...)
		default:
			lines = append(lines, serverLine(f, now))
		}
	}
	w.screen.show(lines)
}

// end says how it came out: 0 where every server is in the pool, ExitStopped where one waits for a person.
func (w *watch) end() error {
	out := w.cmd.OutOrStdout()
	arrived, stopped, gone := 0, 0, 0
	for _, f := range w.followed {
		s := f.server
		switch {
		case s.Phase == schema.PhaseAvailable:
			arrived++
		case s.Failure != nil:
			stopped++
			fmt.Fprintf(out, "\n%s stopped %s%s (%s)\n", s.Name, stoppedAt(s), words.Printable(s.Failure.Text, true), s.Failure.Code)
			for _, verb := range strings.Split(remedy(s), "\n") {
				fmt.Fprintln(out, "  "+verb)
			}
		case s.Phase == schema.PhaseRetired:
			fmt.Fprintf(out, "\n%s is retired. Its drives: gpupool server certificates %s\n", s.Name, s.Name)
			gone++
		case s.Pause != nil:
			stopped++
			fmt.Fprintf(out, "\n%s %s\n  gpupool server continue %s\n  gpupool server abort %s\n", s.Name, words.Paused(*s.Pause, nowInstant()), s.Name, s.Name)
		default:
			stopped++
			fmt.Fprintf(out, "\n%s is %s: %s\n", s.Name, s.Phase, words.Phase(s.Phase))
		}
	}
	if gone < len(w.followed) {
		fmt.Fprintf(out, "\n%d of %s available.\n", arrived, words.Count(len(w.followed), "server"))
	}
	if w.batch != nil && len(w.batch.waiting) > 0 {
		fmt.Fprintf(out, "%s not begun: more than %d%% of %d have stopped. Not begun: %s\n", words.Count(len(w.batch.waiting), "server"), w.batch.percent, w.batch.all, strings.Join(w.batch.waiting, " "))
	}
	if stopped > 0 {
		return &exitError{code: ExitStopped}
	}
	return nil
}

// stepLines are the steps in their order; those not yet begun are left out.
func stepLines(steps []schema.StepRun, now schema.Instant) []line {
	var out []line
	order := schema.Steps
	if slices.ContainsFunc(steps, func(s schema.StepRun) bool { return slices.Contains(schema.RetireSteps[1:], s.Step) }) {
		order = schema.RetireSteps
	}
	for _, name := range order {
		i := slices.IndexFunc(steps, func(s schema.StepRun) bool { return s.Step == name })
		if i < 0 {
			continue
		}
		s := steps[i]
		try := ""
		if s.Try > 1 {
			try = fmt.Sprintf(" (try %d)", s.Try)
		}
		l := line{stable: strings.TrimRight(fmt.Sprintf("  %s %-10s  %-7s  %s%s", marks[s.State], s.Step, s.State, words.Printable(words.Detail(s), false), try), " ")}
		l.ticks = words.Between(s.Started, s.Ended, now)
		out = append(out, l)
	}
	return out
}

func serverLine(f *followed, now schema.Instant) line {
	s := f.server
	switch {
	case s.Phase != schema.PhaseOnboarding:
		return line{stable: fmt.Sprintf("%-16s %s", s.Name, s.Phase)}
	case s.Failure != nil && f.over:
		return line{stable: fmt.Sprintf("%-16s stopped %s%s", s.Name, stoppedAt(s), words.Printable(s.Failure.Text, false))}
	}
	l := line{stable: fmt.Sprintf("%-16s %d/%d %s", s.Name, slices.Index(schema.Steps, s.Step)+1, len(schema.Steps), s.Step)}
	for _, st := range f.steps {
		if st.Step == s.Step {
			if st.Detail != "" {
				l.stable += ": " + words.Printable(words.Detail(st), false)
			}
			l.ticks = words.Between(st.Started, st.Ended, now)
		}
	}
	return l
}

// drained waits for the event that no job is left on the server, or for its draining to be called off.
func (w *watch) drained(s contract.Server) error {
	for {
		l, err := again(w.cmd, func() (contract.EventList, error) {
			return call.Do[contract.EventList](w.c.ListEvents(w.cmd.Context(), &contract.ListEventsParams{
				After: &w.cursor, Wait: opt(longPoll.String()), Server: &s.Id,
				Kind: &[]string{string(schema.EventServerDrained), string(schema.EventServerPhase)},
			}))
		})
		if err != nil {
			return err
		}
		w.cursor = l.Next
		for _, e := range l.Items {
			var d struct{ To schema.Phase }
			switch _ = json.Unmarshal(e.Data, &d); {
			case e.Kind == schema.EventServerDrained:
				fmt.Fprintf(w.cmd.OutOrStdout(), "%s is drained: no job is left on it.\n", s.Name)
				return nil
			case d.To != "" && d.To != schema.PhaseDraining:
				fmt.Fprintf(w.cmd.OutOrStdout(), "%s is %s.\n", s.Name, d.To)
				return &exitError{code: ExitStopped}
			}
		}
	}
}
