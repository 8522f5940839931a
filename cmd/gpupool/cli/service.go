package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

// serve makes the request one of a service of that many replicas: an array, under the service's name. It gives the indices.
func (r *request) serve(replicas int) string {
	r.in.Kind, r.in.Array, r.in.Name = schema.JobService, r.in.Name, ""
	return fmt.Sprintf("0-%d", replicas-1)
}

func (a *app) service() *cobra.Command {
	var tenant, project string
	var all bool
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List services that have not ended, newest first", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.ArrayList, error) {
				return call.Do[contract.ArrayList](c.ListArrays(cmd.Context(), &contract.ListArraysParams{Tenant: opt(tenant), Project: opt(project), Live: opt(!all), Kind: opt(schema.JobService)}))
			}, func(l contract.ArrayList) {
				now := nowInstant()
				t := newTable("NAME", "TENANT/PROJECT", "SPEC", "REPLICAS", "RUNNING", "BEGUN AGAIN", "SUBMITTED", "STATES")
				for _, x := range l.Items {
					t.row(x.Name, x.Tenant+"/"+x.Project, x.Spec, strconv.Itoa(words.Live(x.States)), strconv.Itoa(x.States[string(schema.JobRunning)]), strconv.Itoa(x.Restarts), words.Ago(x.SubmittedAt, now), words.States(x.States, x.Held))
				}
				t.write(cmd.OutOrStdout(), "No services. Make one: gpupool service submit --name NAME ...")
			})
		},
	}
	list.Flags().StringVar(&tenant, "tenant", "", "only this tenant's")
	list.Flags().StringVar(&project, "project", "", "only this project's")
	list.Flags().BoolVar(&all, "all", false, "also those that have ended")
	return group("service", "Services: commands that are kept running at a number of replicas", list,
		a.serviceSubmit(), a.serviceShow(), a.serviceScale(), a.arrayVerb("cancel", "End a service: all its replicas are stopped; again is no error", "is being cancelled"))
}

func (a *app) serviceSubmit() *cobra.Command {
	var r request
	var replicas int
	var dry bool
	cmd := &cobra.Command{
		Use:   "submit --name NAME --spec SPEC [flags] -- COMMAND [ARG...] | submit [flags] SCRIPT [ARG...]",
		Short: "Submit a service; its name is the first line",
		Long: `Submit a service: a command that is kept running at a number of replicas, each on one node of the spec. A replica whose
command ends, whatever its exit code, is begun again where it ran, with what it holds; one that is lost with its server is placed
anew. It has no time limit unless one is given. Services run on servers of backend node and on Kubernetes, never on Slurm.

With --dry-run nothing is submitted: it says what would become of one replica at this moment.`,
		Example: `  gpupool service submit --name chat --replicas 3 --spec h100x1 --image team/vllm:1 -- vllm serve /models/chat`,
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
			switch {
			case r.in.Name == "":
				return usageError{fmt.Errorf("needs --name: what the service is called, new in the project")}
			case replicas < 1:
				return usageError{fmt.Errorf("--replicas %d: 1 or more", replicas)}
			}
			indices := r.serve(replicas)
			if dry {
				r.in.Array = ""
				return a.dryRun(cmd, c, &r, args)
			}
			return a.submitArray(cmd, c, &r, indices, args)
		},
	}
	r.flags(cmd)
	cmd.Flags().Lookup("name").Usage = "the service's name, new in the project (required)"
	cmd.Flags().IntVar(&replicas, "replicas", 1, "how many are kept running")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "submit nothing: say what would become of a replica now")
	for _, none := range []string{"nodes", "requeue-limit"} {
		_ = cmd.Flags().MarkHidden(none) // each replica has one node, and is kept without a limit: the API says so
	}
	return cmd
}

func (a *app) serviceShow() *cobra.Command {
	var of scopeOf
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show a service and its replicas", Args: exactly("NAME"),
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
			live := x.EndedAt.IsZero()
			jobs, err := call.Do[contract.JobList](c.ListJobs(cmd.Context(), &contract.ListJobsParams{Tenant: &x.Tenant, Project: &x.Project, Array: &x.Name, Live: opt(live)}))
			if err != nil {
				return err
			}
			now, w := nowInstant(), cmd.OutOrStdout()
			f := fields{w}
			f.put("Service", x.Name)
			f.put("Tenant", x.Tenant+" / "+x.Project)
			f.put("Replicas", fmt.Sprintf("%d of %s, %d running", words.Live(x.States), x.Spec, x.States[string(schema.JobRunning)]))
			f.put("Begun again", words.Count(x.Restarts, "time")+" where they ran")
			f.put("Submitted", words.Clock(x.SubmittedAt, now)+" by "+x.SubmittedBy)
			f.put("Ended", words.Clock(x.EndedAt, now))
			fmt.Fprintln(w)
			t := newTable("REPLICA", "JOB", "STATE", "ATTEMPT", "BEGUN AGAIN", "SINCE", "NOTE")
			for _, j := range jobs.Items {
				index := words.None
				if j.ArrayIndex != nil {
					index = strconv.Itoa(*j.ArrayIndex)
				}
				t.row(index, j.Id, string(j.State), strconv.Itoa(j.Attempt), strconv.Itoa(j.Restarts), words.Ago(j.SubmittedAt, now), jobNote(j, now))
			}
			t.write(w, "No replicas.")
			return nil
		},
	}
	of.flags(cmd)
	return cmd
}

func (a *app) serviceScale() *cobra.Command {
	var of scopeOf
	cmd := &cobra.Command{
		Use: "scale NAME N", Short: "Change how many replicas a service has", Args: exactly("NAME", "N"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[1])
			if err != nil || n < 1 {
				return usageError{fmt.Errorf("%q is not a number of replicas: 1 and more; gpupool service cancel ends a service", args[1])}
			}
			return act(a, cmd, func(c *client.Client) (contract.Array, error) {
				return call.Do[contract.Array](c.ScaleArray(cmd.Context(), args[0], &contract.ScaleArrayParams{Tenant: opt(of.tenant), Project: opt(of.project)}, contract.Replicas{Replicas: n}))
			}, func(x contract.Array) string {
				return fmt.Sprintf("Service %s is to have %s: %s.", x.Name, words.Count(n, "replica"), words.States(x.States, x.Held))
			})
		},
	}
	of.flags(cmd)
	return cmd
}
