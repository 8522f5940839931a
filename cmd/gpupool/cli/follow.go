package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

// followJob shows a job's changes until enough, and returns it as it then is.
func (a *app) followJob(cmd *cobra.Command, c *client.Client, j contract.Job, enough func(contract.Job) bool) (contract.Job, error) {
	var last string
	return follow(cmd, c, j, cmd.OutOrStdout(), &last, enough)
}

// follow long-polls a job and writes a line for each change of state or reason; last is the line written before.
func follow(cmd *cobra.Command, c *client.Client, j contract.Job, w io.Writer, last *string, enough func(contract.Job) bool) (contract.Job, error) {
	for {
		readable(cmd, c, j)
		now := nowInstant()
		if l := jobLine(j, now); w != nil && l != *last {
			*last = l
			fmt.Fprintln(w, now.Time().Format("15:04:05Z")+"  "+words.Printable(l, false))
		}
		if enough(j) {
			return j, nil
		}
		next, err := nextVersion(cmd, c, j)
		if err != nil {
			return j, err
		}
		j = next
	}
}

// nextVersion is the job once it has changed, or as it is after one long poll.
func nextVersion(cmd *cobra.Command, c *client.Client, j contract.Job) (contract.Job, error) {
	return again(cmd, func() (contract.Job, error) {
		return call.Do[contract.Job](c.GetJob(cmd.Context(), j.Id, &contract.GetJobParams{Since: &j.Version, Wait: opt(longPoll.String())}))
	})
}

// jobLine is a job's state in one line, without anything that ticks.
func jobLine(j contract.Job, now schema.Instant) string {
	switch {
	case j.State.Ended():
		l := string(j.State)
		if j.Cause != "" {
			l += ": " + j.Cause
		}
		if j.ExitCode != nil {
			l += fmt.Sprintf(" (exit code %d)", *j.ExitCode)
		}
		return l
	case j.Reason != nil:
		why := words.Reason(*j.Reason, now)
		l := string(j.State) + ": " + why.Headline + " [" + string(why.Code) + "]"
		if why.Position != "" && why.Code != schema.ReasonDispatching {
			l += "; " + why.Position
		}
		return l
	case j.Attempt > 1:
		return fmt.Sprintf("%s, attempt %d", j.State, j.Attempt)
	}
	return string(j.State)
}

// ended is nil for a completed job, else an error whose exit code says how it ended; the text was shown already.
func ended(j contract.Job) error {
	if j.State == schema.JobCompleted {
		return nil
	}
	return &exitError{code: jobExit(j.State)}
}

func (a *app) jobWatch() *cobra.Command {
	return &cobra.Command{
		Use: "watch ID", Short: "Show a job's changes until it ends; the exit code tells how", Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			j, err := call.Do[contract.Job](c.GetJob(cmd.Context(), args[0], &contract.GetJobParams{}))
			if err != nil {
				return err
			}
			if j, err = a.followJob(cmd, c, j, func(j contract.Job) bool { return j.State.Ended() }); err != nil {
				return err
			}
			return ended(j)
		},
	}
}

func (a *app) jobWait() *cobra.Command {
	var timeout duration
	cmd := &cobra.Command{
		Use:   "wait ID...",
		Short: "Wait silently until jobs have ended; the exit code is that of the first that did not complete",
		Args:  atLeast("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			outer := cmd.Context()
			if timeout.ms > 0 {
				ctx, cancel := context.WithTimeout(outer, time.Duration(timeout.ms)*time.Millisecond)
				defer cancel()
				cmd.SetContext(ctx)
			}
			var first error
			done := []contract.Job{}
			for _, id := range args {
				j, err := call.Do[contract.Job](c.GetJob(cmd.Context(), id, &contract.GetJobParams{}))
				if err == nil {
					j, err = follow(cmd, c, j, nil, nil, func(j contract.Job) bool { return j.State.Ended() })
				}
				if err != nil {
					if outer.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
						return &exitError{ExitWaitOver, fmt.Sprintf("%s has not ended within %s", id, &timeout)}
					}
					return err
				}
				if e := ended(j); e != nil && first == nil {
					first = e
				}
				done = append(done, j)
				if !a.json() {
					fmt.Fprintln(cmd.OutOrStdout(), j.Id+"  "+words.Printable(jobLine(j, nowInstant()), false))
				}
			}
			if a.json() {
				if err := printJSON(cmd.OutOrStdout(), contract.JobList{Items: done}); err != nil {
					return err
				}
			}
			return first
		},
	}
	cmd.Flags().Var(&timeout, "timeout", "give up waiting after this time, with exit code 21")
	return cmd
}

