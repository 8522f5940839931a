package api_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// agent speaks for one server, as the agent on it does.
type agent struct {
	p      *pool
	server string
	key    ed25519.PrivateKey
}

// agent onboards server n of 8 accelerators with an agent that phones home, and gives both.
func (p *pool) agent(n int) (*agent, schema.Server) {
	p.Helper()
	ctx := p.Context()
	in, err := p.store.EnrollServers(ctx, "test", storetest.Ring(p), []store.NewServer{storetest.NewServer(n, model, 8)})
	p.must(err)
	v, err := p.store.BeginOnboarding(ctx, in[0].ID, "test")
	p.must(err)
	a := p.newAgent(v.ID)
	p.must(p.store.Arm(ctx, v.ID, v.Attempt, time.Hour, 0))
	p.must(p.store.MintBootToken(ctx, v.ID, v.Attempt, schema.PurposePhoneHome, store.HashToken("t"), time.Hour))
	p.must(p.store.RegisterAgent(ctx, store.HashToken("t"), agentproto.Register{Server: v.ID, Attempt: v.Attempt, PublicKey: a.public(), BootID: "b1"}))
	a.call(http.MethodPost, agentproto.PathHeartbeat, agentproto.Heartbeat{Apart: true, BootID: "b1", Devices: storetest.Devices(v.Name, model, 8)}, http.StatusOK, nil)
	p.must(p.store.SetStep(ctx, v.ID, v.Attempt, schema.StepBurnIn, schema.StepRunning, "testing"))
	p.must(p.store.SetStep(ctx, v.ID, v.Attempt, schema.StepBurnIn, schema.StepDone, "passed"))
	p.must(p.store.FinishOnboarding(ctx, v.ID, v.Attempt))
	v, err = p.store.Server(ctx, v.ID)
	p.must(err)
	return a, v
}

func (p *pool) newAgent(server string) *agent {
	p.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	p.must(err)
	return &agent{p, server, key}
}

func (a *agent) public() string {
	return base64.StdEncoding.EncodeToString(a.key.Public().(ed25519.PublicKey))
}

