package cli

import (
	"fmt"
	"slices"
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

func (a *app) job() *cobra.Command {
	return group("job", "Submit jobs, see why they wait, watch and steer them",
		a.jobList(), a.jobSubmit(), a.jobShow(), a.jobWhy(), a.jobWatch(), a.jobWait(), a.jobLogs(),
		a.jobCancel(), a.jobVerb("hold", "Keep a queued job from starting", "is held"),
		a.jobVerb("release", "Let a held job start", "is released"),
		a.jobVerb("checkpoint", "Tell that a running job has saved its work", "has saved its work"), a.jobLimit())
}

// request is the flags that describe a job.
type request struct {
	in              contract.NewJob
	nodes, requeues int
	env, mounts     []string
	values          map[string]string // more of the environment, as it is
	limit, maxQueue duration
	grace           duration
	notBefore       moment
	key             string

	afterOK, afterNotOK, afterAny []string
}

func (r *request) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SetInterspersed(false) // what stands after a script is the script's own
	f.StringVar(&r.in.Spec, "spec", "", "standard spec that each node gets (required); see gpupool spec list")
	f.IntVar(&r.nodes, "nodes", 1, "how many of the spec, started together")
	f.StringVar(&r.in.Name, "name", "", "name, for people")
	f.StringVar(&r.in.Tenant, "tenant", "", "tenant; else the token's own")
	f.StringVar(&r.in.Project, "project", "", "project; else the token's own")
	f.IntVar(&r.in.Priority, "priority", 0, "higher goes first; capped by the tenant and the project")
	f.BoolVar(&r.in.Preemptible, "preemptible", false, "may be stopped and queued again when others need the place")
	f.StringVar(&r.in.Same, "same", "", "keep the nodes within one nvlink, rack, site or region")
	f.BoolVar(&r.in.SameRequired, "same-required", false, "wait for such a place rather than prefer it")
	f.StringVar(&r.in.Region, "region", "", "region")
	f.StringArrayVarP(&r.env, "env", "e", nil, "NAME=VALUE for the command; NAME alone takes the value it has here")
	f.StringVar(&r.in.WorkDir, "workdir", "", "folder to run in, as the command sees it")
	f.StringArrayVarP(&r.mounts, "mount", "m", nil, "VOLUME:TARGET or VOLUME/FOLDER:TARGET: a volume for the command to read; :rw behind it to write as well; see gpupool volume list")
	f.StringVar(&r.in.Image, "image", "", "container image that the command runs in")
	f.StringVar(&r.in.Network, "network", "", "host or none: the server's network, or no other than a loopback of its own")
	f.Var(&r.limit, "time-limit", "at most this long from running to stopped, such as 2h or 3d")
	f.Var(&r.maxQueue, "max-queue", "give up when not started within this time")
	f.Var(&r.grace, "grace", "between the stop signal and the kill")
	f.Var(&r.notBefore, "not-before", "start no earlier: a time, or +2h from now")
	f.StringSliceVar(&r.afterOK, "after-ok", nil, "start only when these jobs have completed")
	f.StringSliceVar(&r.afterNotOK, "after-not-ok", nil, "start only when these jobs have ended otherwise than completed")
	f.StringSliceVar(&r.afterAny, "after-any", nil, "start only when these jobs have ended")
	f.BoolVar(&r.in.Held, "hold", false, "submit held; gpupool job release lets it start")
	f.IntVar(&r.requeues, "requeue-limit", -1, "hardware losses after which it fails; -1 = the platform's")
	f.StringVar(&r.key, "idempotency-key", "", "text that makes a repeat of this submit answer the same job")
}

