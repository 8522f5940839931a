package lease_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"gpupool/pxe/lease"
	"gpupool/pxe/pxetest"
	"gpupool/schema"
	"gpupool/schema/store"
)

// gorm keeps a goroutine for its cache of statements that no Close ends.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

const net24 = "10.0.0.0/24"

var t0 = time.Unix(1_800_000_000, 0)

func row(ip, mac string, state schema.LeaseState, until time.Time) schema.Lease {
	return schema.Lease{IP: ip, Subnet: net24, MAC: mac, State: state, OfferedAt: schema.At(t0), BoundAt: schema.At(t0), ExpiresAt: schema.At(until)}
}

// stores are the ways to keep leases; each must keep what lease.Store promises.
func stores(t *testing.T) map[string]lease.Store {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{Driver: "sqlite", DSN: filepath.Join(t.TempDir(), "db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return map[string]lease.Store{"memory": lease.NewMemory(), "database": pxetest.Leases{Store: db}}
}

func TestEveryStoreKeepsWhatAStorePromises(t *testing.T) {
	t.Parallel()
	for name, s := range stores(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			now := t0
			commit := func(what string, want error, l schema.Lease) {
				t.Helper()
				errs, err := s.Commit(ctx, now, []schema.Lease{l})
				if err != nil || len(errs) != 1 || !errors.Is(errs[0], want) {
					t.Fatalf("%s: %v %v, want %v", what, errs, err, want)
				}
			}
			is := func(what, mac, want string) {
				t.Helper()
				rows, err := s.Find(ctx, []lease.Key{{Subnet: net24, MAC: mac}})
				rows = slices.DeleteFunc(rows, func(l schema.Lease) bool { return l.Subnet != net24 || l.State == schema.LeaseDeclined })
				if err != nil || len(rows) > 1 || len(rows) == 1 != (want != "") || len(rows) == 1 && rows[0].IP != want {
					t.Fatalf("%s: %s has %v (%v), want %q", what, mac, rows, err, want)
				}
			}
			hour := now.Add(time.Hour)
			commit("a free address", nil, row("10.0.0.5", "a", schema.LeaseBound, hour))
			commit("its own address again", nil, row("10.0.0.5", "a", schema.LeaseBound, hour))
			commit("another's address", lease.ErrTaken, row("10.0.0.5", "b", schema.LeaseBound, hour))
			commit("another's address, to quarantine it", lease.ErrTaken, row("10.0.0.5", "", schema.LeaseDeclined, hour))
			is("after that", "a", "10.0.0.5")
			is("after that", "b", "")
			commit("a second address of one MAC", nil, row("10.0.0.6", "a", schema.LeaseBound, hour))
			is("the first is gone", "a", "10.0.0.6")
			if rows, err := s.Find(ctx, []lease.Key{{IPs: []string{"10.0.0.5"}}}); err != nil || len(rows) != 0 {
				t.Fatalf("the first address still has a row: %v %v", rows, err)
			}
			other := row("10.1.0.6", "a", schema.LeaseBound, hour)
			other.Subnet = "10.1.0.0/24"
			commit("an address in another subnet", nil, other)
			is("the first subnet's stays", "a", "10.0.0.6")

			commit("a declined address", nil, row("10.0.0.6", "a", schema.LeaseDeclined, hour))
			is("after its decline", "a", "")
			commit("a declined address for who declined it", lease.ErrTaken, row("10.0.0.6", "a", schema.LeaseBound, hour))
			commit("another address", nil, row("10.0.0.7", "a", schema.LeaseBound, hour))
			if rows, err := s.Find(ctx, []lease.Key{{IPs: []string{"10.0.0.6"}}}); err != nil || len(rows) != 1 || rows[0].State != schema.LeaseDeclined {
				t.Fatalf("the quarantine is gone: %+v %v", rows, err)
			}
			commit("a released address", nil, row("10.0.0.7", "a", schema.LeaseReleased, now))
			is("it is remembered", "a", "10.0.0.7")
			commit("a released address for another", nil, row("10.0.0.7", "c", schema.LeaseBound, hour))
			is("the first forgets it", "a", "")
			early := row("10.0.0.11", "f", schema.LeaseDeclined, hour.Add(24*time.Hour))
			early.BoundAt = schema.At(hour.Add(23 * time.Hour))
			commit("a quarantine by a clock that is a day ahead", nil, early)
			commit("its address, by one that is right", nil, row("10.0.0.11", "g", schema.LeaseReleased, now))

			now = hour
			commit("a quarantine that has run out", nil, row("10.0.0.6", "b", schema.LeaseBound, hour.Add(time.Hour)))
			errs, err := s.Commit(ctx, now, []schema.Lease{
				row("10.0.0.8", "d", schema.LeaseBound, hour.Add(time.Hour)), row("10.0.0.8", "e", schema.LeaseBound, hour.Add(time.Hour)), row("10.0.0.9", "e", schema.LeaseBound, hour.Add(time.Hour)),
			})
			if err != nil || errs[0] != nil || !errors.Is(errs[1], lease.ErrTaken) || errs[2] != nil {
				t.Fatalf("a batch in which two want one address: %v %v", errs, err)
			}
			rows, err := s.List(ctx, net24)
			if err != nil || len(rows) != 5 {
				t.Fatalf("%d rows, %v: %+v", len(rows), err, rows)
			}
		})
	}
}