func (a *app) jobLogs() *cobra.Command {
	var at, rank int
	var goOn bool
	cmd := &cobra.Command{
		Use: "logs ID", Short: "Print a job's output", Args: exactly("ID"),
		Long: `Print a job's output, as it is. On a terminal colours and progress bars show; other controls, which could steer the
terminal, show as "?".`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			return logs(cmd, c, args[0], at, rank, goOn, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&goOn, "follow", "f", false, "go on as output comes, until the attempt ends")
	f.IntVar(&at, "attempt", 0, "which attempt; 0 = the latest")
	f.IntVar(&rank, "rank", 0, "which node of the gang, from 0")
	return cmd
}

// logs copies output to w as it is, or tamed where that is a terminal. A stream that breaks is asked for again and what
// was written already is passed over: output is only ever added to.
func logs(cmd *cobra.Command, c *client.Client, job string, attempt, rank int, goOn bool, w io.Writer) error {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) { // one that is called dumb, too
		w = &tame{w: w}
	}
	var written int64
	_, err := again(cmd, func() (struct{}, error) {
		resp, err := c.GetLogs(cmd.Context(), job, &contract.GetLogsParams{Attempt: opt(attempt), Rank: opt(rank), Follow: opt(goOn)}, accept("text/plain"))
		if err := call.Check(resp, err); err != nil {
			return struct{}{}, err
		}
		defer resp.Body.Close()
		if _, err = io.CopyN(io.Discard, resp.Body, written); err == nil {
			var n int64
			n, err = io.Copy(w, resp.Body)
			written += n
		}
		if err == nil || cmd.Context().Err() != nil {
			return struct{}{}, cmd.Context().Err()
		}
		return struct{}{}, &schema.Error{Code: schema.CodeUnavailable, Message: "the output broke off", Err: err}
	})
	return err
}

func (a *app) run() *cobra.Command {
	var r request
	var rank int
	cmd := &cobra.Command{
		Use:   "run --spec SPEC [flags] -- COMMAND [ARG...] | run [flags] SCRIPT [ARG...]",
		Short: "Run a command in the pool as if it ran here: submit, wait, show its output, exit with its code",
		Long: `Run a command in the pool as if it ran here. While it waits, standard error says why. Its output (of one node of a gang,
see --rank) goes to standard output. The exit code is the command's own; where it has none (cancelled, timed out,
expired, lost) it is that of the table in the reference. Ctrl-C cancels the job.`,
		Example: `  gpupool run --spec h100x1 -- nvidia-smi -L`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			if isScript(cmd, args) {
				if args, err = script(cmd, args); err != nil {
					return err
				}
			}
			j, err := r.submit(cmd, c, args)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.ErrOrStderr(), j.Id)
			if j, err = stream(cmd, c, j, rank); err != nil {
				if cmd.Context().Err() != nil {
					cancelRun(cmd, c, j.Id)
				}
				return err
			}
			if (j.State == schema.JobCompleted || j.State == schema.JobFailed) && j.ExitCode != nil {
				return exitAs(*j.ExitCode)
			}
			return ended(j)
		},
	}
	r.flags(cmd)
	cmd.Flags().IntVar(&rank, "rank", 0, "which node's output to show, from 0")
	return cmd
}

// stream shows a job's wait on standard error and the output of each of its attempts on standard output, until its end.
func stream(cmd *cobra.Command, c *client.Client, j contract.Job, rank int) (contract.Job, error) {
	shown := 0 // attempts whose output was shown
	last := ""
	for {
		id := j.Id
		next, err := follow(cmd, c, j, cmd.ErrOrStderr(), &last, func(j contract.Job) bool {
			return j.State.Ended() || j.Attempt > shown && j.State != schema.JobQueued && j.State != schema.JobStarting
		})
		if err != nil {
			return contract.Job{Id: id}, err
		}
		j = next
		if j.Attempt > shown {
			shown = j.Attempt
			if err := logs(cmd, c, id, shown, rank, true, cmd.OutOrStdout()); err != nil && !schema.Is(err, schema.CodeNotFound) {
				return j, err
			}
		}
		if j.State.Ended() {
			return j, nil
		}
		if j, err = again(cmd, func() (contract.Job, error) {
			return call.Do[contract.Job](c.GetJob(cmd.Context(), id, &contract.GetJobParams{}))
		}); err != nil {
			return contract.Job{Id: id}, err
		}
	}
}

