package cli

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

// submitArray sends an array, told by its indices and, after a %, how many run at once.
func (a *app) submitArray(cmd *cobra.Command, c *client.Client, r *request, indices string, command []string) error {
	if err := r.complete(command); err != nil {
		return err
	}
	spans, most, limited := strings.Cut(indices, "%")
	if limited {
		n, err := strconv.Atoi(most)
		if err != nil || n < 1 || r.in.ArrayLimit != 0 && r.in.ArrayLimit != n {
			return usageError{fmt.Errorf("--array %s: after the %% stands how many run at once, such as 0-99%%10", indices)}
		}
		r.in.ArrayLimit = n
	}
	key := r.key
	if key == "" {
		key = "cli-" + ulid.Make().String()
	}
	made, err := again(cmd, func() (contract.Array, error) {
		return call.Do[contract.Array](c.SubmitArray(cmd.Context(), &contract.SubmitArrayParams{IdempotencyKey: &key}, contract.NewArray{Indices: spans, Job: r.in}))
	})
	if err != nil {
		return err
	}
	if a.json() {
		return printJSON(cmd.OutOrStdout(), made)
	}
	fmt.Fprintln(cmd.OutOrStdout(), made.Name)
	if made.Kind == schema.JobService {
		fmt.Fprintf(cmd.ErrOrStderr(), "A service of %s. Next: gpupool service show %s\n", words.Count(made.Jobs, "replica"), made.Name)
		return nil
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "An array of %d jobs. Next: gpupool array show %s\n", made.Jobs, made.Name)
	return nil
}

func arrayWords(j contract.Job) string {
	if j.ArrayIndex == nil {
		return j.Array
	}
	return fmt.Sprintf("%s, index %d", j.Array, *j.ArrayIndex)
}

func (a *app) array() *cobra.Command {
	var p contract.ListArraysParams
	var tenant, project string
	var all bool
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List arrays with jobs that have not ended, newest first", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.ArrayList, error) {
				p.Tenant, p.Project, p.Live = opt(tenant), opt(project), opt(!all)
				return call.Do[contract.ArrayList](c.ListArrays(cmd.Context(), &p))
			}, func(l contract.ArrayList) {
				now := nowInstant()
				t := newTable("NAME", "TENANT/PROJECT", "ASKS", "JOBS", "LIMIT", "SUBMITTED", "STATES")
				for _, x := range l.Items {
					t.row(x.Name, x.Tenant+"/"+x.Project, fmt.Sprintf("%d x %s", x.Nodes, x.Spec), strconv.Itoa(x.Jobs), count(x.Limit), words.Ago(x.SubmittedAt, now), words.States(x.States, x.Held))
				}
				t.write(cmd.OutOrStdout(), "No arrays. Make one: gpupool job submit --array 0-9 ...")
			})
		},
	}
	list.Flags().StringVar(&tenant, "tenant", "", "only this tenant's")
	list.Flags().StringVar(&project, "project", "", "only this project's")
	list.Flags().BoolVar(&all, "all", false, "also those whose jobs have all ended")

	var of scopeOf
	show := &cobra.Command{
		Use: "show NAME", Short: "Show an array: how many of its jobs are in which state", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			x, err := call.Do[contract.Array](c.GetArray(cmd.Context(), args[0], &contract.GetArrayParams{Tenant: opt(of.tenant), Project: opt(of.project)}))
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), x)
			}
			now := nowInstant()
			f := fields{cmd.OutOrStdout()}
			f.put("Array", x.Name)
			f.put("Tenant", x.Tenant+" / "+x.Project)
			f.put("Asks for", fmt.Sprintf("%d jobs of %d x %s", x.Jobs, x.Nodes, x.Spec))
			f.put("At once", limitOfArray(x))
			f.put("States", words.States(x.States, x.Held))
			f.put("Submitted", words.Clock(x.SubmittedAt, now)+" by "+x.SubmittedBy)
			f.put("Ended", words.Clock(x.EndedAt, now))
			f.put("Next", "gpupool job list --array "+x.Name)
			return nil
		},
	}
	of.flags(show)
	return group("array", "Arrays: many jobs that differ in their index, submitted and steered together", list, show,
		a.arrayVerb("cancel", "Cancel all jobs of an array that have not ended; again is no error", "is being cancelled"),
		a.arrayVerb("hold", "Keep an array's queued jobs from starting; those that run go on", "is held"),
		a.arrayVerb("release", "Let an array's held jobs start", "is released"), a.arrayLimit())
}

// scopeOf says which array a name means, where several projects have one of that name.
type scopeOf struct{ tenant, project string }

func (s *scopeOf) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.tenant, "tenant", "", "the array's tenant; else the token's own")
	cmd.Flags().StringVar(&s.project, "project", "", "the array's project, where the name alone does not tell")
}

func limitOfArray(x contract.Array) string {
	if x.Limit == 0 {
		return "any number"
	}
	return fmt.Sprintf("at most %d", x.Limit)
}

func (a *app) arrayVerb(verb, short, said string) *cobra.Command {
	var of scopeOf
	cmd := &cobra.Command{
		Use: verb + " NAME", Short: short, Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (contract.Array, error) {
				t, p := opt(of.tenant), opt(of.project)
				var resp *http.Response
				var err error
				switch verb {
				case "cancel":
					resp, err = c.CancelArray(cmd.Context(), args[0], &contract.CancelArrayParams{Tenant: t, Project: p})
				case "hold":
					resp, err = c.HoldArray(cmd.Context(), args[0], &contract.HoldArrayParams{Tenant: t, Project: p})
				case "release":
					resp, err = c.ReleaseArray(cmd.Context(), args[0], &contract.ReleaseArrayParams{Tenant: t, Project: p})
				default:
					return contract.Array{}, errors.New("no verb of arrays: " + verb)
				}
				return call.Do[contract.Array](resp, err)
			}, func(x contract.Array) string {
				kind := "Array"
				if x.Kind == schema.JobService {
					kind = "Service"
				}
				return fmt.Sprintf("%s %s %s: %s.", kind, x.Name, said, words.States(x.States, x.Held))
			})
		},
	}
	of.flags(cmd)
	return cmd
}

func (a *app) arrayLimit() *cobra.Command {
	var of scopeOf
	cmd := &cobra.Command{
		Use: "limit NAME N", Short: "Change how many jobs of an array run at once; 0 = no limit", Args: exactly("NAME", "N"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil || n < 0 {
				return usageError{fmt.Errorf("%q is not a number of jobs: 1 and more, or 0 for no limit", args[1])}
			}
			return act(a, cmd, func(c *client.Client) (contract.Array, error) {
				return call.Do[contract.Array](c.LimitArray(cmd.Context(), args[0], &contract.LimitArrayParams{Tenant: opt(of.tenant), Project: opt(of.project)}, contract.ArrayLimit{Limit: n}))
			}, func(x contract.Array) string {
				return fmt.Sprintf("Of array %s %s of its jobs run at once.", x.Name, limitOfArray(x))
			})
		},
	}
	of.flags(cmd)
	return cmd
}