// complete makes the request of the flags and the command.
func (r *request) complete(command []string) (err error) {
	if r.in.Spec == "" {
		return usageError{fmt.Errorf("needs --spec: standard spec that each node gets; see gpupool spec list")}
	}
	if len(command) == 0 {
		return usageError{fmt.Errorf("needs the command after --, such as: -- python train.py; or a script, or -f with a manifest")}
	}
	if r.in.Env, err = environment(r.env); err != nil {
		return err
	}
	if r.in.Mounts, err = mounts(r.mounts); err != nil {
		return err
	}
	if len(r.values) > 0 {
		r.in.Env = r.values
	}
	r.in.Command, r.in.Nodes = command, &r.nodes
	r.in.TimeLimitMs, r.in.MaxQueueMs, r.in.GraceMs, r.in.NotBefore = r.limit.ms, r.maxQueue.ms, r.grace.ms, r.notBefore.at
	r.in.DependsOn = nil
	for condition, jobs := range map[schema.DependencyCondition][]string{schema.AfterOK: r.afterOK, schema.AfterNotOK: r.afterNotOK, schema.AfterAny: r.afterAny} {
		for _, j := range jobs {
			r.in.DependsOn = append(r.in.DependsOn, schema.Dependency{Job: j, Condition: condition})
		}
	}
	slices.SortFunc(r.in.DependsOn, func(x, y schema.Dependency) int { return strings.Compare(x.Job, y.Job) }) // one order for one request
	if r.requeues >= 0 {
		r.in.RequeueLimit = &r.requeues
	}
	return nil
}

// submit sends the job. Where no key was given one is made, so that trying again after a lost answer is one job.
func (r *request) submit(cmd *cobra.Command, c *client.Client, command []string) (contract.Job, error) {
	if err := r.complete(command); err != nil {
		return contract.Job{}, err
	}
	key := r.key
	if key == "" {
		key = "cli-" + ulid.Make().String()
	}
	return again(cmd, func() (contract.Job, error) {
		return call.Do[contract.Job](c.SubmitJob(cmd.Context(), &contract.SubmitJobParams{IdempotencyKey: &key}, r.in))
	})
}

