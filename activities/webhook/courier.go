package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"gpupool/schema"
	"gpupool/schema/store"
)

const (
	// most is how many messages of one hook are under way at once.
	most = 16
	// batch is how many events are taken up at once.
	batch = 500
	// skipped is how many events that a hook does not want pass before that is kept.
	skipped = 5000
	// longestWait is how long a courier waits without looking: a wake-up may be lost with the process it was for.
	longestWait = 30 * time.Second
)

// courier serves one hook. One goroutine owns it.
type courier struct {
	a      *Activities
	t      Timing
	client *http.Client
	id     string
	topic  string

	at     int64     // events up to this one were looked at
	window int       // messages that may be under way: one after a failure, doubled with each success
	fails  int       // sends in a row that failed
	rest   time.Time // nothing is sent before, but tests
}

func newCourier(a *Activities, client *http.Client, w schema.Webhook) *courier {
	c := &courier{a: a, t: a.Timing.withDefaults(), client: client, id: w.ID, topic: store.TopicAll, window: most, at: w.Cursor}
	if w.Tenant != "" {
		c.topic = store.TopicTenant(w.Tenant)
	}
	return c
}

// serve takes up events and delivers messages until ctx ends or the hook is gone.
func (c *courier) serve(ctx context.Context) error {
	watch := c.a.Store.Watch(c.topic)
	defer watch.Close()
	for {
		w, err := c.a.Store.Webhook(ctx, c.id, "")
		if schema.Is(err, schema.CodeNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the webhook: %w", err)
		}
		more, err := c.takeUp(ctx, w)
		if err != nil {
			return fmt.Errorf("taking up events: %w", err)
		}
		sent, next, err := c.deliver(ctx, w)
		if err != nil {
			return fmt.Errorf("delivering: %w", err)
		}
		wait := longestWait
		if next != 0 {
			wait = min(wait, max(0, next.Sub(c.a.Store.Now())))
		}
		if more || sent {
			wait = 0
		}
		if err := pause(ctx, c.t.Gather); err != nil {
			return err
		}
		if wait -= c.t.Gather; wait <= 0 {
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-watch.C:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// takeUp makes messages of the next events. more says that there are more of them. A disabled hook's cursor stays, as does
// that of one that has as many open messages as it may.
func (c *courier) takeUp(ctx context.Context, w schema.Webhook) (more bool, err error) {
	if w.DisabledAt != 0 {
		c.at = w.Cursor
		return false, nil
	}
	open, err := c.a.Store.OpenDeliveries(ctx, w.ID)
	room := min(batch, store.MaxOpenDeliveries-open)
	if err != nil || room <= 0 {
		return false, err
	}
	c.at = max(c.at, w.Cursor)
	news, next, err := c.a.Store.WebhookNews(ctx, w, c.at, room)
	if err != nil {
		return false, err
	}
	list := make([]schema.WebhookDelivery, len(news))
	for i, e := range news {
		body, err := json.Marshal(message(e))
		if err != nil {
			return false, err
		}
		list[i] = schema.WebhookDelivery{ID: messageID(w.ID, e.Seq), Webhook: w.ID, Event: e.Seq, Kind: e.Kind, Subject: e.Subject, Body: string(body)}
	}
	if len(list) == 0 && next-w.Cursor < skipped {
		c.at = next
		return false, nil
	}
	taken, err := c.a.Store.QueueDeliveries(ctx, w.ID, next, list)
	if err != nil || !taken {
		return false, err
	}
	c.at = next
	return len(news) > 0, nil
}

// deliver sends what is due, side by side. next is when to look again where nothing comes before; 0 = at the next event.
func (c *courier) deliver(ctx context.Context, w schema.Webhook) (sent bool, next schema.Instant, err error) {
	now := c.a.Store.Now()
	if w.FailingSince == 0 && c.fails > 0 {
		c.fails, c.rest = 0, time.Time{} // somebody has enabled it again
	}
	rest := schema.At(c.rest)
	resting := !c.rest.IsZero() && now < rest
	if resting {
		w.DisabledAt = now // nothing but tests is due
	}
	due, next, err := c.a.Store.DueDeliveries(ctx, w, c.window)
	if resting && (next == 0 || rest < next) {
		next = rest
	}
	if err != nil || len(due) == 0 {
		return false, next, err
	}
	secret, err := c.a.Ring.Open(w.KeyID, w.Sealed, w.ID)
	if err != nil {
		return false, 0, fmt.Errorf("its secret: %w", err)
	}
	sign, err := standardwebhooks.NewWebhook(string(secret))
	if err != nil {
		return false, 0, fmt.Errorf("its secret: %w", err)
	}
	tries := make([]store.Tried, len(due))
	var wg sync.WaitGroup
	for i, d := range due {
		wg.Go(func() { tries[i] = c.send(ctx, w.URL, sign, d) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return false, 0, ctx.Err() // what was not answered is sent again, under the same id
	}
	took, failed := 0, 0
	for i, t := range tries {
		switch {
		case t.Error == "":
			took++
		case due[i].Kind != schema.WebhookTest:
			failed++
		}
	}
	switch {
	case took > 0:
		c.fails, c.window = 0, min(2*c.window, most)
	case failed > 0:
		c.fails, c.window = c.fails+1, 1
		c.rest = c.a.Store.Now().Time().Add(backoff(c.t.Pause, c.t.MaxPause, c.fails))
	}
	return true, next, c.a.Store.RecordTries(ctx, w.ID, c.t.GiveUp, tries)
}

// send tells the receiver once. What it answers but for the status is not kept: it may be what its owner could not read
// itself.
func (c *courier) send(ctx context.Context, url string, sign *standardwebhooks.Webhook, d schema.WebhookDelivery) store.Tried {
	t := store.Tried{ID: d.ID, Again: backoff(c.t.First, c.t.Longest, d.Tries+1)}
	if to, ok := strings.CutPrefix(url, mailto); ok {
		c.mail(ctx, url, to, d, &t)
		return t
	}
	at := time.Now()
	signature, err := sign.Sign(d.ID, at, []byte(d.Body))
	if err != nil {
		t.Error = err.Error()
		return t
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(d.Body))
	if err != nil {
		t.Error = "its address can't be read"
		return t
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "gpupool-webhook")
	req.Header.Set(standardwebhooks.HeaderWebhookID, d.ID)
	req.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	req.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	resp, err := c.client.Do(req)
	if err != nil {
		t.Error = words(err)
		return t
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 16<<10) // so that the connection is used again
	t.Status = resp.StatusCode
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		return t
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		t.Error = fmt.Sprintf("it answered %s: redirects are not followed", status(resp.StatusCode))
	default:
		t.Error = "it answered " + status(resp.StatusCode)
	}
	t.Gone = resp.StatusCode == http.StatusGone
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		t.Again = max(t.Again, min(time.Duration(s)*time.Second, c.t.Longest))
	}
	return t
}

// mail gives a message to the mail server. What that says but for its reply's code is the operator's to know, in the log.
func (c *courier) mail(ctx context.Context, url, to string, d schema.WebhookDelivery, t *store.Tried) {
	if err := c.a.Rules.Check(url); err != nil { // who may be written to may have changed since the hook was made
		t.Error = oneLine(err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(ctx, mailWithin)
	defer cancel()
	code, err := c.a.Rules.Mail.send(ctx, to, d)
	switch t.Status = code; {
	case err == nil:
		return
	case code > 0:
		t.Error = fmt.Sprintf("the mail server answered %d", code)
	default:
		t.Error = "the mail server does not answer, or is not the one that is trusted"
	}
	c.a.Log.Warn("a message could not be mailed", "webhook", c.id, "message", d.ID, "error", err)
}

func status(code int) string {
	return strings.TrimSpace(strconv.Itoa(code) + " " + http.StatusText(code))
}

// backoff is first, doubled with each try after the first, at most longest, give or take a fifth: receivers that failed
// together are not told together again.
func backoff(first, longest time.Duration, try int) time.Duration {
	d := min(longest, first<<min(try-1, 30))
	if d <= 0 {
		d = longest
	}
	return d*4/5 + rand.N(d*2/5+1)
}
