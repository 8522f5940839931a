package allocator

import (
	"context"
	"fmt"
	"time"

	"gpupool/schema"
	"gpupool/schema/store"
)

// answer says of each job that somebody asks about what the next cycle would do with it, by the pool in memory as the last
// cycle left it. Nothing is decided, and no job is made.
func (l *live) answer(ctx context.Context) error {
	asked, err := l.db.DryRuns(ctx, l.region)
	if err != nil {
		return err
	}
	for _, q := range asked {
		var others []string
		for _, d := range q.Job.DependsOn {
			others = append(others, d.Job)
		}
		ended, err := l.db.EndedStates(ctx, others)
		if err != nil {
			return err
		}
		now := l.db.Now()
		got := l.pool.DryRun(waiting(q.Job, ended), now.Time())
		a := store.DryRunAnswer{At: now, Cycle: l.number, Starts: got.Starts, Places: places(got.Places)}
		for _, v := range got.Victims {
			a.Victims = append(a.Victims, store.DryRunVictim{Job: v.Job, Why: v.Why, GraceUntil: schema.At(v.GraceUntil), LostWork: int64(v.LostWork / time.Millisecond)})
		}
		if got.Reason != nil {
			doc, err := reasonDoc(*got.Reason)
			if err != nil {
				return err
			}
			a.Reason = &doc
		}
		if err := l.db.AnswerDryRun(ctx, q.ID, a); err != nil {
			return fmt.Errorf("answering dry run %s: %w", q.ID, err)
		}
	}
	return nil
}
