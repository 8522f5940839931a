package api_test

import (
	"net/http"
	"strings"
	"testing"

	"gpupool/api"
	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
)

func TestWebhooksAreTheirTenants(t *testing.T) {
	t.Parallel()
	p := newPool(t, func(c *api.Config) {
		c.CheckWebhook = func(url string) error {
			if strings.Contains(url, "10.0.0.1") {
				return schema.Invalid("url", url, "a public address")
			}
			return nil
		}
	})
	admin := func(method, path, body string) answer { return p.send(p.tokens[auth.TenantAdmin], method, path, body) }
	made := read[contract.WebhookSecret](t, admin("POST", "/v1/webhooks", `{"name":"ci","url":"https://ci.example.org/x","events":["job.state"]}`), http.StatusCreated)
	if made.Webhook.Tenant != "acme" || !strings.HasPrefix(made.Secret, "whsec_") || len(made.Secret) != len("whsec_")+44 {
		t.Fatalf("made %+v", made)
	}
	pool := read[contract.WebhookSecret](t, p.op("POST", "/v1/webhooks", `{"name":"ops","url":"https://ops.example.org/x","events":["repair.*","cluster.drift"]}`), http.StatusCreated)
	other := read[contract.WebhookSecret](t, p.op("POST", "/v1/webhooks", `{"name":"ci","url":"https://g.example.org/x","events":["job.state"],"tenant":"globex"}`), http.StatusCreated)
	for _, path := range []string{"", "/deliveries"} {
		for _, hook := range []string{pool.Webhook.ID, other.Webhook.ID, "ops"} {
			wantProblem(t, admin("GET", "/v1/webhooks/"+hook+path, ""), schema.CodeNotFound, "")
		}
	}
	wantProblem(t, admin("DELETE", "/v1/webhooks/"+other.Webhook.ID, ""), schema.CodeNotFound, "")
	wantProblem(t, admin("POST", "/v1/webhooks/ops/actions/test", ""), schema.CodeNotFound, "")
	wantProblem(t, p.op("GET", "/v1/webhooks/ci", ""), schema.CodeConflict, "") // of two tenants
	for _, path := range []string{"/v1/webhooks", "/v1/webhooks/ci", "/v1/webhooks/ci/deliveries"} {
		if b := string(admin("GET", path, "").body); strings.Contains(b, made.Secret) || strings.Contains(b, "sealed") || strings.Contains(b, "globex") {
			t.Errorf("%s shows %s", path, b)
		}
	}
	for _, bad := range []struct{ body, field string }{
		{`{"name":"x","url":"https://10.0.0.1/","events":["job.state"]}`, "url"},
		{`{"name":"x","url":"https://a.example.org/","events":["job.started"]}`, "events[0]"},
		{`{"name":"x","url":"https://a.example.org/","events":["*"]}`, "events[0]"},
		{`{"name":"x","url":"https://a.example.org/","events":["task.ended"]}`, "events[0]"},
		{`{"name":"x","url":"https://a.example.org/","events":[]}`, "events"},
		{`{"name":"whk_1","url":"https://a.example.org/","events":["job.state"]}`, "name"},
	} {
		wantProblem(t, admin("POST", "/v1/webhooks", bad.body), schema.CodeInvalid, bad.field)
	}
	wantProblem(t, admin("POST", "/v1/webhooks", `{"name":"x","url":"https://a.example.org/","events":["job.state"],"tenant":"globex"}`), schema.CodeNotFound, "")
	wantProblem(t, admin("POST", "/v1/webhooks", `{"name":"ci","url":"https://a.example.org/","events":["job.state"]}`), schema.CodeConflict, "")
	d := read[schema.WebhookDelivery](t, admin("POST", "/v1/webhooks/ci/actions/test", ""), http.StatusAccepted)
	if got := read[contract.DeliveryBody](t, admin("GET", "/v1/webhooks/ci/deliveries/"+d.ID, ""), 200); got.Delivery.State != schema.DeliveryPending || !strings.Contains(got.Body, `"type":"webhook.test"`) {
		t.Errorf("the test is %+v", got)
	}
	if a := admin("DELETE", "/v1/webhooks/ci", ""); a.status != http.StatusNoContent {
		t.Errorf("deleting was answered %d %s", a.status, a.body)
	}
	if l := read[contract.WebhookList](t, admin("GET", "/v1/webhooks", ""), 200); len(l.Items) != 0 {
		t.Errorf("left: %+v", l.Items)
	}
	for range 20 {
		admin("POST", "/v1/webhooks", `{"name":"n`+strings.Repeat("n", len(read[contract.WebhookList](t, admin("GET", "/v1/webhooks", ""), 200).Items))+`","url":"https://a.example.org/","events":["job.state"]}`)
	}
	wantProblem(t, admin("POST", "/v1/webhooks", `{"name":"toomany","url":"https://a.example.org/","events":["job.state"]}`), schema.CodeConflict, "")
}