// TestStoresAgree runs random histories against all of them at once.
func TestStoresAgree(t *testing.T) {
	t.Parallel()
	db, err := store.Open(t.Context(), store.Config{Driver: "sqlite", DSN: filepath.Join(t.TempDir(), "db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		subnet := fmt.Sprintf("10.%d.0.0/24", n) // a part of the database of its own
		all := []lease.Store{lease.NewMemory(), pxetest.Leases{Store: db}}
		now := t0
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(-20, 40).Draw(rt, "minutes")) * time.Minute)
			var batch []schema.Lease
			for range rapid.IntRange(1, 6).Draw(rt, "batch") {
				l := row(fmt.Sprintf("10.%d.0.%d", n, rapid.IntRange(1, 4).Draw(rt, "ip")), rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "mac"), rapid.SampledFrom([]schema.LeaseState{schema.LeaseBound, schema.LeaseReleased, schema.LeaseDeclined}).Draw(rt, "state"), now.Add(30*time.Minute))
				l.Subnet = subnet
				l.BoundAt = schema.At(now)
				if l.State == schema.LeaseReleased {
					l.ExpiresAt = schema.At(now)
				}
				batch = append(batch, l)
			}
			var said []string
			for _, s := range all {
				errs, err := s.Commit(context.Background(), now, batch)
				rows, err2 := s.List(context.Background(), subnet)
				sorted := map[string]schema.Lease{}
				for _, l := range rows {
					sorted[l.IP] = l
				}
				found, err3 := s.Find(context.Background(), []lease.Key{{Subnet: subnet, MAC: "a"}, {IPs: []string{fmt.Sprintf("10.%d.0.1", n)}}})
				byIP := map[string]schema.Lease{} // in no order; one that both keys ask for may be there twice
				for _, l := range found {
					if l.Subnet == subnet {
						byIP[l.IP] = l
					}
				}
				said = append(said, fmt.Sprint(errs, err, err2, err3, sorted, byIP))
			}
			if said[0] != said[1] {
				rt.Fatalf("memory   %s\ndatabase %s", said[0], said[1])
			}
		}
	})
}

// slow is a store that counts its commits and can't do two at once.
type slow struct {
	*lease.Memory
	mu      sync.Mutex
	commits int
}

func (s *slow) Commit(ctx context.Context, now time.Time, batch []schema.Lease) ([]error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commits++
	<-time.After(5 * time.Millisecond) // a disk
	return s.Memory.Commit(ctx, now, batch)
}

func TestManyClientsShareACommitAndNoneGetsAnothersAddress(t *testing.T) {
	t.Parallel()
	s := &slow{Memory: lease.NewMemory()}
	b := lease.NewBook(s, lease.Options{})
	p := lease.Pool{Subnet: net24, Prefix: netip.MustParsePrefix(net24), Ranges: []lease.Range{{From: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddr("10.0.0.254")}}}
	var wg sync.WaitGroup
	got := make([]netip.Addr, 200)
	for i := range got {
		wg.Go(func() {
			mac := fmt.Sprintf("52:54:00:00:00:%02x", i)
			ip, err := b.Offer(t.Context(), p, mac, netip.Addr{})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := b.Bind(t.Context(), p, lease.Claim{MAC: mac, IP: ip, For: time.Hour}); err != nil {
				t.Error(err)
			}
			got[i] = ip
		})
	}
	wg.Wait()
	seen := map[netip.Addr]int{}
	for i, ip := range got {
		if j, ok := seen[ip]; ok {
			t.Fatalf("%d and %d were both given %s", i, j, ip)
		}
		seen[ip] = i
	}
	if s.commits > 100 {
		t.Fatalf("%d commits for 200 leases", s.commits)
	}
}

func TestTwoServersOnOneStoreNeverGiveOneAddressTwice(t *testing.T) {
	t.Parallel()
	for name, s := range stores(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := lease.Pool{Subnet: net24, Prefix: netip.MustParsePrefix(net24), Ranges: []lease.Range{{From: netip.MustParseAddr("10.0.0.10"), To: netip.MustParseAddr("10.0.0.49")}}}
			books := []*lease.Book{lease.NewBook(s, lease.Options{}), lease.NewBook(s, lease.Options{})}
			var wg sync.WaitGroup
			var mu sync.Mutex
			holder := map[netip.Addr]string{}
			for i := range 40 { // as many as there are addresses
				wg.Go(func() {
					mac := fmt.Sprintf("52:54:00:00:00:%02x", i)
					for try := range 200 {
						b := books[(i+try)%2]
						ip, err := b.Offer(t.Context(), p, mac, netip.Addr{})
						if err != nil {
							if errors.Is(err, lease.ErrExhausted) {
								continue // the other server has offered what is left; its client will say so
							}
							t.Error(err)
							return
						}
						_, err = b.Bind(t.Context(), p, lease.Claim{MAC: mac, IP: ip, For: time.Hour})
						if errors.Is(err, lease.ErrTaken) {
							continue
						}
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						if other, ok := holder[ip]; ok && other != mac {
							t.Errorf("%s was given to %s and %s", ip, other, mac)
						}
						holder[ip] = mac
						mu.Unlock()
						return
					}
					t.Errorf("%s got no address", mac)
				})
			}
			wg.Wait()
		})
	}
}
