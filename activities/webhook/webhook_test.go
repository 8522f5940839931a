package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"go.uber.org/goleak"

	"gpupool/schema"
	"gpupool/schema/secret"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// gorm's cache of prepared statements has a goroutine that nothing can end.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

const testSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receiver is somebody's system: it checks signatures with the scheme's own library and writes down what it takes.
type receiver struct {
	t      *testing.T
	url    string
	answer atomic.Int64 // the status it answers with; 0 = 204

	mu  sync.Mutex
	got []received
}

type received struct {
	id, kind, subject string
	seq               int64
	body              string
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{t: t}
	check, err := standardwebhooks.NewWebhook(testSecret)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err == nil {
			err = check.Verify(body, q.Header)
		}
		if err != nil || q.Method != http.MethodPost || q.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %v", q.Method, q.Header, err)
		}
		if n := r.answer.Load(); n != 0 {
			w.Header().Set("Location", "http://127.0.0.1:1/elsewhere")
			w.WriteHeader(int(n))
			return
		}
		var m struct {
			Type string
			Data schema.EventMessage
		}
		if err := json.Unmarshal(body, &m); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, received{q.Header.Get("webhook-id"), m.Type, m.Data.Subject, m.Data.Seq, string(body)})
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(s.Close)
	r.url = s.URL
	return r
}

// all is what it took, once for each id, in the order of the first time.
func (r *receiver) all() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(r.got), func(x received) bool {
		was := seen[x.id]
		seen[x.id] = true
		return was
	})
}

// bench is a record and who tells its webhooks.
type bench struct {
	*testing.T
	db    *store.Store
	ring  *secret.Ring
	ahead atomic.Int64 // of the record's clock, in nanoseconds
	rules Rules
}

var loopback = Rules{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}, HTTP: true}

func newBench(t *testing.T) *bench {
	t.Parallel()
	b := &bench{T: t, ring: storetest.Ring(t), rules: loopback}
	b.db = storetest.OpenAt(t, func() time.Time { return time.Now().Add(time.Duration(b.ahead.Load())) })
	storetest.Available(t, b.db, 1, "nvidia-h100-80gb", 8)
	for _, name := range []string{"acme", "globex"} {
		b.must(b.db.CreateTenant(t.Context(), "test", name, 100))
		b.must(b.db.CreateProject(t.Context(), "test", name, "main"))
		b.must(b.db.CreateProject(t.Context(), "test", name, "other"))
	}
	b.must(b.db.CreateSpec(t.Context(), "test", store.NewSpec{Name: "h100x1", Model: "nvidia-h100-80gb", Accelerators: 1}))
	return b
}

func (b *bench) must(results ...any) {
	b.Helper()
	if err, ok := results[len(results)-1].(error); ok && err != nil {
		b.Fatal(err)
	}
}

// start serves the webhooks; the returned function ends it as a process's death does, but for what is under way.
func (b *bench) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	a := &Activities{Store: b.db, Ring: b.ring, Rules: b.rules, Log: slog.New(slog.DiscardHandler),
		Timing: Timing{First: 20 * time.Millisecond, Longest: 100 * time.Millisecond, Pause: 10 * time.Millisecond, MaxPause: 50 * time.Millisecond, Gather: 5 * time.Millisecond, GiveUp: time.Hour}}
	go func() { done <- a.run(ctx, func() {}) }()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); <-done }) }
	b.Cleanup(stop)
	return stop
}

func (b *bench) hook(name, url, tenant, project string, events ...string) schema.Webhook {
	b.Helper()
	w, err := b.db.CreateWebhook(b.Context(), "test", store.NewWebhook{Name: name, URL: url, Events: events, Tenant: tenant, Project: project, Secret: testSecret}, b.ring)
	b.must(w, err)
	return w
}

