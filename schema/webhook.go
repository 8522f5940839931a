package schema

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Webhook is an address that is told of events: of one tenant or project, or with no tenant of the whole pool.
type Webhook struct {
	ID        string   `gorm:"primaryKey" json:"id"`
	Name      string   `json:"name"`
	URL       string   `json:"url"`
	Events    []string `gorm:"serializer:json" json:"events"` // kinds, or all of one subject: "repair.*"
	Tenant    string   `json:"tenant"`                        // empty = the pool's
	Project   string   `json:"project"`                       // of Tenant; only events of its jobs
	By        string   `json:"by"`
	CreatedAt Instant  `gorm:"autoCreateTime:false" json:"created_at"`

	Cursor       int64   `json:"cursor"`        // events up to this one were taken up: delivered, or among its open deliveries
	SucceededAt  Instant `json:"succeeded_at"`  // last
	FailingSince Instant `json:"failing_since"` // nothing was taken since; 0 = it is not failing
	LastError    string  `json:"last_error"`
	DisabledAt   Instant `json:"disabled_at"` // 0 = it is told
	DisabledWhy  string  `json:"disabled_why"`

	KeyID  string `json:"-"` // of the ring's key that its secret is sealed with
	Sealed string `json:"-"`
}

// Wants reports whether the hook asks for events of a kind.
func (w Webhook) Wants(k EventKind) bool {
	return slices.ContainsFunc(w.Events, func(p string) bool {
		subject, all := strings.CutSuffix(p, "*")
		return all && strings.HasPrefix(string(k), subject) || p == string(k)
	})
}

// Kinds are the kinds that the hook asks for.
func (w Webhook) Kinds() []EventKind {
	return slices.DeleteFunc(slices.Clone(EventKinds), func(k EventKind) bool { return !w.Wants(k) })
}

// FailsFor reports whether nothing was taken for a time.
func (w Webhook) FailsFor(d time.Duration, now Instant) bool {
	return w.FailingSince != 0 && now.Sub(w.FailingSince) >= d
}

// DeliveryState is how far one message to a webhook has come.
type DeliveryState string

const (
	DeliveryPending   DeliveryState = "pending"
	DeliveryDelivered DeliveryState = "delivered" // its receiver answered 2xx
	DeliveryFailed    DeliveryState = "failed"    // given up
	DeliveryDropped   DeliveryState = "dropped"   // somebody enabled the hook again without what had gathered
)

// Valid reports whether s is known.
func (s DeliveryState) Valid() bool {
	return slices.Contains([]DeliveryState{DeliveryPending, DeliveryDelivered, DeliveryFailed, DeliveryDropped}, s)
}

// WebhookTest is the kind of message that a person sends to see whether a webhook works. No event has it.
const WebhookTest EventKind = "webhook.test"

// WebhookDelivery is one message to a webhook. Its id is the message's, the same at each try: receivers know by it what
// they have had before.
type WebhookDelivery struct {
	ID      string        `gorm:"primaryKey" json:"id"`
	Webhook string        `json:"webhook"`
	Event   int64         `json:"event"` // its number; 0 = a test
	Kind    EventKind     `json:"kind"`
	Subject string        `json:"subject"`
	Body    string        `json:"-"`
	State   DeliveryState `json:"state"`
	At      Instant       `json:"at"` // it was taken up
	Tries   int           `json:"tries"`
	FirstAt Instant       `json:"-"` // tried first, since the hook was enabled last
	TriedAt Instant       `json:"tried_at"`
	NextAt  Instant       `json:"next_at"` // while pending: not tried before
	EndedAt Instant       `json:"ended_at"`
	Status  int           `json:"status"` // of the last answer; 0 = there was none
	Error   string        `json:"error"`
}

// Message is what a webhook's receiver gets, as Standard Webhooks has it.
type Message struct {
	Type      EventKind `json:"type"`
	Timestamp Instant   `json:"timestamp"`
	Data      any       `json:"data"`
}

// EventMessage is an event as a webhook's receiver gets it, with what names its job.
type EventMessage struct {
	Event
	JobName string `json:"job_name,omitempty"`
	Project string `json:"project,omitempty"`
}

var (
	jobIDs    = regexp.MustCompile(`job_[0-9a-z]{26}`)
	serverIDs = regexp.MustCompile(`srv_[0-9a-z]{26}`)
)

// What stands in a tenant's reading in the place of a name that is not its to know.
const (
	AnotherJob = "another tenant's job"
	AServer    = "a server"
)

// ForTenant is an event of a tenant's own as the tenant may read it: why a job waits names no job but those of its own tenant that
// it depends on, and no server.
func (e Event) ForTenant() Event {
	if e.Kind == EventJobReason && len(e.Data) > 0 {
		var why struct{ Code ReasonCode }
		depends := json.Unmarshal(e.Data, &why) == nil && (why.Code == ReasonDependency || why.Code == ReasonDependencyFailed)
		e.Data = json.RawMessage(WithoutNames(string(e.Data), func(job string) bool { return depends || job == e.Job }))
	}
	return e
}

// WithoutNames takes ids of servers, and of jobs that are not the reader's own, out of a text. Ids hold no character that
// JSON escapes, so that the text may be a document.
func WithoutNames(text string, own func(job string) bool) string {
	return jobIDs.ReplaceAllStringFunc(serverIDs.ReplaceAllString(text, AServer), func(id string) string {
		if own(id) {
			return id
		}
		return AnotherJob
	})
}