// cancelRun cancels the job of an interrupted run. The command's own context is over by then.
func cancelRun(cmd *cobra.Command, c *client.Client, id string) {
	ctx, stop := context.WithTimeout(context.WithoutCancel(cmd.Context()), 10*time.Second)
	defer stop()
	if _, err := call.Do[contract.Job](c.CancelJob(ctx, id)); err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s could not be cancelled: %v\ncancel it with: gpupool job cancel %s\n", id, err, id)
		return
	}
	fmt.Fprintln(cmd.ErrOrStderr(), id+" is cancelled.")
}

// exitAs ends with a command's own exit code; one outside 1..255 can't be passed on and becomes ExitJobFailed.
func exitAs(code int) error {
	switch {
	case code == 0:
		return nil
	case code < 0 || code > 255:
		return &exitError{ExitJobFailed, fmt.Sprintf("the command ended with code %d", code)}
	}
	return &exitError{code: code}
}

func (a *app) events() *cobra.Command {
	var p contract.ListEventsParams
	var goOn bool
	var server, job, tenant string
	var kinds []string
	var after int64
	var limit int
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what happened, and with -f what happens",
		Args:  exactly(),
		Example: `  gpupool events -f --server r12s03
  gpupool events --kind fault.reported,repair.state -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			p.Server, p.Job, p.Tenant = opt(server), opt(job), opt(tenant)
			if len(kinds) > 0 {
				p.Kind = &kinds
			}
			p.After, p.Limit = &after, opt(500)
			if goOn && !cmd.Flags().Changed("after") {
				p.Tail = opt(true)
			}
			shown := 0
			for {
				l, err := again(cmd, func() (contract.EventList, error) {
					return call.Do[contract.EventList](c.ListEvents(cmd.Context(), &p))
				})
				if err != nil {
					return err
				}
				for _, e := range l.Items {
					if err := a.event(cmd.OutOrStdout(), e); err != nil {
						return err
					}
					if shown++; limit > 0 && shown == limit {
						return nil
					}
				}
				more := l.Next > after && len(l.Items) > 0
				after, p.Tail = l.Next, nil
				if goOn {
					p.Wait = opt(longPoll.String())
				} else if !more {
					return nil
				}
			}
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&goOn, "follow", "f", false, "go on as they come; without --after only what comes from now on")
	f.StringVar(&server, "server", "", "only of this server")
	f.StringVar(&job, "job", "", "only of this job")
	f.StringVar(&tenant, "tenant", "", "only of this tenant")
	f.StringSliceVar(&kinds, "kind", nil, "only these kinds, such as server.phase")
	f.Int64Var(&after, "after", 0, "only after this number")
	f.IntVar(&limit, "limit", 0, "stop after this many; 0 = no limit")
	return cmd
}

// event writes one event for people, its data on lines of their own where it has any that do not fit, or one JSON object a line.
func (a *app) event(w io.Writer, e contract.Event) error {
	if a.json() {
		return jsonLine(w, e)
	}
	by := ""
	if e.By != "" {
		by = " by " + e.By
	}
	data := strings.Join(strings.Fields(string(e.Data)), " ")
	if data == "null" {
		data = ""
	}
	line := words.Printable(strings.TrimRight(fmt.Sprintf("%s %6d  %-20s %s%s  %s", e.At.Time().Format("15:04:05Z"), e.Seq, e.Kind, e.Subject, by, data), " "), false)
	if utf8.RuneCountInString(line) <= maxWidth {
		_, err := fmt.Fprintln(w, line)
		return err
	}
	line = words.Printable(strings.TrimRight(fmt.Sprintf("%s %6d  %-20s %s%s", e.At.Time().Format("15:04:05Z"), e.Seq, e.Kind, e.Subject, by), " "), false)
	for i, part := range []string{line, words.Printable(data, false)} {
		if part == "" {
			continue
		}
		for n, l := range wrap(part, maxWidth-2*len(indent)) {
			if i > 0 || n > 0 {
				l = indent + l
			}
			if _, err := fmt.Fprintln(w, l); err != nil {
				return err
			}
		}
	}
	return nil
}
