package cli

import (
	"context"
	"errors"
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

func (a *app) webhook() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List webhooks and how they fare", Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(a, cmd, func(c *client.Client) (contract.WebhookList, error) {
				return call.Do[contract.WebhookList](c.ListWebhooks(cmd.Context()))
			}, func(l contract.WebhookList) {
				now := nowInstant()
				t := newTable("ID", "NAME", "TENANT/PROJECT", "EVENTS", "URL", "STATE")
				for _, w := range l.Items {
					t.row(w.ID, w.Name, strings.TrimSuffix(w.Tenant+"/"+w.Project, "/"), strings.Join(w.Events, ","), shorten(w.URL, 40), hookState(w, now))
				}
				t.write(cmd.OutOrStdout(), "No webhooks.")
			})
		},
	}
	remove := &cobra.Command{
		Use: "delete ID|NAME", Short: "End a webhook, with what was still to be delivered", Args: exactly("ID or NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (struct{}, error) {
				return call.Do[struct{}](c.DeleteWebhook(cmd.Context(), args[0]))
			}, func(struct{}) string { return "The webhook is gone." })
		},
	}
	return group("webhook", "Webhooks: addresses that are told of events", list, a.webhookCreate(), a.webhookShow(), a.webhookTest(), a.webhookEnable(), remove)
}

// hookState is how a webhook fares, in one line.
func hookState(w schema.Webhook, now schema.Instant) string {
	switch {
	case !w.DisabledAt.IsZero():
		return "disabled " + words.Ago(w.DisabledAt, now) + ": " + w.DisabledWhy
	case !w.FailingSince.IsZero():
		return "failing since " + words.Clock(w.FailingSince, now) + ": " + w.LastError
	case w.SucceededAt.IsZero():
		return "nothing sent yet"
	}
	return "works; last taken " + words.Ago(w.SucceededAt, now)
}

