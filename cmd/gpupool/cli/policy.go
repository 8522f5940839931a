package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

func (a *app) spec() *cobra.Command {
	var in contract.NewSpec
	var memory size
	var longest duration
	create := &cobra.Command{
		Use: "create NAME --model MODEL --accelerators N", Short: "Offer a standard spec", Args: exactly("NAME"),
		Example: `  gpupool spec create h100x8 --model nvidia-h100-80gb --accelerators 8 --cpus 96 --memory 1TiB`,
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Name, in.MemoryBytes, in.MaxTimeMs = args[0], memory.bytes, longest.ms
			return act(a, cmd, func(c *client.Client) (schema.Spec, error) {
				return call.Do[schema.Spec](c.CreateSpec(cmd.Context(), in))
			}, func(s schema.Spec) string {
				return fmt.Sprintf("Spec %s: %d x %s a node.", s.Name, s.Accelerators, s.Model)
			})
		},
	}
	f := create.Flags()
	f.StringVar(&in.Model, "model", "", "accelerator model (required)")
	f.Int64Var(&in.Accelerators, "accelerators", 0, "accelerators a node, 1 to 16 (required)")
	f.Int64Var(&in.Cpus, "cpus", 0, "CPU cores a node")
	f.Var(&memory, "memory", "memory a node, such as 1TiB")
	f.Var(&longest, "max-time", "that a job may run, such as 7d; one without a time limit has this one")
	f.StringVar(&in.Description, "description", "", "what it is for")
	f.BoolVar(&in.AllowUnknownModel, "allow-unknown-model", false, "the model is new: neither in the catalogue nor in the pool yet")
	required(create, "model")

	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List specs", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.SpecList, error) {
				return call.Do[contract.SpecList](c.ListSpecs(cmd.Context()))
			}, func(l contract.SpecList) {
				now := nowInstant()
				t := newTable("NAME", "MODEL", "ACCELERATORS", "CPUS", "MEMORY", "MAX TIME", "RETIRED", "DESCRIPTION")
				for _, s := range l.Items {
					t.row(s.Name, s.Model, strconv.Itoa(s.Accelerators), count(s.CPUs), words.Bytes(s.MemoryBytes), (&duration{s.MaxTime}).String(), words.Ago(s.RetiredAt, now), s.Description)
				}
				t.write(cmd.OutOrStdout(), "No specs. Make one: gpupool spec create --help")
			})
		},
	}
	retire := &cobra.Command{
		Use: "retire NAME", Short: "Take no new jobs of a spec; those that wait for it never start, those that run go on", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (schema.Spec, error) {
				return call.Do[schema.Spec](c.RetireSpec(cmd.Context(), args[0]))
			}, func(s schema.Spec) string { return "Spec " + s.Name + " takes no new jobs." })
		},
	}
	remove := &cobra.Command{
		Use: "delete NAME", Short: "Remove a spec that no live job asks for", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (struct{}, error) {
				return call.Do[struct{}](c.DeleteSpec(cmd.Context(), args[0]))
			}, func(struct{}) string { return "Spec " + args[0] + " is gone." })
		},
	}
	return group("spec", "Standard specs: what a node of a job gets", list, create, retire, remove)
}

func (a *app) tenant() *cobra.Command {
	var priority int
	var change accountFlags
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List tenants", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.TenantList, error) {
				return call.Do[contract.TenantList](c.ListTenants(cmd.Context()))
			}, func(l contract.TenantList) {
				t := newTable("NAME", "WEIGHT", "MAX RUNNING", "MAX PRIORITY", "CREATED")
				for _, x := range l.Items {
					t.row(x.Name, strconv.Itoa(x.Weight), count(x.MaxRunningJobs), strconv.Itoa(x.MaxPriority), words.Clock(x.CreatedAt, nowInstant()))
				}
				t.write(cmd.OutOrStdout(), "No tenants. Make one: gpupool tenant create NAME")
			})
		},
	}
	create := &cobra.Command{
		Use: "create NAME", Short: "Make a tenant", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (schema.Tenant, error) {
				return call.Do[schema.Tenant](c.CreateTenant(cmd.Context(), contract.NewTenant{Name: args[0], MaxPriority: priority}))
			}, func(t schema.Tenant) string { return "Tenant " + t.Name + " is made." })
		},
	}
	set := &cobra.Command{
		Use: "set NAME", Short: "Change a tenant's weight and limits", Args: exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := change.of(cmd)
			if err != nil {
				return err
			}
			return act(a, cmd, func(c *client.Client) (schema.Tenant, error) {
				return call.Do[schema.Tenant](c.UpdateTenant(cmd.Context(), args[0], in))
			}, func(t schema.Tenant) string { return "Tenant " + t.Name + ": " + accountWords(t.Account) })
		},
	}
	create.Flags().IntVar(&priority, "max-priority", 0, "its jobs' priority is capped to this")
	change.flags(set)
	return group("tenant", "Tenants: who is billed", list, create, set)
}

