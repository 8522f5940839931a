package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/usage"
)

// meterScaleEnv divides the stated scale, a year of 100,000 accelerators with 50 million intervals; 10 where it is absent.
const meterScaleEnv = "GPUPOOL_BENCH_METER_DIVISOR"

// meter measures the books on PostgreSQL: a year of intervals, a month's report by project, a day's rollup, and the rate at
// which intervals are written and folded beside plain INSERTs of the same rows.
func meter(ctx context.Context, say func(string)) ([]Figure, error) {
	divisor := 10
	if text := os.Getenv(meterScaleEnv); text != "" {
		var err error
		if divisor, err = strconv.Atoi(text); err != nil || divisor < 1 {
			return nil, schema.Invalid(meterScaleEnv, text, "1 or more")
		}
	}
	dsn, stop, err := postgres(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	db, err := store.Open(ctx, store.Config{Driver: "postgres", DSN: dsn})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer c.Close(ctx)

	intervals, accelerators := 50_000_000/divisor, 100_000/divisor
	const day = 24 * usage.Hour
	year := schema.Instant(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli())
	end := year + 365*day
	say(fmt.Sprintf("writing a year of %d accelerators: %d intervals (the stated scale divided by %d)", accelerators, intervals, divisor))
	length := int64(accelerators) * 8760 * usage.Hour / 10 * 7 / int64(intervals) // 70 % allocated
	run := func(q string, args ...any) error {
		_, err := c.Exec(ctx, q, args...)
		return err
	}
	// Eight accelerators an attempt; 50 tenants with 10 projects each; 8 specs of 4 models in 2 regions.
	if err := run(`INSERT INTO ledger (id, kind, job, attempt, accelerator, server, tenant, project, spec, model, region, queued_at, start_at, running_at, stopping_at, end_at, outcome)
		SELECT 'job' || (i/8) || '/1/acc' || (i % $2) || '/' || i, 'usage', 'job' || (i/8), 1, 'acc' || (i % $2), 'srv' || (i % $2)/8, 't' || (i/8) % 50, 'p' || (i/8) % 10, 's' || (i/8) % 8, 'm' || (i/8) % 4, 'r' || (i/8) % 2,
		s - 60000, s, s + 30000, 0, s + $4, CASE WHEN (i/8) % 10 < 7 THEN 'completed' ELSE 'failed' END
		FROM (SELECT i, $3::bigint + ((i/8)::bigint * 8 * ((365::bigint * 86400000 - $4) / $1)) AS s FROM generate_series(0, $1::int - 1) i) x`, intervals, accelerators, int64(year), length); err != nil {
		return nil, fmt.Errorf("writing the ledger: %w", err)
	}
	say("their hourly sums")
	if err := run("SET work_mem = '256MB'"); err != nil {
		return nil, err
	}
	// The accelerators of an attempt have one interval: it is split once and counted as often.
	if err := run(`INSERT INTO usage_hours SELECT h, tenant, project, spec, model, region, outcome, sum(n * greatest(0, least(r, h + 3600000) - greatest(s, h))), sum(n * greatest(0, least(e, h + 3600000) - greatest(r, h))), 0, 0, 0,
		sum(CASE WHEN e >= h AND e < h + 3600000 THEN n ELSE 0 END) FROM (SELECT job, tenant, project, spec, model, region, outcome, min(start_at) AS s, min(running_at) AS r, min(end_at) AS e, count(*) AS n
		FROM ledger WHERE end_at < $1 GROUP BY 1, 2, 3, 4, 5, 6, 7) a, generate_series(s / 3600000 * 3600000, e, 3600000) h GROUP BY 1, 2, 3, 4, 5, 6, 7`, int64(end-day)); err != nil {
		return nil, fmt.Errorf("writing the hourly sums: %w", err)
	}
	// The log of the last day, which is what is folded below.
	if err := run(`INSERT INTO events (seq, at, kind, subject, job, data) SELECT row_number() OVER (ORDER BY e, job), e, 'job.released', job, job, '{"attempt": 1}' FROM (SELECT job, max(end_at) AS e FROM ledger WHERE end_at >= $1 GROUP BY job) x`, int64(end-day)); err != nil {
		return nil, fmt.Errorf("writing the log: %w", err)
	}
	if err := run("UPDATE event_seq SET seq = (SELECT coalesce(max(seq), 0) FROM events)"); err != nil {
		return nil, err
	}
	if err := run("ANALYZE"); err != nil {
		return nil, err
	}
	var lastDay int
	if err := c.QueryRow(ctx, "SELECT count(*) FROM ledger WHERE end_at >= $1", int64(end-day)).Scan(&lastDay); err != nil {
		return nil, err
	}
	say(fmt.Sprintf("a day's rollup: %d intervals", lastDay))
	begin := time.Now()
	if err := db.CatchUpUsage(ctx); err != nil {
		return nil, err
	}
	rollup := time.Since(begin).Seconds()

	say("a month's report by project")
	zone, err := usage.Zone("Europe/Berlin")
	if err != nil {
		return nil, err
	}
	month, err := usage.Month("2025-06", zone)
	if err != nil {
		return nil, err
	}
	q := store.UsageQuery{From: month.Start, To: month.End, By: []string{"tenant", "project"}}
	begin = time.Now()
	rows, err := db.Usage(ctx, q)
	if err != nil {
		return nil, err
	}
	report := time.Since(begin).Seconds()
	var sum, ledger int64
	for _, r := range rows {
		sum += r.Used()
	}
	begin = time.Now()
	if err := c.QueryRow(ctx, "SELECT sum(least(end_at, $2) - greatest(start_at, $1))::bigint FROM ledger WHERE end_at > $1 AND start_at < $2", int64(month.Start), int64(month.End)).Scan(&ledger); err != nil {
		return nil, err
	}
	direct := time.Since(begin).Seconds()
	if sum != ledger || len(rows) == 0 {
		return nil, fmt.Errorf("the report sums to %d GPU-ms, the ledger to %d", sum, ledger)
	}

	say("writing intervals beside plain INSERTs")
	plain, ours, err := ingest(ctx, c, db, int64(end))
	if err != nil {
		return nil, err
	}
	scale := fmt.Sprintf(" (%d intervals a year)", intervals)
	two, five := 2.0, 5.0
	held := func(v, most float64) *bool { h := v < most; return &h }
	ratio := ours / plain
	faster := direct / report
	return []Figure{
		{Group: "meter", Name: "monthly report by project" + scale, Value: report, Unit: "s", Peer: "one sum over the ledger", PeerValue: &direct, Ratio: &faster, Goal: &two, Holds: held(report, two)},
		{Group: "meter", Name: fmt.Sprintf("a day's rollup of %d intervals", lastDay), Value: rollup, Unit: "s", Goal: &five, Holds: held(rollup, five)},
		{Group: "meter", Name: "intervals written to the ledger and folded", Value: ours, Unit: "rows/s", Peer: "plain INSERT of the same rows", PeerValue: &plain, Ratio: &ratio},
	}, nil
}

// ingest writes the same rows twice, 200 a statement: to a table of its own without an index but the key, and to the ledger
// with its guards and indexes, which is then folded.
func ingest(ctx context.Context, c *pgx.Conn, db *store.Store, at int64) (plain, ours float64, err error) {
	const n, batch = 20_000, 200
	if _, err := c.Exec(ctx, "CREATE TABLE plain (id TEXT PRIMARY KEY, kind TEXT, job TEXT, attempt INT, accelerator TEXT, server TEXT, tenant TEXT, project TEXT, spec TEXT, model TEXT, region TEXT, start_at BIGINT, running_at BIGINT, stopping_at BIGINT, end_at BIGINT, outcome TEXT)"); err != nil {
		return 0, 0, err
	}
	write := func(table string) (float64, error) {
		begin := time.Now()
		for i := 0; i < n; i += batch {
			var b strings.Builder
			args := make([]any, 0, 6*batch)
			b.WriteString("INSERT INTO " + table + " (id, kind, job, attempt, accelerator, server, tenant, project, spec, model, region, start_at, running_at, stopping_at, end_at, outcome) VALUES ")
			for k := range batch {
				p := len(args)
				fmt.Fprintf(&b, "($%d, 'usage', $%d, 1, $%d, 'srv', $%d, 'p1', 's1', 'm1', 'r1', $%d, $%d, 0, $%d, 'completed'),", p+1, p+2, p+3, p+4, p+5, p+6, p+7)
				job := fmt.Sprintf("new%d", (i+k)/8)
				args = append(args, fmt.Sprintf("%s/%d", job, i+k), job, fmt.Sprintf("acc%d", k), fmt.Sprintf("t%d", k%50), at, at+30_000, at+7_200_000)
			}
			if _, err := c.Exec(ctx, strings.TrimSuffix(b.String(), ","), args...); err != nil {
				return 0, err
			}
		}
		return time.Since(begin).Seconds(), nil
	}
	p, err := write("plain")
	if err != nil {
		return 0, 0, err
	}
	o, err := write("ledger")
	if err != nil {
		return 0, 0, err
	}
	if _, err := c.Exec(ctx, fmt.Sprintf(`INSERT INTO events (seq, at, kind, subject, job, data) SELECT (SELECT seq FROM event_seq) + g + 1, %d, 'job.released', 'new' || g, 'new' || g, '{"attempt": 1}' FROM generate_series(0, %d) g`, at, n/8-1)); err != nil {
		return 0, 0, err
	}
	if _, err := c.Exec(ctx, "UPDATE event_seq SET seq = (SELECT max(seq) FROM events)"); err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	if err := db.CatchUpUsage(ctx); err != nil {
		return 0, 0, err
	}
	return n / p, n / (o + time.Since(begin).Seconds()), nil
}
