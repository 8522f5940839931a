package bmc_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

// keeps says yes to the address there is, and gives to where there is none.
func keeps(to string) func(context.Context, string) (string, error) {
	return func(_ context.Context, have string) (string, error) {
		if have != "" {
			return have, nil
		}
		return to, nil
	}
}

func TestEveryMachinePushesItsEventsToOneAddressOfOurs(t *testing.T) {
	t.Parallel()
	got := make(chan string, 10)
	listener := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- r.URL.Path + " " + string(b)
	}))
	defer listener.Close()
	for _, name := range lab.ProfileNames() {
		s := serve(t, profile(t, name), lab.Hooks{})
		c, ctx := dial(t, s), t.Context()
		if err := c.Subscribe(ctx, "someone else's", keeps(listener.URL+"/other")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for range 2 { // the second has nothing to send
			if err := c.Subscribe(ctx, "ours", keeps(listener.URL+"/"+name)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if subs := s.Subscriptions(); len(subs) != 2 {
			t.Fatalf("%s: %v", name, subs)
		}
		if _, err := s.AddLogEntry(s.SystemPath()+"/LogServices/EventLog", lab.Doc{"Message": "it happened on " + name}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			select {
			case e := <-got:
				if !strings.HasPrefix(e, "/"+name+" ") && !strings.HasPrefix(e, "/other ") || !strings.Contains(e, "it happened on "+name) {
					t.Fatalf("%s: %s", name, e)
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("%s: no event came", name)
			}
		}
		// An address that holds no more is replaced, without a moment in which there is none.
		moved := func(context.Context, string) (string, error) { return listener.URL + "/moved", nil }
		if err := c.Subscribe(ctx, "ours", moved); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if subs := s.Subscriptions(); !slices.Equal(slices.Sorted(slices.Values(subs)), []string{listener.URL + "/moved", listener.URL + "/other"}) {
			t.Fatalf("%s: %v", name, subs)
		}
		// A BMC that restarts forgets them.
		if err := c.ResetBMC(ctx); err != nil {
			t.Fatal(err)
		}
		if err := c.Subscribe(ctx, "ours", keeps(listener.URL+"/"+name)); err != nil || len(s.Subscriptions()) != 1 {
			t.Fatalf("%s: %v, %v", name, err, s.Subscriptions())
		}
		for range 2 {
			if err := c.Unsubscribe(ctx, "ours"); err != nil || len(s.Subscriptions()) != 0 {
				t.Fatalf("%s: %v, %v", name, err, s.Subscriptions())
			}
		}
		bad := slices.DeleteFunc(refusals(s), func(r string) bool { return strings.HasSuffix(r, "-> 401") }) // the restart ended the session
		if len(bad) > 0 {
			t.Errorf("%s refused: %v", name, bad)
		}
	}
}

func TestEveryCapturedTreeIsSubscribedToOrSaysThatItPushesNothing(t *testing.T) {
	t.Parallel()
	none := map[string]bool{"dell": true, "gb300_hgx": true} // its event service is switched off; it has none
	for _, name := range capturedNames {
		s := serve(t, captured(t, name), lab.Hooks{})
		c := dial(t, s, fast)
		err := c.Subscribe(t.Context(), "ours", keeps("https://192.0.2.1/x"))
		if none[name] != errors.Is(err, bmc.ErrUnsupported) || !none[name] && err != nil || (len(s.Subscriptions()) == 1) == none[name] {
			t.Errorf("%s: %v, %v", name, err, s.Subscriptions())
		}
		if err := c.Unsubscribe(t.Context(), "ours"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if bad := refusals(s); bad != nil {
			t.Errorf("%s refused: %v", name, bad)
		}
	}
}

// The address is what lets its sender in: no error may carry it.
func TestARefusedSubscriptionDoesNotTellTheAddress(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.HPE), lab.Hooks{})
	s.AddFault(lab.Fault{Method: "POST", Path: "/redfish/v1/EventService/Subscriptions", Status: 400,
		Replace: []byte(`{"error":{"@Message.ExtendedInfo":[{"MessageId":"Base.1.0.PropertyValueFormatError","Message":"The value https://pool/secret for the property Destination","MessageArgs":["https://pool/secret"]}]}}`)})
	err := dial(t, s).Subscribe(t.Context(), "ours", keeps("https://pool/secret"))
	if !errors.Is(err, bmc.ErrRefused) || strings.Contains(err.Error(), "pool/secret") {
		t.Fatalf("error %v", err)
	}
}