// accountFlags are what holds for a tenant or project whatever the model.
type accountFlags struct {
	weight, running, priority int
	warn, reclaim             string
}

func (f *accountFlags) flags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&f.weight, "weight", 1, "in fair share: one of weight 2 gets twice as much as one of 1")
	cmd.Flags().IntVar(&f.running, "max-running-jobs", 0, "jobs that hold accelerators at once; 0 = no limit")
	cmd.Flags().IntVar(&f.priority, "max-priority", 0, "its jobs' priority is capped to this")
	cmd.Flags().StringVar(&f.warn, "idle-warn", "", "a job that does nothing for as long is told, like 2h; never, or inherit for what holds above it")
	cmd.Flags().StringVar(&f.reclaim, "idle-reclaim", "", "a job that does nothing for as long is stopped, like 8h; never, or inherit for what holds above it")
}

// of is the change that the flags ask for: those not given stay.
func (f *accountFlags) of(cmd *cobra.Command) (contract.AccountChange, error) {
	var out contract.AccountChange
	for _, x := range []struct {
		flag string
		from *int
		to   **int
	}{{"weight", &f.weight, &out.Weight}, {"max-running-jobs", &f.running, &out.MaxRunningJobs}, {"max-priority", &f.priority, &out.MaxPriority}} {
		if cmd.Flags().Changed(x.flag) {
			*x.to = x.from
		}
	}
	for _, x := range []struct {
		flag, from string
		to         **int64
	}{{"idle-warn", f.warn, &out.IdleWarnMs}, {"idle-reclaim", f.reclaim, &out.IdleReclaimMs}} {
		if !cmd.Flags().Changed(x.flag) {
			continue
		}
		ms, err := idleLimit(x.from)
		if err != nil {
			return out, usageError{fmt.Errorf("--%s %q: %w", x.flag, x.from, err)}
		}
		*x.to = &ms
	}
	if out == (contract.AccountChange{}) {
		return out, usageError{fmt.Errorf("needs one of --weight, --max-running-jobs, --max-priority, --idle-warn and --idle-reclaim")}
	}
	return out, nil
}

