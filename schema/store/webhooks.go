package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpupool/schema"
	"gpupool/schema/secret"
)

const (
	// MaxWebhooksPerTenant and MaxWebhooksOfPool bound how many hooks there are: each is a reader of events.
	MaxWebhooksPerTenant = 20
	MaxWebhooksOfPool    = 100

	// MaxOpenDeliveries is how many messages of one hook may wait; while there are as many no more events are taken up for
	// it, and its cursor stays.
	MaxOpenDeliveries = 1000

	// deliveriesKept is how long a message that has ended is kept.
	deliveriesKept = 7 * 24 * time.Hour
)

// NewWebhook is a webhook as it is asked for. Its URL was checked by who knows the rules.
type NewWebhook struct {
	Name, URL       string
	Events          []string // kinds, or all of one subject: "repair.*"
	Tenant, Project string
	Secret          string // that signs what is sent
}

// check says which events of the request there are none of.
func (n NewWebhook) check() error {
	if !NamePattern.MatchString(n.Name) {
		return schema.Invalid("name", n.Name, nameRight)
	}
	if strings.HasPrefix(n.Name, "whk_") {
		return schema.Invalid("name", n.Name, "a name that does not begin with whk_, as ids do")
	}
	if n.Project != "" && n.Tenant == "" {
		return schema.Invalid("project", n.Project, "nothing without a tenant")
	}
	if len(n.Events) == 0 || len(n.Events) > 50 {
		return schema.Invalid("events", len(n.Events), "1 to 50 kinds of events")
	}
	for i, e := range n.Events {
		one := schema.Webhook{Events: []string{e}}
		switch {
		case strings.HasSuffix(e, "*") && !strings.HasSuffix(e, ".*"), len(one.Kinds()) == 0:
			return schema.Invalid(fmt.Sprintf("events[%d]", i), e, "a kind of event such as job.state, or all of one subject such as repair.*")
		case strings.HasPrefix(e, "task."):
			return schema.Invalid(fmt.Sprintf("events[%d]", i), e, "an event for people: tasks are between gpupool and its agents")
		}
	}
	return nil
}

// CreateWebhook makes one. It is told of what happens from now on.
func (s *Store) CreateWebhook(ctx context.Context, by string, n NewWebhook, ring *secret.Ring) (schema.Webhook, error) {
	var w schema.Webhook
	if err := n.check(); err != nil {
		return w, err
	}
	err := s.Write(ctx, func(tx *Tx) error {
		if n.Tenant != "" {
			if err := tx.hasProject(n.Tenant, n.Project); err != nil {
				return err
			}
		}
		if err := tx.exclusive("webhooks/" + n.Tenant); err != nil {
			return err
		}
		var there []string
		if err := tx.db.Raw("SELECT name FROM webhooks WHERE tenant = ?", n.Tenant).Scan(&there).Error; err != nil {
			return err
		}
		most := MaxWebhooksPerTenant
		if n.Tenant == "" {
			most = MaxWebhooksOfPool
		}
		switch {
		case slices.Contains(there, n.Name):
			return schema.Conflict(fmt.Sprintf("there is a webhook %q already", n.Name), "delete it first, or choose another name")
		case len(there) >= most:
			return schema.Conflict(fmt.Sprintf("there are %d webhooks, the most there may be", len(there)), "delete one that is not needed")
		}
		id := NewID("whk", tx.now)
		keyID, sealed, err := ring.Seal([]byte(n.Secret), id)
		if err != nil {
			return err
		}
		w = schema.Webhook{ID: id, Name: n.Name, URL: n.URL, Events: n.Events, Tenant: n.Tenant, Project: n.Project, By: by, CreatedAt: tx.now, KeyID: keyID, Sealed: sealed}
		if err := tx.db.Raw("SELECT seq FROM event_seq WHERE one = 1").Scan(&w.Cursor).Error; err != nil {
			return err
		}
		tx.webhookEvent(w, by, "made", "")
		return tx.db.Create(&w).Error
	})
	return w, err
}

func (tx *Tx) webhookEvent(w schema.Webhook, by, act, why string) {
	tx.Emit(schema.Event{Kind: schema.EventWebhook, Subject: w.ID, Tenant: w.Tenant, By: by}, map[string]any{"name": w.Name, "act": act, "why": why})
}