func (b *bench) submit(tenant, project string) string {
	b.Helper()
	j, _, err := b.db.SubmitJob(b.Context(), "test", "", "", store.NewJob{Tenant: tenant, Project: project, Spec: "h100x1", Nodes: 1, Command: []string{"true"}, Name: "n-" + project})
	b.must(j, err)
	return j.ID
}

func (b *bench) cancelJob(id string) {
	b.Helper()
	b.must(b.db.RequestStop(b.Context(), id, 0, schema.AttemptCancelled, "test", ""))
}

// until waits for a condition that the couriers bring about.
func (b *bench) until(what string, is func() bool) {
	b.Helper()
	end := time.After(30 * time.Second)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !is() {
		select {
		case <-look.C:
		case <-end:
			b.Fatalf("no %s", what)
		}
	}
}

func TestAHookIsToldOfItsTenantsAndItsProjectsEventsAndOfNoOthers(t *testing.T) {
	b := newBench(t)
	tenant, project, pool := newReceiver(t), newReceiver(t), newReceiver(t)
	b.hook("t", tenant.url, "acme", "", "job.submitted", "job.state")
	b.hook("p", project.url, "acme", "other", "job.*")
	b.hook("o", pool.url, "", "", "job.submitted")
	b.start()
	mine, other := b.submit("acme", "main"), b.submit("acme", "other")
	foreign := b.submit("globex", "main")
	for _, j := range []string{mine, other, foreign} {
		b.cancelJob(j)
	}
	b.until("message of all submits to the pool's hook", func() bool { return len(pool.all()) == 3 })
	b.until("messages to the tenant's hook", func() bool { return len(tenant.all()) == 4 })
	b.until("end of the project's job", func() bool {
		return slices.ContainsFunc(project.all(), func(r received) bool { return r.kind == "job.state" })
	})
	for _, r := range tenant.all() {
		if r.subject != mine && r.subject != other {
			t.Errorf("acme was told of %s", r.body)
		}
	}
	for _, r := range project.all() {
		if r.subject != other || !strings.Contains(r.body, `"project":"other"`) || !strings.Contains(r.body, `"job_name":"n-other"`) {
			t.Errorf("acme/other was told of %s", r.body)
		}
	}
	for _, r := range tenant.all() {
		if r.kind == "job.state" && !strings.Contains(r.body, `"to":"cancelled"`) {
			t.Errorf("no state in %s", r.body)
		}
	}
}

func TestAHookIsTestedTheMomentItIsMade(t *testing.T) {
	b := newBench(t)
	r := newReceiver(t)
	b.start()
	first := b.hook("first", r.url, "acme", "", "job.state")
	b.must(b.db.TestWebhook(t.Context(), "test", first.ID, func(string, schema.Instant) (string, error) {
		return `{"type":"webhook.test","data":{}}`, nil
	}))
	b.until("test message", func() bool { return len(r.all()) == 1 })
	b.until("word of it", func() bool {
		l, err := b.db.Deliveries(t.Context(), first.ID, schema.DeliveryDelivered, 10)
		b.must(l, err)
		return len(l) == 1 && l[0].Kind == schema.WebhookTest
	})
}

func TestADeadReceiverDelaysNoOtherAndMissesNothing(t *testing.T) {
	b := newBench(t)
	dead, alive := newReceiver(t), newReceiver(t)
	dead.answer.Store(503)
	hook := b.hook("dead", dead.url, "acme", "", "job.*")
	b.hook("alive", alive.url, "acme", "", "job.*")
	b.start()
	const n = 40
	for range n {
		b.cancelJob(b.submit("acme", "main"))
	}
	b.until("all messages where they are taken", func() bool { return len(alive.all()) >= 3*n })
	b.until("failing since", func() bool {
		w, err := b.db.Webhook(t.Context(), hook.ID, "")
		b.must(w, err)
		return w.FailingSince != 0 && w.LastError == "it answered 503 Service Unavailable"
	})
	want := alive.all()
	dead.answer.Store(0)
	b.until("all messages once it lives", func() bool { return len(dead.all()) == len(want) })
	// Messages of one job in order, each event once by its id.
	last := map[string]int64{}
	for _, r := range dead.all() {
		if r.seq <= last[r.subject] {
			t.Fatalf("of %s event %d came after %d", r.subject, r.seq, last[r.subject])
		}
		last[r.subject] = r.seq
	}
	w, err := b.db.Webhook(t.Context(), hook.ID, "")
	b.must(w, err)
	if w.FailingSince != 0 || w.DisabledAt != 0 {
		t.Fatalf("once it takes messages it is said to fail: %+v", w)
	}
}

