package pxe_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"gpupool/pxe/boot"
	"gpupool/pxe/dhcp"
	"gpupool/pxe/lease"
	"gpupool/schema"
)

// away is a record that can be out of reach: it answers nothing, and only a caller's own patience ends the wait.
type away struct {
	lease.Store
	mu   sync.Mutex
	back chan struct{} // nil = it is there
}

func (a *away) leave() (comeBack func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	back := make(chan struct{})
	a.back = back
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.back = nil
		close(back)
	}
}

// wait returns once the record is there. What was asked while it was away is lost with its connection.
func (a *away) wait(ctx context.Context) error {
	a.mu.Lock()
	back := a.back
	a.mu.Unlock()
	if back == nil {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (a *away) Find(ctx context.Context, keys []lease.Key) ([]schema.Lease, error) {
	if err := a.wait(ctx); err != nil {
		return nil, err
	}
	return a.Store.Find(ctx, keys)
}

func (a *away) Commit(ctx context.Context, now time.Time, batch []schema.Lease) ([]error, error) {
	if err := a.wait(ctx); err != nil {
		return nil, err
	}
	return a.Store.Commit(ctx, now, batch)
}

func (a *away) List(ctx context.Context, subnet string) ([]schema.Lease, error) {
	if err := a.wait(ctx); err != nil {
		return nil, err
	}
	return a.Store.List(ctx, subnet)
}

// TestTheRecordIsAwayForHalfAMinute: while it is, nothing is promised to anybody and nothing waits for long; when it is
// back the next packet of each machine is answered, and no address is two machines'.
func TestTheRecordIsAwayForHalfAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		record := &away{Store: lease.NewMemory()}
		book := lease.NewBook(record, lease.Options{})
		s, err := dhcp.New(dhcp.Config{ServerID: netip.MustParseAddr("10.0.0.1"), ScriptURL: func(string) string { return "" }, Subnets: []dhcp.Subnet{{Prefix: netip.MustParsePrefix("10.0.0.0/16")}}}, dhcp.Deps{Inventory: known{}, Book: book})
		if err != nil {
			t.Fatal(err)
		}
		relay := dhcpv4.WithRelay(net.IPv4(10, 0, 0, 9))
		ask := func(m *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, bool) {
			r, ok := s.Answer(t.Context(), m.ToBytes(), dhcp.Arrival{})
			if !ok {
				return nil, false
			}
			a, err := dhcpv4.FromBytes(r.Bytes)
			if err != nil {
				t.Error(err)
			}
			return a, true
		}
		discover := func(i int) *dhcpv4.DHCPv4 {
			m, err := dhcpv4.NewDiscovery(net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)}, relay)
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		const machines = 200
		offers := make([]*dhcpv4.DHCPv4, machines)
		for i := range offers {
			offers[i], _ = ask(discover(i))
		}
		comeBack := record.leave()
		var isBack atomic.Bool
		var wg sync.WaitGroup
		for round := range 8 { // half a minute of clients that repeat themselves
			for i := range machines {
				wg.Go(func() {
					begun := time.Now()
					m := discover(i)
					if round%2 == 0 {
						var err error
						if m, err = dhcpv4.NewRequestFromOffer(offers[i], relay); err != nil {
							t.Error(err)
						}
					}
					if a, ok := ask(m); ok && !isBack.Load() {
						t.Errorf("machine %d was answered %s out of nothing", i, a.MessageType())
					}
					if took := time.Since(begun); took > 10*time.Second {
						t.Errorf("machine %d kept a worker for %s", i, took)
					}
				})
			}
			<-time.After(4 * time.Second)
		}
		isBack.Store(true)
		comeBack()
		wg.Wait()
		given := map[string]int{}
		for i := range machines {
			offer, ok := ask(discover(i))
			if !ok {
				t.Fatalf("machine %d is not offered anything when the record is back", i)
			}
			q, err := dhcpv4.NewRequestFromOffer(offer, relay)
			if err != nil {
				t.Fatal(err)
			}
			ack, ok := ask(q)
			if !ok || ack.MessageType() != dhcpv4.MessageTypeAck {
				t.Fatalf("machine %d is not acknowledged when the record is back: %v", i, ack)
			}
			if j, ok := given[ack.YourIPAddr.String()]; ok {
				t.Fatalf("%s was given to %d and %d", ack.YourIPAddr, j, i)
			}
			given[ack.YourIPAddr.String()] = i
		}
	})
}

// TestStrangersCannotFillTheRecord: a client that is nobody's asks for two thousand files that aren't there. It is counted,
// and little of it is kept; what servers do meanwhile is.
func TestStrangersCannotFillTheRecord(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.24", nil)
	for i := range 2000 {
		if code, text := get(t, http.DefaultClient, fmt.Sprintf("%s/files/nothing-%d", s.URL(), i)); code != http.StatusNotFound {
			t.Fatal(code, text)
		}
	}
	s.client(t, mac, "127.77.24.1").lease(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := s.Wait(ctx, func(e schema.BootEvidence) bool { return e.Kind == boot.KindAck }); err != nil {
		t.Fatal(err)
	}
	kept := len(slices.DeleteFunc(s.Evidence(), func(e schema.BootEvidence) bool { return !strings.HasPrefix(e.What, "nothing-") }))
	if kept < 100 || kept > 1000 {
		t.Errorf("%d of 2000 requests for nothing are in the record; want some hundreds", kept)
	}
	code, text := get(t, http.DefaultClient, s.URL()+"/metrics")
	if code != http.StatusOK || !strings.Contains(text, `gpupool_pxe_evidence_total{kind="http"} 2000`) || !strings.Contains(text, fmt.Sprintf("gpupool_pxe_evidence_limited_total %d", 2000-kept)) {
		t.Error("they are not all counted: ", text)
	}
}
