package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// app is what all verbs share: the global flags, and where the command's words go.
type app struct {
	url     string
	profile string
	output  string
}

// Root is the client's command by itself, with all its verbs.
func Root() *cobra.Command {
	root := &cobra.Command{
		Use:   "gpupool",
		Short: "Run a pool of accelerators: servers in, jobs through, hardware out for repair and back",
	}
	root.AddCommand(Commands()...)
	return root
}

// Commands are the client's verbs, for a root that has verbs of other kinds beside them.
func Commands() []*cobra.Command {
	a := &app{}
	cmds := []*cobra.Command{
		a.login(), a.whoami(), a.overview(),
		a.server(), a.install(), a.bmc(), a.accelerator(), a.repair(), a.rma(), a.health(),
		a.run(), a.job(), a.array(), a.service(),
		a.build(), a.spec(), a.volume(), a.tenant(), a.project(), a.quota(), a.window(), a.queue(), a.token(), a.webhook(),
		a.usage(), a.report(), a.budget(), a.events(),
		genDocs(),
	}
	for _, c := range cmds {
		exemplify(c, c.Name())
		f := c.PersistentFlags()
		f.StringVar(&a.url, "url", "", "the pool's address (else GPUPOOL_URL, else the profile's)")
		f.StringVar(&a.profile, "profile", "", "which profile of the configuration file (else GPUPOOL_PROFILE, else the current one)")
		f.StringVarP(&a.output, "output", "o", "table", "table, or json for programs")
	}
	return cmds
}

// Execute runs root with ctx, says what went wrong on its standard error, and returns the exit code.
func Execute(ctx context.Context, root *cobra.Command) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	argumentErrors(root)
	var changed atomic.Bool
	cmd, err := root.ExecuteContextC(context.WithValue(ctx, changeKey{}, &changed))
	if err != nil && strings.HasPrefix(err.Error(), "unknown command") {
		err = usageError{err}
	}
	var ue usageError
	if errors.Is(err, context.Canceled) && !changed.Load() {
		fmt.Fprintln(root.ErrOrStderr(), "interrupted") // it has only looked
	} else if err != nil {
		printError(root.ErrOrStderr(), err)
		if errors.As(err, &ue) {
			fmt.Fprintf(root.ErrOrStderr(), "hint:  %s --help\n", cmd.CommandPath())
		}
	}
	return Exit(err)
}

// group is a command that holds others. Alone it does what list does.
func group(use, short string, list *cobra.Command, sub ...*cobra.Command) *cobra.Command {
	sub = append([]*cobra.Command{list}, sub...)
	c := &cobra.Command{Use: use, Short: short, Long: short + ".\nWithout a further word it does what " + list.Name() + " does.", RunE: func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			list.SetContext(cmd.Context())
			return list.RunE(list, nil)
		}
		msg := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
		if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
			msg += "; did you mean " + strings.Join(s, " or ") + "?"
		}
		return usageError{errors.New(msg)}
	}}
	c.SuggestionsMinimumDistance = 2
	c.AddCommand(sub...)
	return c
}

// argumentErrors makes every verb's refusal of its arguments a usage error, also of those that are not the client's.
func argumentErrors(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			var ue usageError
			if err != nil && !errors.As(err, &ue) {
				err = usageError{fmt.Errorf("%w; it is used as: %s", err, cmd.UseLine())}
			}
			return err
		}
	}
	for _, sub := range c.Commands() {
		argumentErrors(sub)
	}
}

// exactly n arguments, named in the message when they are not.
func exactly(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		if len(names) == 0 {
			return usageError{fmt.Errorf("takes no arguments, got %q", args)}
		}
		return usageError{fmt.Errorf("takes %s, got %d arguments", strings.Join(names, " and "), len(args))}
	}
}

// atLeast one argument of that name.
func atLeast(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageError{fmt.Errorf("takes at least one %s", name)}
		}
		return nil
	}
}

// json reports whether the answer is for a program.
func (a *app) json() bool { return a.output == "json" }

// terminal reports whether w is a person's screen, on which lines may be drawn again.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}
