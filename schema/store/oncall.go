package store

import (
	"context"
	"fmt"

	"gpupool/schema"
)

// OnCall is what would wake an operator on call, beyond the [Overview], in numbers.
type OnCall struct {
	At          schema.Instant
	Epochs      map[string]int64          // of the allocators, by region: one that rises often has processes that take it from each other
	Unevaluated map[string]schema.Instant // by region: since when the queued job waits that no allocator has looked at for the longest
	BMCs        map[schema.BMCTrouble]int // servers by what is wrong with their BMC, as the watch saw it last
	Clusters    map[string]bool           // by name: whether it answers
	Behind      map[string]int64          // events that a reader of the log has yet to read, by its name
	Webhooks    map[string]int            // hooks that are "told", "failing" or "disabled"
	Checked     schema.Instant            // the books of accelerator time were compared with what was installed up to here
	Undelivered int                       // messages to webhooks that are yet to be taken
}

// ReadOnCall reads it: counts over small tables and indexes of what lives.
func (s *Store) ReadOnCall(ctx context.Context) (OnCall, error) {
	o := OnCall{At: s.Now(), Epochs: map[string]int64{}, Unevaluated: map[string]schema.Instant{}, BMCs: map[schema.BMCTrouble]int{}, Clusters: map[string]bool{},
		Behind: map[string]int64{}, Webhooks: map[string]int{"told": 0, "failing": 0, "disabled": 0}}
	head, err := s.Head(ctx)
	if err != nil {
		return o, err
	}
	type row struct {
		Key    string
		N      int64
		Reason string
	}
	for _, x := range []struct {
		q   string
		put func(row)
	}{
		{"SELECT region AS key, epoch AS n FROM allocator_epochs", func(r row) { o.Epochs[r.Key], o.Unevaluated[r.Key] = r.N, 0 }},
		// A kept reason begins with its code.
		{fmt.Sprintf(`SELECT region AS key, reason FROM jobs WHERE ended_at = 0 AND state = 'queued' AND reason LIKE '{"code":"%s"%%'`, schema.ReasonNotEvaluated), func(r row) {
			doc, _ := Reason(r.Reason)
			if old := o.Unevaluated[r.Key]; old == 0 || doc.Since < old {
				o.Unevaluated[r.Key] = doc.Since
			}
		}},
		{"SELECT b.trouble AS key, count(*) AS n FROM bmc_sightings b JOIN servers s ON s.id = b.server WHERE s.phase <> 'retired' GROUP BY b.trouble", func(r row) { o.BMCs[schema.BMCTrouble(r.Key)] = int(r.N) }},
		{"SELECT name AS key, down_since AS n FROM clusters", func(r row) { o.Clusters[r.Key] = r.N == 0 }},
		{"SELECT name AS key, seq AS n FROM cursors", func(r row) {
			if r.Key == checkCursor { // the one that counts hours
				o.Checked = schema.Instant(r.N)
				return
			}
			o.Behind[r.Key] = max(0, head-r.N)
		}},
		{"SELECT CASE WHEN disabled_at > 0 THEN 'disabled' WHEN failing_since > 0 THEN 'failing' ELSE 'told' END AS key, count(*) AS n FROM webhooks GROUP BY 1", func(r row) { o.Webhooks[r.Key] = int(r.N) }},
		{"SELECT '' AS key, count(*) AS n FROM webhook_deliveries WHERE state = 'pending'", func(r row) { o.Undelivered = int(r.N) }},
	} {
		var rows []row
		if err := s.read(ctx).Raw(x.q).Scan(&rows).Error; err != nil {
			return o, err
		}
		for _, r := range rows {
			x.put(r)
		}
	}
	return o, nil
}