func TestAMessageKeepsItsIDOverADeathAndNoneIsLost(t *testing.T) {
	b := newBench(t)
	r := newReceiver(t)
	b.hook("h", r.url, "acme", "", "job.submitted")
	submitted := map[string]bool{}
	for round := range 8 {
		stop := b.start()
		for range 15 {
			submitted[b.submit("acme", "main")] = true
		}
		if round%2 == 0 { // dies with messages under way
			b.until("a message", func() bool { return len(r.all()) > round*10 })
		}
		stop()
	}
	b.start()
	b.until("a message for each job", func() bool { return len(r.all()) >= len(submitted) })
	byID := map[string]string{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.got {
		if was, again := byID[x.id]; again && was != x.body {
			t.Fatalf("%s came with two bodies", x.id)
		}
		byID[x.id] = x.body
		delete(submitted, x.subject)
	}
	if len(submitted) != 0 || len(byID) != 120 {
		t.Fatalf("%d jobs were not told of; %d ids for 120 events", len(submitted), len(byID))
	}
}

func TestAHookThatTakesNothingIsDisabledAndEnabledAgainMissesNothing(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer int64
		why    string
		ahead  bool
	}{
		{"nothing taken for the stated time", 500, "nothing was taken for 1h; last: it answered 500 Internal Server Error", true},
		{"it wants no more", 410, "its receiver answered 410 Gone", false},
		{"redirects are not followed", 302, "nothing was taken for 1h; last: it answered 302 Found: redirects are not followed", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t)
			r := newReceiver(t)
			r.answer.Store(c.answer)
			hook := b.hook("h", r.url, "acme", "", "job.submitted")
			b.start()
			b.submit("acme", "main")
			read := func() schema.Webhook {
				w, err := b.db.Webhook(t.Context(), hook.ID, "")
				b.must(w, err)
				return w
			}
			if c.ahead {
				b.until("failure", func() bool { return read().FailingSince != 0 })
				b.ahead.Store(int64(time.Hour))
			}
			b.until("disabled hook", func() bool { return read().DisabledAt != 0 })
			if w := read(); !strings.HasPrefix(w.DisabledWhy, c.why) {
				t.Fatalf("disabled since %q, want %q", w.DisabledWhy, c.why)
			}
			events, _, err := b.db.Events(t.Context(), 0, 100, store.EventFilter{Kinds: []schema.EventKind{schema.EventWebhook}, Tenant: "acme"})
			b.must(events, err)
			if !bytes.Contains(events[len(events)-1].Data, []byte(`"act":"disabled"`)) {
				t.Fatalf("no event says that it was disabled: %s", events[len(events)-1].Data)
			}
			second := b.submit("acme", "main")
			r.answer.Store(0)
			// A test reaches it and changes nothing.
			d, err := b.db.TestWebhook(t.Context(), "test", hook.ID, func(string, schema.Instant) (string, error) { return `{"type":"webhook.test"}`, nil })
			b.must(d, err)
			b.until("test", func() bool {
				d, err = b.db.Delivery(t.Context(), hook.ID, d.ID)
				b.must(d, err)
				return d.State == schema.DeliveryDelivered
			})
			if n := len(r.all()); n != 1 || read().DisabledAt == 0 {
				t.Fatalf("a disabled hook was told %d times", n)
			}
			b.must(b.db.EnableWebhook(t.Context(), "test", hook.ID, false))
			b.until("both events", func() bool { return len(r.all()) == 3 })
			if !slices.ContainsFunc(r.all(), func(x received) bool { return x.subject == second }) {
				t.Fatalf("not told of %s, which came while it was disabled", second)
			}
		})
	}
}

