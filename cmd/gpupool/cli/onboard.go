package cli

import (
	"cmp"
	"context"
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

func (a *app) serverOnboard() *cobra.Command {
	var all, detach bool
	var profile, rack, maxFailed string
	var atOnce int
	cmd := &cobra.Command{
		Use:   "onboard NAME... | onboard --all | onboard --rack SITE/RACK",
		Short: "Install, prove and register servers; watch them until they are available or stop",
		Long: `Start onboarding and watch its steps. Each server is identified through its BMC, inspected, installed over the network,
given drivers and a container runtime, burnt in, and registered. What is on its disks is lost.

The watch ends when every server is available (exit code 0) or has stopped with a failure (20). Leaving the watch with
Ctrl-C stops nothing: gpupool server watch comes back to it. With --at-once the next server begins when one is done, so
those that have not begun when the watch is left stay enrolled. Once more than --max-failed of all have stopped, no
further one begins.`,
		Example: `  gpupool server onboard r12s03
  gpupool server onboard --rack ams1/r12 --at-once 4 --max-failed 10%
  gpupool server onboard --all --detach`,
		RunE: func(cmd *cobra.Command, args []string) error {
			some := all || rack != ""
			if some == (len(args) > 0) || all && rack != "" {
				return usageError{fmt.Errorf("takes either NAMEs, or --all for all that are enrolled, or --rack for those of a rack")}
			}
			b, err := newBatch(atOnce, maxFailed)
			if err != nil {
				return usageError{err}
			}
			if b.inTurn() && (detach || a.json()) {
				return usageError{fmt.Errorf("--at-once and --max-failed need the watch: they go with neither --detach nor JSON")}
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			if some {
				enrolled, err := listServers(cmd.Context(), c, schema.PhaseEnrolled)
				if err != nil {
					return err
				}
				for _, s := range enrolled {
					if all || s.Site+"/"+s.Rack == rack {
						args = append(args, s.Name)
					}
				}
				if len(args) == 0 {
					return a.said(cmd, contract.ServerList{Items: []contract.Server{}}, "No server is enrolled and waits to be onboarded.")
				}
			}
			w, err := newWatch(cmd, c)
			if err != nil {
				return err
			}
			started := contract.ServerList{Items: []contract.Server{}}
			var refused error // the last one; each is said as it comes
			begin := func(name string) error {
				before, err := call.Do[contract.Server](c.GetServer(cmd.Context(), name, &contract.GetServerParams{}))
				if err == nil {
					var s contract.Server
					if s, err = call.Do[contract.Server](c.OnboardServer(cmd.Context(), name, contract.OnboardOptions{Profile: profile})); err == nil {
						started.Items = append(started.Items, s)
						w.follow(before, true, 0)
						return nil
					}
				}
				if len(args) == 1 || schema.Is(err, schema.CodeUnauthenticated) || schema.Is(err, schema.CodeForbidden) {
					return err
				}
				refused = err
				fmt.Fprintf(cmd.ErrOrStderr(), "%s is not onboarded:\n", name)
				printError(cmd.ErrOrStderr(), err)
				return nil
			}
			b.waiting, b.all = args, len(args)
			if b.inTurn() {
				w.batch, w.begin = b, begin
				return cmp.Or(w.run(), refused)
			}
			for _, name := range args {
				if err := begin(name); err != nil {
					return err
				}
			}
			switch {
			case a.json():
				err = printJSON(cmd.OutOrStdout(), started)
			case detach:
				fmt.Fprintf(cmd.OutOrStdout(), "Onboarding started for %s. Watch: gpupool server watch\n", words.Count(len(started.Items), "server"))
			default:
				err = w.run()
			}
			return cmp.Or(err, refused)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all servers that are enrolled")
	cmd.Flags().StringVar(&rack, "rack", "", "all servers of a rack that are enrolled, as SITE/RACK")
	cmd.Flags().IntVar(&atOnce, "at-once", 0, "onboard so many at a time; 0 = all")
	cmd.Flags().StringVar(&maxFailed, "max-failed", "", "begin no more once more than this share of all has stopped, as 10%; nothing = whatever happens")
	cmd.Flags().BoolVar(&detach, "detach", false, "start it and return at once")
	cmd.Flags().StringVar(&profile, "install-profile", "", "install profile, instead of the server's own")
	return cmd
}

func (a *app) serverWatch() *cobra.Command {
	return &cobra.Command{
		Use:   "watch [NAME...]",
		Short: "Watch onboardings until each is available or stops; without a NAME all that run",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			w, err := newWatch(cmd, c)
			if err != nil {
				return err
			}
			var servers []contract.Server
			for _, name := range args {
				s, err := call.Do[contract.Server](c.GetServer(cmd.Context(), name, &contract.GetServerParams{}))
				if err != nil {
					return err
				}
				servers = append(servers, s)
			}
			if len(args) == 0 {
				if servers, err = listServers(cmd.Context(), c, schema.PhaseOnboarding); err != nil {
					return err
				}
				if len(servers) == 0 {
					fmt.Fprintln(cmd.OutOrStdout(), "No server is being onboarded.")
					return nil
				}
			}
			for _, s := range servers {
				w.follow(s, false, 0)
			}
			return w.run()
		},
	}
}

func (a *app) serverReinstall() *cobra.Command {
	var detach bool
	var in contract.Reinstall
	cmd := &cobra.Command{
		Use: "reinstall NAME --reason TEXT", Short: "Install a server of the pool again, and watch; what is on its disks is lost", Args: exactly("NAME"),
		Long: `Install a server of the pool again. It must hold no job: drain it first. It leaves the pool at once and comes back once it has
passed its burn-in (exit code 0), or stops with a failure (20). What is on its disks is lost.`,
		Example: `  gpupool server drain r12s03 --reason "new image"
  gpupool server reinstall r12s03 --reason "new image"
  gpupool server uncordon r12s03`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			w, err := newWatch(cmd, c)
			if err != nil {
				return err
			}
			s, err := call.Do[contract.Server](c.ReinstallServer(cmd.Context(), args[0], in))
			if err != nil {
				return err
			}
			if detach || a.json() {
				return a.said(cmd, s, "%s is installed again. Watch: gpupool server watch %s", args[0], args[0])
			}
			w.follow(s, false, 0)
			if err := w.run(); err != nil {
				return err
			}
			return stillCordoned(cmd, c, s.Id)
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "return at once")
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why; kept in the audit (required)")
	cmd.Flags().StringVar(&in.Profile, "install-profile", "", "install profile, instead of the server's own")
	required(cmd, "reason")
	return cmd
}

func (a *app) serverRetry() *cobra.Command {
	var detach bool
	cmd := &cobra.Command{
		Use: "retry NAME", Short: "Try the stopped step again, and watch", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.resume(cmd, args[0], detach, true, "retries the step", func(ctx context.Context, c *client.Client) (contract.Server, error) {
				return call.Do[contract.Server](c.RetryStep(ctx, args[0]))
			})
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "return at once")
	return cmd
}

func (a *app) serverSkip() *cobra.Command {
	var detach bool
	var reason string
	cmd := &cobra.Command{
		Use: "skip NAME STEP --reason TEXT", Short: "Go on without the stopped step; kept in the audit", Args: exactly("NAME", "STEP"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.resume(cmd, args[0], detach, true, "goes on without "+args[1], func(ctx context.Context, c *client.Client) (contract.Server, error) {
				return call.Do[contract.Server](c.SkipStep(ctx, args[0], contract.SkipStep{Step: schema.Step(args[1]), Reason: reason}))
			})
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "return at once")
	cmd.Flags().StringVar(&reason, "reason", "", "why this is right; kept in the audit (required)")
	required(cmd, "reason")
	return cmd
}

func (a *app) serverAccept() *cobra.Command {
	var detach bool
	var reason string
	cmd := &cobra.Command{
		Use: "accept NAME --reason TEXT", Short: "Take a server as it is where it differs from its order, and watch", Args: exactly("NAME"),
		Long: `Take a server as it is where it differs from its order: the stopped step looks again and goes on if that is all. What was
accepted is remembered for the machine of this serial and shown with it (gpupool server show); any other difference stops it again.
Only a difference is accepted, never a fault: a device that fails its test or can't be read is repaired.`,
		Example: `  gpupool server accept r12s03 --reason "one DIMM is on order, case 4711"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.resume(cmd, args[0], detach, true, "is taken as it is", func(ctx context.Context, c *client.Client) (contract.Server, error) {
				// What stands now is what is accepted: a difference that shows up in between is not.
				l, err := call.Do[contract.DifferenceList](c.ListDifferences(ctx, args[0]))
				if err != nil {
					return contract.Server{}, err
				}
				in := contract.AcceptDifferences{Reason: reason}
				for _, d := range l.Items {
					if d.There && d.AcceptedAt == 0 {
						in.Differences = append(in.Differences, d.ID)
						fmt.Fprintf(cmd.ErrOrStderr(), "Accepting: %s\n", words.Printable(d.Words, true))
					}
				}
				return call.Do[contract.Server](c.AcceptDifferences(ctx, args[0], in))
			})
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "return at once")
	cmd.Flags().StringVar(&reason, "reason", "", "why this is right; kept in the audit (required)")
	required(cmd, "reason")
	return cmd
}

func (a *app) serverPause() *cobra.Command {
	var in contract.PauseOnboarding
	var before string
	cmd := &cobra.Command{
		Use: "pause NAME --reason TEXT", Short: "Stop an onboarding before a step, where nothing is half done", Args: exactly("NAME"),
		Long: `Stop an onboarding before a step: the next one, or the one that --before names. The step that runs is done first. It stands
there, whatever is restarted meanwhile, until gpupool server continue or abort.`,
		Example: `  gpupool server pause r12s03 --before burn-in --reason "waits for its InfiniBand cables"
  gpupool server continue r12s03`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			in.Before = schema.Step(before)
			s, err := call.Do[contract.Server](c.PauseOnboarding(cmd.Context(), args[0], in))
			if err != nil {
				return err
			}
			return a.said(cmd, s, "The onboarding of %s stops before %s. It goes on with: gpupool server continue %s", s.Name, words.PausedBefore(in.Before), s.Name)
		},
	}
	cmd.Flags().StringVar(&before, "before", "", "the step; nothing = the next")
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why; shown to everyone who looks (required)")
	required(cmd, "reason")
	return cmd
}

func (a *app) serverContinue() *cobra.Command {
	var detach bool
	cmd := &cobra.Command{
		Use: "continue NAME", Short: "Let a paused onboarding go on, and watch", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.resume(cmd, args[0], detach, false, "goes on", func(ctx context.Context, c *client.Client) (contract.Server, error) {
				return call.Do[contract.Server](c.ContinueOnboarding(ctx, args[0]))
			})
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "return at once")
	return cmd
}

func (a *app) serverRetire() *cobra.Command {
	var in contract.RetireOptions
	cmd := &cobra.Command{
		Use: "retire NAME --reason TEXT", Short: "Take a server out for good; every disk of it is made to forget", Args: exactly("NAME"),
		Long: `Take a server out for good. Its jobs end first, and until then gpupool server undrain takes it back. Then its BMC is proven to be
its own, its cluster lets it go, every disk of it is sanitised by the strongest command that the disk has and read back, and its
power is cut. Its row stays, with a certificate for each drive: gpupool server certificates. The repair of a server that waits for a
technician is given up.

A drive that may still hold data stops it: retry it, or skip the step with what became of the drive. The certificates say so.`,
		Example: `  gpupool server retire r12s03 --reason "lease is over"
  gpupool server show r12s03
  gpupool server certificates r12s03`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			s, err := call.Do[contract.Server](c.RetireServer(cmd.Context(), args[0], in))
			if err != nil {
				return err
			}
			return a.said(cmd, s, "%s is taken out for good once its jobs have ended. See how far it is: gpupool server show %s", s.Name, s.Name)
		},
	}
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why; kept in the audit (required)")
	cmd.Flags().BoolVar(&in.Overwrite, "overwrite", false, "let drives that have no command of their own be overwritten; otherwise they stop it")
	required(cmd, "reason")
	return cmd
}

func (a *app) serverCertificates() *cobra.Command {
	return &cobra.Command{
		Use: "certificates NAME", Short: "Show what became of a retired server's drives, each by its serial", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			r, err := call.Do[contract.RetirementReport](c.GetRetirement(cmd.Context(), args[0]))
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if a.json() {
				return printJSON(out, r)
			}
			if r.Retirement == nil {
				fmt.Fprintf(out, "%s was never asked to go.\n", args[0])
				return nil
			}
			f := fields{out}
			f.put("Retired", words.Retired(*r.Retirement, nowInstant()))
			for _, d := range r.Certificates {
				fmt.Fprintln(out)
				f.put("Drive", strings.TrimSpace(fmt.Sprintf("%s %s, %s", d.Model, d.Serial, words.Bytes(d.Bytes))))
				f.put("Outcome", strings.TrimSpace(fmt.Sprintf("%s %s", d.Outcome, d.Trouble)))
				f.put("Method", cmp.Or(d.Method, "none"))
				f.put("Verified", cmp.Or(d.Verified, "not read back"))
				if d.NotReached != "" {
					f.put("Not reached", d.NotReached)
				}
				f.put("Words", words.Printable(d.Words, true))
				f.put("When", d.Ended.String())
			}
			return nil
		},
	}
}

// resume acts on a stopped onboarding and goes back to watching it.
func (a *app) resume(cmd *cobra.Command, name string, detach, again bool, said string, act func(context.Context, *client.Client) (contract.Server, error)) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	w, err := newWatch(cmd, c)
	if err != nil {
		return err
	}
	steps, err := call.Do[contract.StepList](c.ListSteps(cmd.Context(), name, &contract.ListStepsParams{}))
	if err != nil {
		return err
	}
	s, err := act(cmd.Context(), c)
	if err != nil {
		return err
	}
	if detach || a.json() {
		return a.said(cmd, s, "%s %s.", name, said)
	}
	var known schema.Instant // of the failure that the act leaves behind
	if again {
		known = lastFailure(steps.Items)
	}
	w.follow(s, false, known)
	return w.run()
}

func (a *app) serverAbort() *cobra.Command {
	return &cobra.Command{
		Use: "abort NAME", Short: "Stop an onboarding and undo what it did", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			s, err := call.Do[contract.Server](c.AbortOnboarding(cmd.Context(), args[0]))
			if err != nil {
				return err
			}
			return a.said(cmd, s, "The onboarding of %s is being undone; it is then enrolled again.", s.Name)
		},
	}
}

func listServers(ctx context.Context, c *client.Client, phase schema.Phase) ([]contract.Server, error) {
	return pages(0, func(after string, n int) ([]contract.Server, string, error) {
		l, err := call.Do[contract.ServerList](c.ListServers(ctx, &contract.ListServersParams{Phase: opt(phase), After: opt(after), Limit: &n}))
		return l.Items, l.Next, err
	})
}

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

var marks = map[schema.StepState]string{schema.StepRunning: ">", schema.StepDone: "+", schema.StepFailed: "x", schema.StepSkipped: "~", schema.StepUndone: "<"}

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

func (a *app) serverDrain() *cobra.Command {
	var detach bool
	var in contract.Why
	cmd := &cobra.Command{
		Use:   "drain NAME --reason TEXT",
		Short: "Take no new jobs, and wait until the running ones have ended",
		Args:  exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			w, err := newWatch(cmd, c)
			if err != nil {
				return err
			}
			s, err := call.Do[contract.Server](c.DrainServer(cmd.Context(), args[0], in))
			if err != nil {
				return err
			}
			if detach || a.json() {
				return a.said(cmd, s, "%s is %s.", s.Name, s.Phase)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is draining; waiting for its jobs to end.\n", s.Name)
			return w.drained(s)
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "return at once")
	cmd.Flags().StringVar(&in.Reason, "reason", "", "why; shown to everyone who looks (required)")
	required(cmd, "reason")
	return cmd
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