// signed sends body signed as if for path at the moment, but to the address at.
func (a *agent) signed(method, at, path string, body []byte, moment time.Time) answer {
	a.p.Helper()
	req, err := http.NewRequestWithContext(a.p.Context(), method, a.p.url+at, bytes.NewReader(body))
	a.p.must(err)
	req.Header.Set("Authorization", agentproto.Sign(a.key, a.server, method, path, body, moment))
	resp, err := a.p.http.RoundTrip(req)
	a.p.must(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	a.p.must(err)
	return answer{resp.StatusCode, resp.Header, b}
}

func (a *agent) call(method, path string, in any, status int, out any) answer {
	a.p.Helper()
	var body []byte
	if in != nil {
		var err error
		body, err = json.Marshal(in)
		a.p.must(err)
	}
	got := a.signed(method, path, path, body, time.Now())
	if got.status != status {
		a.p.Fatalf("%s %s answered %d, want %d: %s", method, path, got.status, status, got.body)
	}
	if out != nil {
		a.p.must(json.Unmarshal(got.body, out))
	}
	return got
}

func TestAnAgentPhonesHomeOnceAndThenSpeaksByItsKey(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	ctx := t.Context()
	in, err := p.store.EnrollServers(ctx, "test", storetest.Ring(t), []store.NewServer{storetest.NewServer(1, model, 8)})
	p.must(err)
	v, err := p.store.BeginOnboarding(ctx, in[0].ID, "test")
	p.must(err)
	p.must(p.store.Arm(ctx, v.ID, v.Attempt, time.Hour, 0))
	const token = "phone-home-token"
	p.must(p.store.MintBootToken(ctx, v.ID, v.Attempt, schema.PurposePhoneHome, store.HashToken(token), time.Hour))
	a := p.newAgent(v.ID)
	register := func(who *agent, token string) answer {
		b, _ := json.Marshal(agentproto.Register{Server: v.ID, Attempt: v.Attempt, PublicKey: who.public(), BootID: "b1", Serial: v.Serial})
		return p.send(token, "POST", agentproto.PathRegister, string(b))
	}
	wantProblem(t, register(a, "wrong"), schema.CodeForbidden, "")
	if got := a.signed(http.MethodGet, agentproto.PathTasks, agentproto.PathTasks, nil, time.Now()); got.status != http.StatusUnauthorized {
		t.Fatalf("an agent that has not registered got %d", got.status)
	}
	if got := register(a, token); got.status != http.StatusOK || !strings.Contains(string(got.body), `"heartbeat_every_ms":5000`) {
		t.Fatalf("registering got %d %s", got.status, got.body)
	}
	if got := register(a, token); got.status != http.StatusOK { // its answer was lost, and it asks again
		t.Errorf("the same agent again got %d %s", got.status, got.body)
	}
	wantProblem(t, register(p.newAgent(v.ID), token), schema.CodeForbidden, "")

	var reply agentproto.HeartbeatReply
	a.call(http.MethodPost, agentproto.PathHeartbeat, agentproto.Heartbeat{Apart: true, BootID: "b1", Devices: storetest.Devices(v.Name, model, 8), Running: []string{"job/none/1/0000"},
		Evidence: []agentproto.Evidence{{Kind: "xid", Code: "79", Severity: schema.SeverityCritical, Text: "fell off the bus", ID: "e1"}}}, http.StatusOK, &reply)
	if len(reply.Acknowledged) != 1 || len(reply.Unknown) != 1 {
		t.Errorf("the heartbeat's reply is %+v", reply)
	}

	body, moment := []byte(`{"tasks":[]}`), time.Now()
	for name, got := range map[string]answer{
		"for another path":        a.signed(http.MethodPost, agentproto.PathHeartbeat, agentproto.PathReport, body, time.Now()),
		"for another query":       a.signed(http.MethodGet, agentproto.PathTasks+"?wait=1s", agentproto.PathTasks+"?wait=2s", nil, time.Now()),
		"of ten minutes ago":      a.signed(http.MethodPost, agentproto.PathReport, agentproto.PathReport, body, time.Now().Add(-10*time.Minute)),
		"by another key":          p.newAgent(v.ID).signed(http.MethodPost, agentproto.PathReport, agentproto.PathReport, body, time.Now()),
		"for a server that isn't": p.newAgent("srv_none").signed(http.MethodPost, agentproto.PathReport, agentproto.PathReport, body, time.Now()),
	} {
		if got.status != http.StatusUnauthorized {
			t.Errorf("a request signed %s got %d %s", name, got.status, got.body)
		}
	}
	// Recorded, and sent again as it was.
	for i, want := range []int{http.StatusOK, http.StatusServiceUnavailable, http.StatusServiceUnavailable} {
		if got := a.signed(http.MethodPost, agentproto.PathReport, agentproto.PathReport, body, moment); got.status != want {
			t.Errorf("the same request, time %d, got %d %s, want %d", i+1, got.status, got.body, want)
		}
	}
}

// Guesses and replays of a phone-home are refused alike, on record, and soon not looked at; the attempt that goes on is not
// held up by them.
func TestAPhoneHomeCanNeitherBeGuessedNorReplayed(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	ctx := t.Context()
	in, err := p.store.EnrollServers(ctx, "test", storetest.Ring(t), []store.NewServer{storetest.NewServer(1, model, 8)})
	p.must(err)
	begin := func(token string) schema.Server {
		v, err := p.store.BeginOnboarding(ctx, in[0].ID, "test")
		p.must(err)
		p.must(p.store.Arm(ctx, v.ID, v.Attempt, time.Hour, 0))
		p.must(p.store.MintBootToken(ctx, v.ID, v.Attempt, schema.PurposePhoneHome, store.HashToken(token), time.Hour))
		return v
	}
	register := func(server string, attempt int, token string) answer {
		b, err := json.Marshal(agentproto.Register{Server: server, Attempt: attempt, PublicKey: p.newAgent(server).public(), BootID: "b1"})
		p.must(err)
		return p.send(token, "POST", agentproto.PathRegister, string(b))
	}
	// An attempt whose user data somebody kept, and the next one.
	first := begin("of attempt 1")
	p.must(p.store.AbortOnboarding(ctx, first.ID, first.Attempt, "test", "again"))
	v := begin("of attempt 2")
	before := register(v.ID, 1, "of attempt 1")
	wantProblem(t, before, schema.CodeForbidden, "")
	wantProblem(t, register(v.ID, 2, "of attempt 1"), schema.CodeForbidden, "")
	wantProblem(t, register("srv_elsewhere", 2, "of attempt 2"), schema.CodeForbidden, "")
	guess := register(v.ID, 2, "a guess")
	wantProblem(t, guess, schema.CodeForbidden, "")
	if detail(t, guess) != detail(t, before) {
		t.Fatalf("a token of an earlier attempt is told apart from a guess: %s, %s", before.body, guess.body)
	}
	wantProblem(t, register("srv_\u0000\n"+strings.Repeat("x", 1000), 2, "a guess"), schema.CodeForbidden, "") // nothing of it goes into the record
	tries := 5
	for ; tries < 100; tries++ {
		if got := register(v.ID, 2, "a guess"); got.status == http.StatusTooManyRequests {
			break
		}
	}
	if tries == 100 {
		t.Fatal("a hundred guesses from one address were looked at")
	}
	if got := register(v.ID, 2, "of attempt 2"); got.status != http.StatusOK {
		t.Fatalf("the true one was answered %d beside the guesses: %s", got.status, got.body)
	}
	wantRefused := register(v.ID, 2, "of attempt 2") // by another key: it was heard on the wire
	if wantRefused.status != http.StatusForbidden && wantRefused.status != http.StatusTooManyRequests {
		t.Fatalf("a replay was answered %d: %s", wantRefused.status, wantRefused.body)
	}
	var told []schema.Event
	eventually(t, "the refusals in the audit", func() bool {
		told = nil
		ev, _, err := p.store.Events(ctx, 0, 1000, store.EventFilter{Kinds: []schema.EventKind{schema.EventAudit}})
		p.must(err)
		for _, e := range ev {
			if e.By == "phone-home" && strings.Contains(string(e.Data), `"status":403`) && strings.Contains(string(e.Data), `"address":"127.0.0.1"`) {
				told = append(told, e)
			}
		}
		return len(told) >= tries
	})
	if len(told) > tries+1 {
		t.Fatalf("%d refusals are on record, %d tries were looked at", len(told), tries)
	}
	if told[0].Subject != v.ID || told[4].Subject != "" {
		t.Fatalf("the audit names %q and %q", told[0].Subject, told[4].Subject)
	}
}

// detail is what a problem says, without what differs from request to request.
func detail(t *testing.T, a answer) string {
	t.Helper()
	var v struct{ Code, Detail, Hint string }
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatal(err)
	}
	return v.Code + v.Detail + v.Hint
}

