package allocator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

const (
	submitRounds = 8
	submitJobs   = 128 // a round's
)

// submits measures single submits, each with a key of its own, a durable transaction each, while an allocator places what comes.
// By turns with them as many plain INSERTs of the same rows are made, each with its commit and nothing else: the least that a
// durable submit can cost.
func submits(b *testing.B, f *figures, c store.Config) {
	ctx := b.Context()
	ok := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	db, err := store.Open(ctx, c)
	ok(err)
	b.Cleanup(func() { ok(db.Close()) })
	const model = "nvidia-h100-80gb"
	for i := range submitRounds * submitJobs / commitPer {
		storetest.Available(b, db, i+1, model, commitPer)
	}
	_, err = db.CreateSpec(ctx, "bench", store.NewSpec{Name: "x1", Model: model, Accelerators: 1})
	ok(err)
	_, err = db.CreateTenant(ctx, "bench", "blue", 1)
	ok(err)
	_, err = db.CreateProject(ctx, "bench", "blue", "main")
	ok(err)
	serving, stop := context.WithCancel(ctx)
	var allocates errgroup.Group
	allocates.Go(func() error {
		a := &Activities{Store: db, Holder: "bench", Log: slog.New(slog.DiscardHandler)}
		return a.Serve(serving, "eu")
	})
	defer func() {
		stop()
		if err := allocates.Wait(); !errors.Is(err, context.Canceled) {
			b.Errorf("the allocator ended with %v", err)
		}
	}()
	raw, err := openRows(c)
	ok(err)
	defer func() { _ = raw.Close() }()
	if raw.SetMaxOpenConns(commitClients); c.Driver == "sqlite" {
		raw.SetMaxOpenConns(1)
	}
	_, err = raw.ExecContext(ctx, "CREATE TABLE plain AS SELECT * FROM jobs LIMIT 0")
	ok(err)

	// together does n things, so many at a time, and gives how long each took and all.
	together := func(n int, do func(i int) error) (each []time.Duration, all time.Duration) {
		each = make([]time.Duration, n)
		began := time.Now()
		var many errgroup.Group
		many.SetLimit(commitClients)
		for i := range n {
			many.Go(func() error {
				began := time.Now()
				err := do(i)
				each[i] = time.Since(began)
				return err
			})
		}
		ok(many.Wait())
		return each, time.Since(began)
	}
	var took []time.Duration
	var ours, theirs time.Duration
	for round := range submitRounds {
		each, all := together(submitJobs, func(i int) error {
			_, created, err := db.SubmitJob(ctx, "bench", fmt.Sprint(round, " ", i), "hash", store.NewJob{Tenant: "blue", Project: "main", Spec: "x1", Nodes: 1, Command: []string{"true"}})
			if err == nil && !created {
				err = fmt.Errorf("job %d of round %d was there", i, round)
			}
			return err
		})
		took, ours = append(took, each...), ours+all
		rows, err := rowsOf(ctx, raw, fmt.Sprintf("SELECT * FROM jobs ORDER BY seq DESC LIMIT %d", submitJobs))
		ok(err)
		_, all = together(submitJobs, func(i int) error {
			q, args := manyRows("INSERT INTO plain VALUES ", rows[i:i+1], c.Driver == "postgres")
			_, err := raw.ExecContext(ctx, q, args...)
			return err
		})
		theirs += all
	}
	slices.Sort(took)
	at := func(share float64) float64 {
		return float64(took[int(share*float64(len(took)))].Microseconds()) / 1000
	}
	const n = submitRounds * submitJobs
	what := fmt.Sprintf("submits, %d at a time beside an allocator that places them", commitClients)
	f.add(b, what, n/ours.Seconds(), "1/s")
	f.add(b, what+", p50", at(0.5), "ms")
	f.add(b, what+", p99", at(0.99), "ms")
	ratio := theirs.Seconds() / ours.Seconds()
	f.beside(n/ours.Seconds(), "submits a second, "+strings.TrimPrefix(where(b), "submit "), fmt.Sprintf("INSERTs of the same rows with nothing else, a transaction each, %d at a time", commitClients), n/theirs.Seconds())
	b.ReportMetric(ratio, "of-plain-INSERTs")
}
