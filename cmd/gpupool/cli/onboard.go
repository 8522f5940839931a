package cli

import (
	"cmp"
	"context"
	"fmt"

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

var marks = map[schema.StepState]string{schema.StepRunning: ">", schema.StepDone: "+", schema.StepFailed: "x", schema.StepSkipped: "~", schema.StepUndone: "<"}
