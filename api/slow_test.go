package api_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"gpupool/api"
	"gpupool/api/auth"
	"gpupool/schema/store/storetest"
)

// TestABodyThatDoesNotComeIsNotWaitedFor holds with and without a credential, and where the body would not even be read.
func TestABodyThatDoesNotComeIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	p := newPool(t, func(c *api.Config) { c.BodyWithin = 200 * time.Millisecond })
	good := "Authorization: Bearer " + p.tokens[auth.Operator] + "\r\n"
	for name, c := range map[string]struct {
		path, headers string
		status        int
	}{
		"one that is read":               {"/v1/jobs", good, http.StatusBadRequest},
		"one without a credential":       {"/v1/jobs", "", http.StatusUnauthorized},
		"an agent's":                     {"/agent/v1/heartbeat", "Authorization: Agent a:1:AA\r\n", http.StatusBadRequest},
		"one to an address that is not":  {"/nowhere", "", http.StatusNotFound},
		"one under an idempotency key":   {"/v1/tenants", good + "Idempotency-Key: k\r\n", http.StatusBadRequest},
		"one that a verb may do without": {"/v1/servers/none/actions/uncordon", good, http.StatusBadRequest},
		"a bulk enrolment":               {"/v1/servers/bulk", good, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: pool\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n%s\r\n{", c.path, c.headers)
			in := bufio.NewReader(conn)
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatalf("no answer: %v", err)
			}
			if resp.StatusCode != c.status {
				t.Errorf("answered %d, want %d", resp.StatusCode, c.status)
			}
			if n, err := in.WriteTo(discard{}); err != nil || n == 0 { // until the other side closes it
				t.Errorf("%d bytes, and the connection is not closed: %v", n, err)
			}
		})
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// TestAWaitOutlastsTheTimeOfABody: the deadline is the body's alone.
func TestAWaitOutlastsTheTimeOfABody(t *testing.T) {
	t.Parallel()
	p := newPool(t, func(c *api.Config) { c.BodyWithin = 200 * time.Millisecond })
	storetest.Available(t, p.store, 1, model, 8)
	j := p.submit(aJob)
	begin := time.Now()
	a := p.op("GET", fmt.Sprintf("/v1/jobs/%s?since=%d&wait=1s", j.Id, j.Version), "{}")
	if a.status != http.StatusOK && a.status != http.StatusNotModified {
		t.Errorf("answered %d: %s", a.status, a.body)
	}
	if d := time.Since(begin); d < time.Second {
		t.Errorf("the wait ended after %s", d)
	}
}