func TestEnabledFromNowWhatHasGatheredIsDropped(t *testing.T) {
	b := newBench(t)
	r := newReceiver(t)
	r.answer.Store(410)
	hook := b.hook("h", r.url, "acme", "", "job.submitted")
	b.start()
	b.submit("acme", "main")
	b.until("disabled hook", func() bool {
		w, err := b.db.Webhook(t.Context(), hook.ID, "")
		b.must(w, err)
		return w.DisabledAt != 0
	})
	b.submit("acme", "main")
	r.answer.Store(0)
	b.must(b.db.EnableWebhook(t.Context(), "test", hook.ID, true))
	last := b.submit("acme", "main")
	b.until("message", func() bool { return len(r.all()) > 0 })
	if got := r.all(); len(got) != 1 || got[0].subject != last {
		t.Fatalf("told of %v, want %s alone", got, last)
	}
	list, err := b.db.Deliveries(t.Context(), hook.ID, schema.DeliveryDropped, 10)
	b.must(list, err)
	if len(list) != 1 {
		t.Fatalf("%d messages are said to be dropped, want the one that was pending", len(list))
	}
}

// A message that its receiver never takes holds up its own subject only, and is given up while others are taken.
func TestOneMessageThatIsNeverTakenIsGivenUp(t *testing.T) {
	b := newBench(t)
	var poison atomic.Value
	poison.Store("")
	var mu sync.Mutex
	taken := map[string]bool{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		if p := poison.Load().(string); p != "" && bytes.Contains(body, []byte(p)) && bytes.Contains(body, []byte(`"job.submitted"`)) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		taken[q.Header.Get("webhook-id")] = true
	}))
	t.Cleanup(s.Close)
	hook := b.hook("h", s.URL, "acme", "", "job.submitted", "job.state")
	bad := b.submit("acme", "main")
	poison.Store(bad)
	stop := b.start()
	b.cancelJob(bad)
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(taken) }
	for i := range 20 {
		b.submit("acme", "main")
		b.until("message about another job", func() bool { return count() > i })
	}
	// One that comes while nobody serves is sent beside the other: with nothing else to take for so long, the hook itself would be
	// at fault.
	stop()
	b.submit("acme", "main")
	b.ahead.Store(int64(time.Hour))
	b.start()
	b.until("end of the message that is never taken", func() bool {
		list, err := b.db.Deliveries(t.Context(), hook.ID, schema.DeliveryFailed, 10)
		b.must(list, err)
		return len(list) == 1 && list[0].Subject == bad && list[0].Status == 400
	})
	b.until("message after it", func() bool { return count() == 22 })
	if w, err := b.db.Webhook(t.Context(), hook.ID, ""); err != nil || w.DisabledAt != 0 {
		t.Fatalf("the hook was disabled for one message: %v %v", w.DisabledWhy, err)
	}
}

// Whatever a name resolves to is checked as it is connected to.
func TestWhatMustNotBeReachedIsNot(t *testing.T) {
	b := newBench(t)
	b.rules = Rules{HTTP: true}
	var reached atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(s.Close)
	hook := b.hook("h", strings.Replace(s.URL, "127.0.0.1", "localhost", 1), "acme", "", "job.submitted")
	b.start()
	b.submit("acme", "main")
	b.until("refusal", func() bool {
		w, err := b.db.Webhook(t.Context(), hook.ID, "")
		b.must(w, err)
		return strings.HasPrefix(w.LastError, "its host's address may not be reached")
	})
	if reached.Load() != 0 {
		t.Fatal("loopback was reached")
	}
}