func TestAnAgentsWaitEndsWhenThereIsWork(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	a, v := p.agent(1)
	var none []agentproto.Task
	if got := a.call(http.MethodGet, agentproto.PathTasks, nil, http.StatusOK, &none); string(got.body) != "[]" {
		t.Errorf("no work reads %s", got.body)
	}
	got := make(chan []agentproto.Task, 1)
	go func() {
		var tasks []agentproto.Task
		a.call(http.MethodGet, agentproto.PathTasks+"?wait=30s", nil, http.StatusOK, &tasks)
		got <- tasks
	}()
	p.waiting(1)
	begin := time.Now()
	p.must(p.store.QueueTask(t.Context(), schema.Task{ID: "server/x/1/inventory/1", Server: v.ID, Workflow: "server/x", Kind: schema.TaskInventory, Attempt: 1, Payload: "{}"}))
	if tasks := <-got; len(tasks) != 1 || time.Since(begin) > 2*time.Second {
		t.Fatalf("after %s it got %+v", time.Since(begin), tasks)
	}
	// Its answer was lost with the connection: within a few seconds the next wait hands the task out again.
	begin = time.Now()
	var again []agentproto.Task
	a.call(http.MethodGet, agentproto.PathTasks+"?wait=30s", nil, http.StatusOK, &again)
	if len(again) != 1 || time.Since(begin) > 2*store.RedeliverAfter {
		t.Errorf("after %s it got %+v again", time.Since(begin), again)
	}
}