func (a *app) webhookCreate() *cobra.Command {
	var in contract.NewWebhook
	cmd := &cobra.Command{
		Use: "create NAME --url URL --event KIND...", Short: "Have an address told of events; the secret that signs is shown once", Args: exactly("NAME"),
		Long: `Have an address told of events: of a tenant or project, or as an operator of the whole pool. Standard output is the secret
alone, with which the receiver checks the signatures (Standard Webhooks); it is shown this once.

Kinds are those of gpupool events: job.state, job.idle, budget.warning, repair.state, cluster.drift, ...; repair.* is all
that happens to repairs. It is told of what happens from now on. To an address mailto:NAME@HOST messages are sent as mail,
where an operator has set a mail server.`,
		Example: `  gpupool webhook create ci --url https://ci.example.org/hooks/gpupool --event job.state --tenant research > secret.txt
  gpupool webhook create oncall --url https://alerts.example.org/gpupool --event 'repair.*' --event cluster.drift --event breaker.state`,
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Name = args[0]
			return act(a, cmd, func(c *client.Client) (contract.WebhookSecret, error) {
				return call.Do[contract.WebhookSecret](c.CreateWebhook(cmd.Context(), in))
			}, func(w contract.WebhookSecret) string {
				if w.Secret == "" {
					return fmt.Sprintf("Webhook %s (%s): mail to %s.", w.Webhook.Name, w.Webhook.ID, strings.TrimPrefix(w.Webhook.URL, "mailto:"))
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "Webhook %s (%s). The secret is not shown again:\n", w.Webhook.Name, w.Webhook.ID)
				return w.Secret
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.Url, "url", "", "address that is told: https://..., or mailto:NAME@HOST (required)")
	f.StringSliceVar(&in.Events, "event", nil, "kind of event, or all of one subject such as repair.* (required; may be given again)")
	f.StringVar(&in.Tenant, "tenant", "", "only this tenant's events")
	f.StringVar(&in.Project, "project", "", "only events of jobs of this project of the tenant")
	required(cmd, "url", "event")
	return cmd
}

func (a *app) webhookShow() *cobra.Command {
	var state string
	var limit int
	var message string
	cmd := &cobra.Command{
		Use: "show ID|NAME", Short: "Show a webhook and its newest messages", Args: exactly("ID or NAME"),
		Example: `  gpupool webhook show oncall --state failed
  gpupool webhook show oncall --message msg_01k8_4711`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			if message != "" {
				d, err := call.Do[contract.DeliveryBody](c.GetDelivery(cmd.Context(), args[0], message))
				if err != nil {
					return err
				}
				return a.said(cmd, d, "%s", d.Body)
			}
			w, err := call.Do[schema.Webhook](c.GetWebhook(cmd.Context(), args[0]))
			if err != nil {
				return err
			}
			l, err := call.Do[contract.DeliveryList](c.ListDeliveries(cmd.Context(), w.ID, &contract.ListDeliveriesParams{State: opt(schema.DeliveryState(state)), Limit: &limit}))
			if err != nil {
				return err
			}
			if a.json() {
				return printJSON(cmd.OutOrStdout(), struct {
					Webhook    schema.Webhook           `json:"webhook"`
					Deliveries []schema.WebhookDelivery `json:"deliveries"`
				}{w, l.Items})
			}
			now := nowInstant()
			f := fields{cmd.OutOrStdout()}
			f.put("Webhook", w.ID+"  "+w.Name)
			f.put("URL", w.URL)
			f.put("Events", strings.Join(w.Events, ", "))
			f.put("Of", strings.TrimSuffix(w.Tenant+"/"+w.Project, "/"))
			f.put("State", hookState(w, now))
			f.put("Made", words.Clock(w.CreatedAt, now)+" by "+w.By)
			if !w.DisabledAt.IsZero() {
				f.put("Next", "gpupool webhook test "+w.Name+", then gpupool webhook enable "+w.Name)
			}
			fmt.Fprintln(cmd.OutOrStdout())
			t := newTable("MESSAGE", "KIND", "SUBJECT", "STATE", "TRIES", "LAST", "NEXT", "ANSWER")
			for _, d := range l.Items {
				next := ""
				if d.State == schema.DeliveryPending {
					next = words.Clock(d.NextAt, now)
				}
				answer := d.Error
				if answer == "" && d.Status != 0 {
					answer = strconv.Itoa(d.Status)
				}
				t.row(d.ID, string(d.Kind), d.Subject, string(d.State), strconv.Itoa(d.Tries), words.Clock(d.TriedAt, now), next, answer)
			}
			t.write(cmd.OutOrStdout(), "No messages.")
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&state, "state", "", "only messages in this state: pending, delivered, failed, dropped")
	f.StringVar(&message, "message", "", "show what this message's body was")
	f.IntVar(&limit, "limit", 20, "how many messages, 1 to 1000")
	return cmd
}

func (a *app) webhookTest() *cobra.Command {
	return &cobra.Command{
		Use: "test ID|NAME", Short: "Send a test message and say what came of it", Args: exactly("ID or NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			d, err := call.Do[schema.WebhookDelivery](c.TestWebhook(cmd.Context(), args[0]))
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
			defer cancel()
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()
			for d.State == schema.DeliveryPending {
				select {
				case <-ctx.Done():
					if err := cmd.Context().Err(); err != nil {
						return err
					}
					return &schema.Error{Code: schema.CodeUnavailable, Message: "the message was not sent within a minute", Hint: "does a process with the role worker run? gpupool webhook show " + args[0]}
				case <-tick.C:
				}
				got, err := call.Do[contract.DeliveryBody](c.GetDelivery(ctx, d.Webhook, d.ID))
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					return err
				}
				if err == nil {
					d = got.Delivery
				}
			}
			if d.State != schema.DeliveryDelivered {
				if a.json() {
					_ = printJSON(cmd.OutOrStdout(), d)
				}
				return &schema.Error{Code: schema.CodeUnavailable, Message: "the message was not taken: " + d.Error}
			}
			return a.said(cmd, d, "%s was taken: the receiver answered %d.", d.ID, d.Status)
		},
	}
}

func (a *app) webhookEnable() *cobra.Command {
	var in contract.EnableWebhook
	cmd := &cobra.Command{
		Use: "enable ID|NAME", Short: "Take a disabled webhook up again, with what has happened since", Args: exactly("ID or NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return act(a, cmd, func(c *client.Client) (schema.Webhook, error) {
				return call.Do[schema.Webhook](c.EnableWebhook(cmd.Context(), args[0], in))
			}, func(w schema.Webhook) string { return w.Name + " is told of events again." })
		},
	}
	cmd.Flags().BoolVar(&in.FromNow, "from-now", false, "drop what has gathered")
	return cmd
}