// Webhooks are by tenant and name; of one tenant where it is not empty.
func (s *Store) Webhooks(ctx context.Context, tenant string) ([]schema.Webhook, error) {
	q := s.read(ctx).Order("tenant, name")
	if tenant != "" {
		q = q.Where("tenant = ?", tenant)
	}
	var out []schema.Webhook
	return out, q.Find(&out).Error
}

// Webhook finds one by id or name; one of a tenant where it is not empty.
func (s *Store) Webhook(ctx context.Context, idOrName, tenant string) (schema.Webhook, error) {
	q := s.read(ctx).Where("id = ? OR name = ?", idOrName, idOrName).Order("id")
	if tenant != "" {
		q = q.Where("tenant = ?", tenant)
	}
	var found []schema.Webhook
	switch err := q.Find(&found).Error; {
	case err != nil:
		return schema.Webhook{}, err
	case len(found) == 0:
		return schema.Webhook{}, schema.NotFound("webhook", idOrName)
	case len(found) > 1:
		return schema.Webhook{}, schema.Conflict(fmt.Sprintf("the name %q is that of %d webhooks", idOrName, len(found)), "say which by its id: gpupool webhook list")
	}
	return found[0], nil
}

// DeleteWebhook ends one, with what was still to be delivered.
func (s *Store) DeleteWebhook(ctx context.Context, by, id string) error {
	return s.Write(ctx, func(tx *Tx) error {
		var w schema.Webhook
		if err := one(tx.lock(&w, "id = ?", id), "webhook", id); err != nil {
			return err
		}
		if _, err := tx.exec("DELETE FROM webhook_deliveries WHERE webhook = ?", id); err != nil {
			return err
		}
		tx.webhookEvent(w, by, "removed", "")
		_, err := tx.exec("DELETE FROM webhooks WHERE id = ?", id)
		return err
	})
}

// EnableWebhook takes a disabled one up again, with what has happened since; or, fromNow, with what happens from now on.
// One that is enabled is tried again at once.
func (s *Store) EnableWebhook(ctx context.Context, by, id string, fromNow bool) (schema.Webhook, error) {
	var w schema.Webhook
	err := s.Write(ctx, func(tx *Tx) error {
		if err := one(tx.lock(&w, "id = ?", id), "webhook", id); err != nil {
			return err
		}
		if w.DisabledAt != 0 {
			tx.webhookEvent(w, by, "enabled", "")
		}
		w.DisabledAt, w.DisabledWhy, w.FailingSince = 0, "", 0
		if fromNow {
			if err := tx.db.Raw("SELECT seq FROM event_seq WHERE one = 1").Scan(&w.Cursor).Error; err != nil {
				return err
			}
			if _, err := tx.exec("UPDATE webhook_deliveries SET state = ?, ended_at = ? WHERE webhook = ? AND state = ?", schema.DeliveryDropped, tx.now, id, schema.DeliveryPending); err != nil {
				return err
			}
		}
		// Each has its whole time anew.
		if _, err := tx.exec("UPDATE webhook_deliveries SET first_at = 0, tries = 0, next_at = ? WHERE webhook = ? AND state = ?", tx.now, id, schema.DeliveryPending); err != nil {
			return err
		}
		return tx.db.Save(&w).Error
	})
	return w, err
}

// WebhookNews are the events after a number that a hook is to be told of, as its reader may read them, up to limit; next is
// how far that was.
func (s *Store) WebhookNews(ctx context.Context, w schema.Webhook, after int64, limit int) (news []schema.EventMessage, next int64, err error) {
	kinds := w.Kinds()
	if len(kinds) == 0 {
		head, err := s.Head(ctx)
		return nil, max(head, after), err
	}
	events, next, err := s.Events(ctx, after, limit, EventFilter{Kinds: kinds, Tenant: w.Tenant})
	if err != nil {
		return nil, after, err
	}
	var ids []string
	for _, e := range events {
		if e.Job != "" {
			ids = append(ids, e.Job)
		}
	}
	slices.Sort(ids)
	type named struct{ ID, Name, Project string }
	jobs := map[string]named{}
	if err := inParts(slices.Compact(ids), func(part []string) error {
		var some []named
		if err := s.read(ctx).Raw("SELECT id, name, project FROM jobs WHERE id IN ?", part).Scan(&some).Error; err != nil {
			return err
		}
		for _, j := range some {
			jobs[j.ID] = j
		}
		return nil
	}); err != nil {
		return nil, after, err
	}
	for _, e := range events {
		j := jobs[e.Job]
		if w.Project != "" && w.Project != j.Project || e.Subject == w.ID {
			continue // a hook is not told of itself
		}
		if w.Tenant != "" {
			e = e.ForTenant()
		}
		news = append(news, schema.EventMessage{Event: e, JobName: j.Name, Project: j.Project})
	}
	return news, next, nil
}