func TestAddressesThatAreTakenAndThoseThatAreNot(t *testing.T) {
	t.Parallel()
	inside := Rules{Networks: []netip.Prefix{netip.MustParsePrefix("10.40.0.0/16")}, HTTP: true}
	for _, c := range []struct {
		rules Rules
		url   string
		taken bool
	}{
		{Rules{}, "https://hooks.example.org/x?y=1", true},
		{Rules{}, "https://hooks.example.org:8443/", true},
		{Rules{}, "https://hooks.example.org:0/", false},
		{Rules{}, "https://hooks.example.org:99999/", false},
		{Rules{}, "https://93.184.215.14/", true},
		{Rules{}, "https://[2606:2800:21f:cb07::1]/", true},
		{Rules{}, "http://hooks.example.org/", false},
		{Rules{HTTP: true}, "http://hooks.example.org/", true},
		{Rules{}, "ftp://hooks.example.org/", false},
		{Rules{}, "https://user:pass@hooks.example.org/", false},
		{Rules{}, "https://hooks.example.org/#x", false},
		{Rules{}, "https:///path", false},
		{Rules{}, "hooks.example.org", false},
		{Rules{}, "https:hooks.example.org", false},
		{Rules{}, "", false},
		{Rules{}, "https://hooks.example.org/" + strings.Repeat("a", 2000), false},
		{Rules{}, "https://127.0.0.1/", false},
		{Rules{}, "https://10.40.1.1/", false},
		{inside, "https://10.40.1.1/", true},
		{inside, "https://10.41.1.1/", false},
		{inside, "https://169.254.169.254/latest/meta-data", false},
		{Rules{}, "https://192.168.1.1/", false},
		{Rules{}, "https://172.31.0.1/", false},
		{Rules{}, "https://100.64.0.1/", false},
		{Rules{}, "https://0.0.0.0/", false},
		{Rules{}, "https://224.0.0.1/", false},
		{Rules{}, "https://255.255.255.255/", false},
		{Rules{}, "https://[::1]/", false},
		{Rules{}, "https://[::]/", false},
		{Rules{}, "https://[fe80::1]/", false},
		{Rules{}, "https://[fd00::1]/", false},
		{Rules{}, "https://[::ffff:10.0.0.1]/", false},
		{Rules{}, "https://[::ffff:169.254.169.254]/", false},
		{Rules{}, "https://[64:ff9b::7f00:1]/", false},
		{Rules{}, "https://[2002:7f00:1::1]/", false},
		{Rules{}, "https://[fd00:ec2::254]/", false},
	} {
		err := c.rules.Check(c.url)
		if (err == nil) != c.taken {
			t.Errorf("%.60s: %v, want taken %t", c.url, err, c.taken)
		}
		if err != nil && !schema.Is(err, schema.CodeInvalid) {
			t.Errorf("%.60s: %v is no error of the input", c.url, err)
		}
	}
	if err := (Rules{}).Check("https://user:pass@h/"); strings.Contains(fmt.Sprint(err), "pass") && strings.Contains(fmt.Sprint(err), "user:") {
		t.Errorf("the refusal repeats the password: %v", err)
	}
}

// The example of the Standard Webhooks specification.
func TestTheSignatureIsTheOneOfTheSpecification(t *testing.T) {
	t.Parallel()
	w, err := standardwebhooks.NewWebhook(testSecret)
	if err != nil {
		t.Fatal(err)
	}
	got, err := w.Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 0), []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; err != nil || got != want {
		t.Fatalf("%s %v, want %s", got, err, want)
	}
}

func TestTriesComeLessAndLessOftenAndNeverStop(t *testing.T) {
	t.Parallel()
	var before time.Duration
	for try := 1; try <= 200; try++ {
		d := backoff(5*time.Second, time.Hour, try)
		if d < 4*time.Second || d > 72*time.Minute {
			t.Fatalf("try %d after %s", try, d)
		}
		if try < 10 && d < before {
			t.Fatalf("try %d after %s, the one before after %s", try, d, before)
		}
		before = d
	}
}