func (a *app) jobSubmit() *cobra.Command {
	var r request
	var detach, dry bool
	var indices, file string
	cmd := &cobra.Command{
		Use:   "submit --spec SPEC [flags] -- COMMAND [ARG...] | submit [flags] SCRIPT [ARG...] | submit -f FILE",
		Short: "Submit a job, and watch until it starts",
		Long: `Submit a job. Its id is the first line; then the wait is shown with its reasons until the job runs. Ctrl-C leaves the
watch and not the job. With --detach, or -o json, it returns at once.

With --dry-run nothing is submitted: the region's allocator says what would become of the job at this moment, where it
would run or why it would wait. The exit code is 0 where it would start at once or once others have been stopped for it,
and 23 where it would wait.

A script is submitted whole: lines of it that begin with #GPUPOOL, before its first command, have flags of this verb that say
what the job needs. The command line's own flags win. With -f the jobs stand in a manifest, one or more YAML documents
whose fields are these flags with _ for -; they are all checked and then submitted in order.`,
		Example: `  gpupool job submit --spec h100x8 --nodes 2 --time-limit 6h -- torchrun train.py
  gpupool job submit --spec h100x1 --detach -o json -- python eval.py
  gpupool job submit --time-limit 2h train.sh --epochs 3
  gpupool job submit -f jobs.yaml
  gpupool job submit --spec h100x1 --array 0-99%10 --array-name sweep -- sh -c 'python train.py --seed $GPUPOOL_ARRAY_INDEX'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			switch {
			case file != "" && len(args) > 0:
				return usageError{fmt.Errorf("-f %s: a manifest has its jobs' commands itself", file)}
			case file != "":
				return a.submitManifest(cmd, c, file, r.in, detach, dry)
			case isScript(cmd, args):
				if args, err = script(cmd, args); err != nil {
					return err
				}
			}
			if dry && indices != "" {
				return usageError{fmt.Errorf("--dry-run is of one job: leave --array out")}
			}
			if dry {
				return a.dryRun(cmd, c, &r, args)
			}
			if indices != "" {
				return a.submitArray(cmd, c, &r, indices, args)
			}
			j, err := r.submit(cmd, c, args)
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), j)
			}
			fmt.Fprintln(cmd.OutOrStdout(), j.Id)
			if detach {
				return nil
			}
			return a.watchStart(cmd, c, j)
		},
	}
	r.flags(cmd)
	cmd.Flags().StringVarP(&file, "file", "f", "", "manifest with the jobs, YAML; - is standard input")
	cmd.Flags().StringVar(&indices, "array", "", "one job for each index: 0-99, or 1,3,7-9, or 0-90:10; with %N at most N run at once")
	cmd.Flags().StringVar(&r.in.Array, "array-name", "", "the array's name, new in the project; without --array the job joins the array of this name")
	cmd.Flags().IntVar(&r.in.ArrayLimit, "array-limit", 0, "at most so many jobs of the array run at once; 0 = no limit")
	cmd.Flags().BoolVar(&detach, "detach", false, "return at once")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "submit nothing: say what would become of the job now")
	return cmd
}

func (a *app) jobList() *cobra.Command {
	var p contract.ListJobsParams
	var tenant, project, state, array string
	var limit int
	var all bool
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List jobs that have not ended, newest first, with why each waits", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			p.Tenant, p.Project, p.State, p.Array = opt(tenant), opt(project), opt(schema.JobState(state)), opt(array)
			if state == "" {
				p.Live = opt(!all)
			}
			jobs, err := pages(limit, func(after string, n int) ([]contract.Job, string, error) {
				p.After, p.Limit = opt(after), &n
				l, err := call.Do[contract.JobList](c.ListJobs(cmd.Context(), &p))
				return l.Items, l.Next, err
			})
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), contract.JobList{Items: jobs})
			}
			readable(cmd, c, jobs...)
			now := nowInstant()
			t := newTable("ID", "NAME", "TENANT/PROJECT", "ASKS", "STATE", "FOR", "WHY")
			for _, j := range jobs {
				t.row(j.Id, shorten(j.Name, 16), shorten(strings.Trim(j.Tenant+"/"+j.Project, "/"), 20), fmt.Sprintf("%d x %s", j.Nodes, shorten(j.Spec, 12)), string(j.State), jobFor(j, now), jobNote(j, now))
			}
			none := "No jobs."
			if !all && state == "" {
				none = "No jobs that wait or run; --all shows those that have ended too."
			}
			t.write(cmd.OutOrStdout(), none)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&tenant, "tenant", "", "only this tenant")
	f.StringVar(&project, "project", "", "only this project")
	f.StringVar(&array, "array", "", "only those of the array of this name")
	f.StringVar(&state, "state", "", "only this state: "+join(schema.JobStates.States()))
	f.BoolVar(&all, "all", false, "also those that have ended")
	f.IntVar(&limit, "limit", 200, "at most this many; 0 = all")
	return cmd
}

// jobFor is how long the job has been in what it is in, or ran in all.
func jobFor(j contract.Job, now schema.Instant) string {
	switch {
	case j.State.Ended():
		return words.Between(j.StartedAt, j.EndedAt, now)
	case j.State == schema.JobQueued || j.StartedAt.IsZero():
		return words.Between(j.SubmittedAt, 0, now)
	}
	return words.Between(j.StartedAt, 0, now)
}

// readable puts servers' names in the place of their ids in the reasons of jobs, for who may list servers.
func readable(cmd *cobra.Command, c *client.Client, jobs ...contract.Job) {
	var known names
	for _, j := range jobs {
		if j.Reason == nil || !words.NamesServers(*j.Reason) {
			continue
		}
		if known == nil {
			known = serverNames(cmd, c)
		}
		*j.Reason = words.Named(*j.Reason, known)
	}
}

// jobNote is the one thing to know: why it waits, or why it ended.
func jobNote(j contract.Job, now schema.Instant) string {
	switch {
	case j.State.Ended():
		return j.Cause
	case j.Reason != nil:
		return string(j.Reason.Code) + ": " + words.Reason(*j.Reason, now).Headline
	}
	return ""
}

// idleNotice says that a running job does nothing; empty where it does, or where the caller may not read usage.
func idleNotice(cmd *cobra.Command, c *client.Client, j contract.Job, now schema.Instant) string {
	if j.State != schema.JobRunning {
		return ""
	}
	live, err := call.Do[contract.LiveUsageList](c.GetLiveUsage(cmd.Context(), &contract.GetLiveUsageParams{Job: &j.Id}))
	if err != nil || len(live.Items) != 1 {
		return ""
	}
	return words.Idle(live.Items[0].IdleSince, live.Items[0].ReclaimAt, now)
}

func (a *app) jobShow() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show a job: what was asked, where it is, its attempts and devices", Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			j, err := call.Do[contract.Job](c.GetJob(cmd.Context(), args[0], &contract.GetJobParams{}))
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), j)
			}
			attempts, err := call.Do[contract.AttemptList](c.ListAttempts(cmd.Context(), j.Id))
			if err != nil {
				return err
			}
			readable(cmd, c, j)
			now, w := nowInstant(), cmd.OutOrStdout()
			f := fields{w}
			f.put("Job", strings.TrimSpace(j.Id+"  "+j.Name))
			f.put("State", strings.TrimSuffix(string(j.State)+": "+j.Cause, ": "))
			if j.ExitCode != nil && j.State.Ended() { // of an earlier attempt until then
				f.put("Exit code", strconv.Itoa(*j.ExitCode))
			}
			if j.Reason != nil {
				why := words.Reason(*j.Reason, now)
				f.put("Waits", string(why.Code)+": "+why.Headline)
				f.put("Clears when", why.Clears)
				f.put("Who can act", classWords(why.Class))
			}
			f.put("Idle", idleNotice(cmd, c, j, now))
			f.put("Next", jobNext(j))
			f.put("Tenant", strings.Trim(j.Tenant+" / "+j.Project, " /"))
			f.put("Asks for", fmt.Sprintf("%s of %s (spec %s)", words.Gang(j.Nodes, j.PerNode), j.Model, j.Spec))
			f.put("Priority", strconv.Itoa(j.Priority))
			if j.Kind == schema.JobService {
				f.put("Kind", "service: kept running until it is cancelled")
				f.put("Begun again", words.Count(j.Restarts, "time")+" where it ran, "+words.Count(j.Requeues, "time")+" after it was lost")
			}
			f.put("Array", arrayWords(j))
			if j.TimeLimitMs > 0 {
				f.put("Time limit", (&duration{j.TimeLimitMs}).String())
			}
			f.put("Command", strings.Join(j.Command, " "))
			if j.Image != nil {
				f.put("Image", *j.Image)
			}
			f.put("Begins in", j.WorkDir)
			for _, m := range j.Mounts {
				f.put("Mount", mountWords(m))
			}
			f.put("Submitted", words.Clock(j.SubmittedAt, now)+" by "+j.SubmittedBy)
			f.put("Started", words.Clock(j.StartedAt, now))
			f.put("Ended", words.Clock(j.EndedAt, now))
			if n := len(attempts.Items); n > 0 {
				name := "Ran on"
				if attempts.Items[n-1].ReleasedAt.IsZero() {
					name = "Runs on"
				}
				f.put(name, strings.Join(places(attempts.Items[n-1].Devices), "\n"))
			}
			if len(attempts.Items) > 0 {
				fmt.Fprintln(w)
				attemptTable(attempts.Items, now).write(w, "")
			}
			return nil
		},
	}
}

// jobNext is the command that comes next for a person who looks at the job.
func jobNext(j contract.Job) string {
	name := j.Id
	switch {
	case j.State == schema.JobQueued && j.Held:
		return "gpupool job release " + name
	case j.State == schema.JobQueued:
		return "gpupool job why " + name
	case j.State.Ended() && j.Attempt == 0:
		return ""
	case j.State.Ended():
		return "gpupool job logs " + name
	}
	return "gpupool job logs -f " + name
}

// places names accelerators as people find them, one server a line: "a01/SXM1 SXM2".
func places(devices []contract.Allocation) []string {
	var out []string
	last := ""
	for _, d := range devices {
		slot := words.Or(d.Slot)
		if d.ServerName == last {
			out[len(out)-1] += " " + slot
			continue
		}
		last = d.ServerName
		out = append(out, d.ServerName+"/"+slot)
	}
	return out
}

func attemptTable(list []contract.Attempt, now schema.Instant) *table {
	t := newTable("ATTEMPT", "OUTCOME", "EXIT", "WAITED TO RUN", "RAN", "SERVERS", "CAUSE")
	for _, at := range list {
		exit := ""
		if at.ExitCode != nil {
			exit = strconv.Itoa(*at.ExitCode)
		}
		per := map[string]int{}
		var order []string
		for _, d := range at.Devices {
			if per[d.ServerName]++; per[d.ServerName] == 1 {
				order = append(order, d.ServerName)
			}
		}
		for i, s := range order {
			order[i] = fmt.Sprintf("%s(%d)", s, per[s])
		}
		launched := words.None
		if !at.RunningAt.IsZero() {
			launched = words.Between(at.AllocatedAt, at.RunningAt, now)
		}
		t.row(strconv.Itoa(at.Attempt), words.Outcome(at.Outcome), exit, launched, words.Between(at.RunningAt, at.ReleasedAt, now), strings.Join(order, " "), at.Cause)
	}
	return t
}

func (a *app) jobWhy() *cobra.Command {
	return &cobra.Command{
		Use: "why ID", Short: "Say why a job waits, what would clear it, and when it may start", Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			j, err := call.Do[contract.Job](c.GetJob(cmd.Context(), args[0], &contract.GetJobParams{}))
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), j.Reason)
			}
			readable(cmd, c, j)
			now := nowInstant()
			f := fields{cmd.OutOrStdout()}
			f.put("Job", strings.TrimSpace(j.Id+"  "+j.Name))
			if j.Reason == nil {
				f.put("State", strings.TrimSuffix(string(j.State)+": "+j.Cause, ": "))
				fmt.Fprintln(cmd.OutOrStdout(), "It does not wait.")
				return nil
			}
			why := words.Reason(*j.Reason, now)
			f.put("Waits since", words.Clock(j.Reason.Since, now)+" ("+words.Ago(j.Reason.Since, now)+")")
			putWhy(f, why)
			asOf := words.Ago(j.Reason.EvaluatedAt, now)
			if j.Reason.Cycle > 0 { // else it is not the allocator's
				asOf = fmt.Sprintf("cycle %d, %s", j.Reason.Cycle, asOf)
			}
			f.put("As of", asOf)
			return nil
		},
	}
}

func putWhy(f fields, why words.Why) {
	f.put("Because", string(why.Code)+": "+why.Headline)
	f.put("Who can act", classWords(why.Class))
	f.put("Clears when", why.Clears)
	f.put("Position", why.Position)
	f.put("Start", why.Start)
	f.put("In the way", strings.Join(why.Blockers, "\n"))
	f.put("Also", strings.Join(why.Also, "\n"))
}

func classWords(class string) string {
	switch class {
	case "fix the request":
		return "you: the request has to change"
	case "ask an admin":
		return "an admin"
	case "wait":
		return "nobody has to: it clears by itself"
	case "in progress":
		return "nobody has to: it is happening now"
	}
	return class
}

func (a *app) jobCancel() *cobra.Command {
	return &cobra.Command{
		Use: "cancel ID...", Short: "Cancel queued or running jobs; again is no error", Args: atLeast("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			var failed error
			for _, id := range args {
				j, err := call.Do[contract.Job](c.CancelJob(cmd.Context(), id))
				if err != nil {
					if len(args) == 1 {
						return err
					}
					failed = err
					fmt.Fprintf(cmd.ErrOrStderr(), "%s:\n", id)
					printError(cmd.ErrOrStderr(), err)
					continue
				}
				if err := a.said(cmd, j, "%s is being cancelled.", j.Id); err != nil {
					return err
				}
			}
			return failed
		},
	}
}

func (a *app) jobVerb(verb, short, said string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " ID", Short: short, Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			act := c.HoldJob
			switch verb {
			case "release":
				act = c.ReleaseJob
			case "checkpoint":
				act = c.CheckpointJob
			}
			j, err := call.Do[contract.Job](act(cmd.Context(), args[0]))
			if err != nil {
				return err
			}
			return a.said(cmd, j, "%s %s.", j.Id, said)
		},
	}
}

func (a *app) jobLimit() *cobra.Command {
	return &cobra.Command{
		Use: "limit ID DURATION", Short: "Change a job's time limit; 0 = none", Args: exactly("ID", "DURATION"),
		Example: "  gpupool job limit job_01jx 8h",
		RunE: func(cmd *cobra.Command, args []string) error {
			var d duration
			if args[1] != "0" {
				if err := d.Set(args[1]); err != nil {
					return err
				}
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			j, err := call.Do[contract.Job](c.SetTimeLimit(cmd.Context(), args[0], contract.TimeLimit{TimeLimitMs: d.ms}))
			if err != nil {
				return err
			}
			if d.ms == 0 {
				return a.said(cmd, j, "%s has no time limit.", j.Id)
			}
			return a.said(cmd, j, "%s has a time limit of %s.", j.Id, &d)
		},
	}
}