// QueueDeliveries keeps messages to a hook and moves its cursor, together: from here on they are delivered. Those that are
// there already are left as they are. It is false where the hook takes no more: it is gone, or disabled.
func (s *Store) QueueDeliveries(ctx context.Context, hook string, cursor int64, list []schema.WebhookDelivery) (taken bool, err error) {
	err = s.Write(ctx, func(tx *Tx) error {
		n, err := tx.exec("UPDATE webhooks SET cursor = CASE WHEN cursor < ? THEN ? ELSE cursor END WHERE id = ? AND disabled_at = 0", cursor, cursor, hook)
		if taken = n > 0; err != nil || !taken {
			return err
		}
		return tx.queueDeliveries(list)
	})
	return taken, err
}

func (tx *Tx) queueDeliveries(list []schema.WebhookDelivery) error {
	for _, d := range list {
		if _, err := tx.exec("INSERT INTO webhook_deliveries (id, webhook, event, kind, subject, body, state, at, next_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
			d.ID, d.Webhook, d.Event, d.Kind, d.Subject, d.Body, schema.DeliveryPending, tx.now, tx.now); err != nil {
			return err
		}
	}
	return nil
}

// TestWebhook queues a message that is tried once, whether or not the hook is disabled.
func (s *Store) TestWebhook(ctx context.Context, by, id string, body func(message string, at schema.Instant) (string, error)) (schema.WebhookDelivery, error) {
	var d schema.WebhookDelivery
	err := s.Write(ctx, func(tx *Tx) error {
		var w schema.Webhook
		if err := one(tx.lock(&w, "id = ?", id), "webhook", id); err != nil {
			return err
		}
		message := NewID("msg", tx.now)
		text, err := body(message, tx.now)
		if err != nil {
			return err
		}
		if err := tx.queueDeliveries([]schema.WebhookDelivery{{ID: message, Webhook: id, Kind: schema.WebhookTest, Subject: message, Body: text}}); err != nil {
			return err
		}
		tx.webhookEvent(w, by, "tested", "") // wakes who delivers
		return tx.db.Where("id = ?", message).Take(&d).Error
	})
	return d, err
}

// DueDeliveries are a hook's next messages, the oldest first, of each subject no more than one: what comes after it waits.
// Of a disabled hook only tests are due. next is when to look again where less than limit are due; 0 = nothing is pending.
func (s *Store) DueDeliveries(ctx context.Context, w schema.Webhook, limit int) (due []schema.WebhookDelivery, next schema.Instant, err error) {
	db, now := s.read(ctx), s.Now()
	only := ""
	if w.DisabledAt != 0 {
		only = " AND d.kind = '" + string(schema.WebhookTest) + "'"
	}
	const heads = ` FROM webhook_deliveries d WHERE d.webhook = ? AND d.state = 'pending' AND NOT EXISTS (
		SELECT 1 FROM webhook_deliveries e WHERE e.webhook = d.webhook AND e.subject = d.subject AND e.state = 'pending' AND e.event < d.event)`
	if err := db.Raw("SELECT d.*"+heads+only+" AND d.next_at <= ? ORDER BY d.event, d.id LIMIT ?", w.ID, now, limit).Scan(&due).Error; err != nil || len(due) == limit {
		return due, now, err
	}
	return due, next, db.Raw("SELECT coalesce(min(d.next_at), 0)"+heads+only+" AND d.next_at > ?", w.ID, now).Scan(&next).Error
}

// OpenDeliveries is how many messages of a hook wait.
func (s *Store) OpenDeliveries(ctx context.Context, hook string) (int, error) {
	var n int
	return n, s.read(ctx).Raw("SELECT count(*) FROM webhook_deliveries WHERE webhook = ? AND state = 'pending'", hook).Scan(&n).Error
}

// Tried is what came of sending one message.
type Tried struct {
	ID     string
	Status int           // of the answer; 0 = there was none
	Error  string        // empty = the receiver has it
	Again  time.Duration // until the next try, where there is one
	Gone   bool          // the receiver wants no more: 410
}