func idleLimit(s string) (ms int64, err error) {
	switch s {
	case "never":
		return 0, nil
	case "inherit":
		return schema.Inherit, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < time.Millisecond {
		return 0, fmt.Errorf("a time like 90m or 8h, never, or inherit")
	}
	return d.Milliseconds(), nil
}

func idleWords(ms int64) string {
	switch ms {
	case schema.Inherit:
		return "as is set above it"
	case 0:
		return "never"
	}
	return "after " + schema.Setting(time.Duration(ms)*time.Millisecond)
}

func accountWords(a schema.Account) string {
	running := "any number of its jobs run"
	if a.MaxRunningJobs > 0 {
		running = fmt.Sprintf("at most %d of its jobs run", a.MaxRunningJobs)
	}
	return fmt.Sprintf("weight %d, %s at once, with priority %d at most; idle jobs are told %s, stopped %s.", a.Weight, running, a.MaxPriority, idleWords(a.IdleWarn), idleWords(a.IdleReclaim))
}

func (a *app) project() *cobra.Command {
	var change accountFlags
	list := &cobra.Command{
		Use: "list [TENANT]", Aliases: []string{"ls"}, Short: "List projects, of one tenant or of all you see", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(a, cmd, func(c *client.Client) (contract.ProjectList, error) { return listProjects(cmd.Context(), c, args) }, func(l contract.ProjectList) {
				t := newTable("TENANT", "NAME", "WEIGHT", "MAX RUNNING", "MAX PRIORITY", "CREATED")
				for _, x := range l.Items {
					t.row(x.Tenant, x.Name, strconv.Itoa(x.Weight), count(x.MaxRunningJobs), strconv.Itoa(x.MaxPriority), words.Clock(x.CreatedAt, nowInstant()))
				}
				t.write(cmd.OutOrStdout(), "No projects.")
			})
		},
	}
	create := &cobra.Command{
		Use: "create TENANT NAME", Short: "Make a project", Args: exactly("TENANT", "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (schema.Project, error) {
				return call.Do[schema.Project](c.CreateProject(cmd.Context(), args[0], contract.NewProject{Name: args[1]}))
			}, func(p schema.Project) string { return "Project " + p.Tenant + "/" + p.Name + " is made." })
		},
	}
	set := &cobra.Command{
		Use: "set TENANT NAME", Short: "Change a project's weight and limits", Args: exactly("TENANT", "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := change.of(cmd)
			if err != nil {
				return err
			}
			return act(a, cmd, func(c *client.Client) (schema.Project, error) {
				return call.Do[schema.Project](c.UpdateProject(cmd.Context(), args[0], args[1], in))
			}, func(p schema.Project) string {
				return "Project " + p.Tenant + "/" + p.Name + ": " + accountWords(p.Account)
			})
		},
	}
	change.flags(set)
	return group("project", "Projects: a tenant's jobs, grouped", list, create, set)
}

// listProjects are those of the named tenants, or of every tenant that the caller sees.
func listProjects(ctx context.Context, c *client.Client, tenants []string) (contract.ProjectList, error) {
	all := contract.ProjectList{Items: []schema.Project{}}
	if len(tenants) == 0 {
		l, err := call.Do[contract.TenantList](c.ListTenants(ctx))
		if err != nil {
			return all, err
		}
		for _, t := range l.Items {
			tenants = append(tenants, t.Name)
		}
	}
	for _, t := range tenants {
		l, err := call.Do[contract.ProjectList](c.ListProjects(ctx, t))
		if err != nil {
			return all, err
		}
		all.Items = append(all.Items, l.Items...)
	}
	return all, nil
}

func (a *app) quota() *cobra.Command {
	var tenant, project, model string
	var guaranteed, limit int64
	var unknown bool
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List quotas", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.QuotaList, error) {
				return call.Do[contract.QuotaList](c.ListQuotas(cmd.Context(), &contract.ListQuotasParams{Tenant: opt(tenant)}))
			}, func(l contract.QuotaList) {
				t := newTable("TENANT", "PROJECT", "MODEL", "GUARANTEED", "LIMIT")
				for _, q := range l.Items {
					t.row(q.Tenant, q.Project, q.Model, strconv.Itoa(q.Guaranteed), limitWords(q.Limit))
				}
				t.write(cmd.OutOrStdout(), "No quotas: nothing is limited.")
			})
		},
	}
	set := &cobra.Command{
		Use:   "set --tenant T [--project P] --model M --limit N",
		Short: "Set how many accelerators of a model a tenant or project may hold at once", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("limit") {
				return usageError{fmt.Errorf("needs --limit: how many accelerators at once; -1 = no limit")}
			}
			return act(a, cmd, func(c *client.Client) (schema.Quota, error) {
				return call.Do[schema.Quota](c.SetQuota(cmd.Context(), contract.NewQuota{Tenant: tenant, Project: project, Model: model, Guaranteed: guaranteed, Limit: limit, AllowUnknownModel: unknown}))
			}, func(q schema.Quota) string {
				return fmt.Sprintf("%s: guaranteed %d, limit %s of %s.", owner(q), q.Guaranteed, limitWords(q.Limit), q.Model)
			})
		},
	}
	remove := &cobra.Command{
		Use: "delete --tenant T [--project P] --model M", Short: "Remove a quota", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return act(a, cmd, func(c *client.Client) (struct{}, error) {
				return call.Do[struct{}](c.DeleteQuota(cmd.Context(), &contract.DeleteQuotaParams{Tenant: tenant, Project: opt(project), Model: model}))
			}, func(struct{}) string { return "The quota is gone." })
		},
	}
	list.Flags().StringVar(&tenant, "tenant", "", "only this tenant")
	for _, c := range []*cobra.Command{set, remove} {
		c.Flags().StringVar(&tenant, "tenant", "", "tenant (required)")
		c.Flags().StringVar(&project, "project", "", "project; else the tenant as a whole")
		c.Flags().StringVar(&model, "model", "", "accelerator model (required)")
		required(c, "tenant", "model")
	}
	set.Flags().Int64Var(&guaranteed, "guaranteed", 0, "accelerators it can always have")
	set.Flags().BoolVar(&unknown, "allow-unknown-model", false, "the model is new: neither in the catalogue nor in the pool yet")
	set.Flags().Int64Var(&limit, "limit", 0, "accelerators it may hold at once; -1 = no limit (required)")
	return group("quota", "Quotas: accelerators guaranteed to and limited for tenants and projects", list, set, remove)
}

