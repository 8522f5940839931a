package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

func (a *app) queue() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the queues that are stopped", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.StopList, error) {
				return call.Do[contract.StopList](c.ListStops(cmd.Context()))
			}, func(l contract.StopList) {
				now := nowInstant()
				t := newTable("ID", "STOPPED", "BY", "SINCE", "UNTIL", "WHY")
				for _, s := range l.Items {
					t.row(s.ID, s.Scope(), s.By, words.Clock(s.CreatedAt, now), words.Clock(s.Until, now), s.Why)
				}
				t.write(cmd.OutOrStdout(), "No queue is stopped.")
			})
		},
	}
	return group("queue", "Queues: stop the starting of jobs for a while, and start it again", list, a.queueStop(), a.queueStart())
}

// scopeFlags narrow which queue is meant.
func scopeFlags(cmd *cobra.Command, s *schema.Stop) {
	f := cmd.Flags()
	f.StringVar(&s.Tenant, "tenant", "", "only this tenant's jobs")
	f.StringVar(&s.Project, "project", "", "only this project's of the tenant")
	f.StringVar(&s.Spec, "spec", "", "only jobs of this spec")
	f.StringVar(&s.Region, "region", "", "only in this region")
}

func (a *app) queueStop() *cobra.Command {
	var scope schema.Stop
	var why string
	var until moment
	var everything bool
	cmd := &cobra.Command{
		Use: "stop --why TEXT", Short: "Start no jobs of a tenant, spec or region, or of anyone; what runs goes on", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (scope == schema.Stop{}) != everything {
				return usageError{fmt.Errorf("needs one or more of --tenant, --project, --spec and --region, or --all for the whole pool")}
			}
			return act(a, cmd, func(c *client.Client) (schema.Stop, error) {
				return call.Do[schema.Stop](c.StopQueue(cmd.Context(), contract.NewStop{Tenant: scope.Tenant, Project: scope.Project, Spec: scope.Spec, Region: scope.Region, Why: why, Until: until.at}))
			}, func(s schema.Stop) string {
				end := ""
				if !s.Until.IsZero() {
					end = " until " + s.Until.String()
				}
				return fmt.Sprintf("The queue of %s is stopped%s (%s). What runs goes on.", s.Scope(), end, s.ID)
			})
		},
	}
	scopeFlags(cmd, &scope)
	cmd.Flags().BoolVar(&everything, "all", false, "everybody's jobs, everywhere")
	cmd.Flags().StringVar(&why, "why", "", "why, for those who wait (required)")
	cmd.Flags().Var(&until, "until", "when it ends by itself: a time, or +2h from now; else when it is started")
	required(cmd, "why")
	return cmd
}

func (a *app) queueStart() *cobra.Command {
	var scope schema.Stop
	var everything bool
	cmd := &cobra.Command{
		Use: "start [ID]", Short: "Start jobs of a stopped queue again, named by the stop's id or by the same flags", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if given := scope != (schema.Stop{}); (len(args) == 1) == (given || everything) || given && everything {
				return usageError{fmt.Errorf("takes the stop's ID, or the flags that it was stopped with (--all for the whole pool)")}
			}
			said := ""
			return act(a, cmd, func(c *client.Client) (struct{}, error) {
				id := ""
				if len(args) == 1 {
					id, said = args[0], args[0]
				} else {
					open, err := call.Do[contract.StopList](c.ListStops(cmd.Context()))
					if err != nil {
						return struct{}{}, err
					}
					said = scope.Scope()
					for _, s := range open.Items {
						if s.Scope() == said {
							id = s.ID
						}
					}
					if id == "" {
						return struct{}{}, schema.NotFound("stop of", said)
					}
				}
				return call.Do[struct{}](c.StartQueue(cmd.Context(), id))
			}, func(struct{}) string { return "The queue of " + said + " is started." })
		},
	}
	scopeFlags(cmd, &scope)
	cmd.Flags().BoolVar(&everything, "all", false, "everybody's jobs, everywhere")
	return cmd
}