// RecordTries keeps what came of messages to a hook. A message that was not taken for giveUp is given up, and a hook that
// took none for giveUp is disabled with what waits for it.
func (s *Store) RecordTries(ctx context.Context, hook string, giveUp time.Duration, tries []Tried) error {
	return s.Write(ctx, func(tx *Tx) error {
		var w schema.Webhook
		if err := tx.lock(&w, "id = ?", hook); isNoRows(err) {
			return nil // deleted meanwhile
		} else if err != nil {
			return err
		}
		var took, gone bool
		var failed string
		for _, t := range tries {
			var d schema.WebhookDelivery
			if err := tx.db.Where("id = ?", t.ID).Take(&d).Error; isNoRows(err) {
				continue
			} else if err != nil {
				return err
			}
			if d.State != schema.DeliveryPending {
				continue
			}
			d.Tries, d.FirstAt, d.TriedAt, d.Status, d.Error = d.Tries+1, cmp.Or(d.FirstAt, tx.now), tx.now, t.Status, t.Error
			test := d.Kind == schema.WebhookTest
			switch {
			case t.Error == "":
				d.State, d.EndedAt, took = schema.DeliveryDelivered, tx.now, true
			case test:
				d.State, d.EndedAt = schema.DeliveryFailed, tx.now
			default:
				failed, gone = t.Error, gone || t.Gone
				d.NextAt = tx.now.Add(t.Again)
				if tx.now.Sub(d.FirstAt) >= giveUp && !w.FailsFor(giveUp, tx.now) {
					d.State, d.EndedAt = schema.DeliveryFailed, tx.now
				}
			}
			if _, err := tx.exec("UPDATE webhook_deliveries SET state = ?, tries = ?, first_at = ?, tried_at = ?, next_at = ?, ended_at = ?, status = ?, error = ? WHERE id = ?",
				d.State, d.Tries, d.FirstAt, d.TriedAt, d.NextAt, d.EndedAt, d.Status, d.Error, d.ID); err != nil {
				return err
			}
		}
		switch {
		case took:
			w.SucceededAt, w.FailingSince, w.LastError = tx.now, 0, failed
		case failed != "" && w.FailingSince == 0:
			w.FailingSince, w.LastError = tx.now, failed
		case failed != "":
			w.LastError = failed
		}
		why := ""
		switch {
		case w.DisabledAt != 0 || took:
		case gone:
			why = "its receiver answered 410 Gone: it wants no more"
		case failed != "" && w.FailsFor(giveUp, tx.now):
			why = fmt.Sprintf("nothing was taken for %s; last: %s", schema.Setting(giveUp), failed)
		}
		if why != "" {
			w.DisabledAt, w.DisabledWhy = tx.now, why
			tx.webhookEvent(w, "webhooks", "disabled", why)
		}
		_, err := tx.exec("UPDATE webhooks SET succeeded_at = ?, failing_since = ?, last_error = ?, disabled_at = ?, disabled_why = ? WHERE id = ?", w.SucceededAt, w.FailingSince, w.LastError, w.DisabledAt, w.DisabledWhy, w.ID)
		return err
	})
}

// Deliveries are a hook's newest messages, the newest first; of one state where it is not empty.
func (s *Store) Deliveries(ctx context.Context, hook string, state schema.DeliveryState, limit int) ([]schema.WebhookDelivery, error) {
	q := s.read(ctx).Where("webhook = ?", hook).Order("at DESC, event DESC, id DESC").Limit(limit)
	if state != "" {
		q = q.Where("state = ?", state)
	}
	var out []schema.WebhookDelivery
	return out, q.Find(&out).Error
}

// Delivery finds a message.
func (s *Store) Delivery(ctx context.Context, hook, id string) (schema.WebhookDelivery, error) {
	var d schema.WebhookDelivery
	return d, one(s.read(ctx).Where("webhook = ? AND id = ?", hook, id).Take(&d).Error, "delivery", id)
}

// PruneDeliveries forgets messages that ended a week ago.
func (s *Store) PruneDeliveries(ctx context.Context) error {
	return s.Write(ctx, func(tx *Tx) error {
		_, err := tx.exec("DELETE FROM webhook_deliveries WHERE state <> ? AND ended_at < ?", schema.DeliveryPending, tx.now.Add(-deliveriesKept))
		return err
	})
}