func (a *app) window() *cobra.Command {
	var in contract.NewWindow
	var from, until moment
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List maintenance windows and reservations that have not passed", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.WindowList, error) {
				return call.Do[contract.WindowList](c.ListWindows(cmd.Context()))
			}, func(l contract.WindowList) {
				t := newTable("ID", "KIND", "SERVERS", "FROM", "UNTIL", "FOR", "NOTE")
				for _, w := range l.Items {
					t.row(w.ID, string(w.Kind), strconv.Itoa(w.Count), w.From.String(), untilWords(w), strings.TrimSuffix(w.Tenant+"/"+w.Project, "/"), w.Note)
				}
				t.write(cmd.OutOrStdout(), "No windows.")
			})
		},
	}
	create := &cobra.Command{
		Use: "create SERVER...", Short: "Keep servers free of jobs for a time: for maintenance, or with --tenant reserved for a tenant or project", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Kind = schema.WindowMaintenance
			if in.Tenant != "" {
				in.Kind = schema.WindowReservation
			}
			in.Servers, in.From, in.Until = args, from.at, until.at
			return act(a, cmd, func(c *client.Client) (schema.Window, error) {
				return call.Do[schema.Window](c.CreateWindow(cmd.Context(), in))
			}, func(w schema.Window) string {
				return fmt.Sprintf("%s window %s over %d servers, from %s until %s: jobs that would run into it don't start there.", w.Kind, w.ID, w.Count, w.From, untilWords(w))
			})
		},
	}
	remove := &cobra.Command{
		Use: "delete ID", Short: "End a window at once", Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (struct{}, error) {
				return call.Do[struct{}](c.DeleteWindow(cmd.Context(), args[0]))
			}, func(struct{}) string { return "The window is gone." })
		},
	}
	f := create.Flags()
	f.Var(&from, "from", "when it begins; else now")
	f.Var(&until, "until", "when it ends; else when it is deleted")
	f.StringVar(&in.Tenant, "tenant", "", "reserve them for this tenant; else it is maintenance")
	f.StringVar(&in.Project, "project", "", "reserve them for this project of the tenant")
	f.StringVar(&in.Note, "note", "", "what it is for")
	return group("window", "Windows: times when servers are kept for maintenance or reserved", list, create, remove)
}

func untilWords(w schema.Window) string {
	if w.Until.IsZero() {
		return "it is deleted"
	}
	return w.Until.String()
}

func owner(q schema.Quota) string {
	if q.Project != "" {
		return q.Tenant + "/" + q.Project
	}
	return q.Tenant
}

func limitWords(n int) string {
	if n < 0 {
		return "none"
	}
	return strconv.Itoa(n)
}

func count(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func (a *app) token() *cobra.Command {
	var in contract.NewToken
	var role string
	var expires moment
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List tokens, without their secrets", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.TokenList, error) {
				return call.Do[contract.TokenList](c.ListTokens(cmd.Context()))
			}, func(l contract.TokenList) {
				now := nowInstant()
				t := newTable("NAME", "ROLE", "TENANT/PROJECT", "CREATED", "EXPIRES", "STATE")
				for _, x := range l.Items {
					state := "valid"
					switch {
					case !x.RevokedAt.IsZero():
						state = "revoked"
					case !x.ExpiresAt.IsZero() && x.ExpiresAt <= now:
						state = "expired"
					}
					t.row(x.Name, string(x.Role), scope(x), words.Clock(x.CreatedAt, now), words.Clock(x.ExpiresAt, now), state)
				}
				t.write(cmd.OutOrStdout(), "No tokens.")
			})
		},
	}
	create := &cobra.Command{
		Use: "create NAME --role ROLE", Short: "Make a token; its secret is shown once", Args: exactly("NAME"),
		Long: `Make an API token. Standard output is the secret alone, so that it can be sent to a file or a secret store; it is
shown this once and kept by the pool only as a hash.`,
		Example: `  gpupool token create ci --role tenant-member --tenant research --expires +90d > token.txt`,
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Name, in.Role, in.ExpiresAt = args[0], schema.Role(role), expires.at
			return act(a, cmd, func(c *client.Client) (contract.TokenSecret, error) {
				return call.Do[contract.TokenSecret](c.CreateToken(cmd.Context(), in))
			}, func(t contract.TokenSecret) string {
				fmt.Fprintf(cmd.ErrOrStderr(), "Token %s (%s), role %s. The secret is not shown again:\n", t.Token.Name, t.Token.ID, t.Token.Role)
				return t.Secret
			})
		},
	}
	f := create.Flags()
	f.StringVar(&role, "role", "", join(schema.Roles)+" (required)")
	f.StringVar(&in.Tenant, "tenant", "", "tenant; required for tenant roles, narrows a viewer")
	f.StringVar(&in.Project, "project", "", "narrows a member to one project")
	f.Var(&expires, "expires", "when it ends: a time, or +90d from now; without it never")
	required(create, "role")
	revoke := &cobra.Command{
		Use: "revoke ID|NAME", Short: "Revoke a token, and name the webhooks that it leaves; again is no error", Args: exactly("ID or NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (revoked, error) {
				return revokeToken(cmd.Context(), c, args[0])
			}, func(r revoked) string {
				text := args[0] + " is revoked."
				if len(r.Webhooks) > 0 {
					text += "\nWebhooks that it made belong to who they are for, and go on: " + strings.Join(r.Webhooks, ", ") + ". End one: gpupool webhook delete NAME"
				}
				return text
			})
		},
	}
	return group("token", "API tokens and their roles", list, create, revoke)
}

// revoked is what a revocation leaves: the names of the webhooks that the token has made.
type revoked struct {
	Webhooks []string `json:"webhooks"`
}

func revokeToken(ctx context.Context, c *client.Client, idOrName string) (revoked, error) {
	left := revoked{Webhooks: []string{}}
	if _, err := call.Do[struct{}](c.RevokeToken(ctx, idOrName)); err != nil {
		return left, err
	}
	tokens, err := call.Do[contract.TokenList](c.ListTokens(ctx))
	if err != nil {
		return left, err
	}
	hooks, err := call.Do[contract.WebhookList](c.ListWebhooks(ctx))
	if err != nil {
		return left, err
	}
	for _, t := range tokens.Items {
		for _, h := range hooks.Items {
			if (t.ID == idOrName || t.Name == idOrName) && h.By == t.Name {
				left.Webhooks = append(left.Webhooks, h.Name)
			}
		}
	}
	return left, nil
}

func scope(t schema.Token) string {
	if t.Project != "" {
		return t.Tenant + "/" + t.Project
	}
	return t.Tenant
}

// show reads a list and prints it: as the API's JSON, or as people is told to.
func show[T any](a *app, cmd *cobra.Command, read func(*client.Client) (T, error), people func(T)) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	v, err := read(c)
	if err != nil {
		return err
	}
	if a.json() {
		return printJSON(cmd.OutOrStdout(), v)
	}
	people(v)
	return nil
}

// act changes something and says so in one sentence, or as the API's JSON.
func act[T any](a *app, cmd *cobra.Command, change func(*client.Client) (T, error), sentence func(T) string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	v, err := change(c)
	if err != nil {
		return err
	}
	if a.json() {
		return printJSON(cmd.OutOrStdout(), v)
	}
	fmt.Fprintln(cmd.OutOrStdout(), words.Printable(sentence(v), false))
	return nil
}
