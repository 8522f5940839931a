package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"gpupool/schema"
)

// Answer is what a request was answered, kept so that its repeat under the same key is answered the same.
type Answer struct {
	Status   int    `json:"status"`
	Type     string `json:"type"` // content type
	Location string `json:"location,omitempty"`
	Body     string `json:"body"`
}

const (
	// answersFor is how long an answer is kept.
	answersFor = 24 * time.Hour
	// abandonedAfter is when a request that was begun and not answered is taken for lost with its process: longer than any
	// request lasts. Its repeat is then done, and what it did before refuses it where it must.
	abandonedAfter = 2 * time.Minute
)

// answerScope keeps callers' keys apart from each other and from those of jobs, whose scope is a tenant: no tenant's name
// holds a space.
func answerScope(token string) string { return "token " + token }

// BeginAnswer takes a caller's key for one request, told by its hash. The answer is that of the same request before, nil
// where there is none yet; mine says that the caller is to do the request now and to end with KeepAnswer or DropAnswer.
// Neither means that the same request is being done at this moment. Another request under the key is CodeReused.
func (s *Store) BeginAnswer(ctx context.Context, token, key, hash string) (answer *Answer, mine bool, err error) {
	err = s.Write(ctx, func(tx *Tx) error {
		answer, mine = nil, false
		scope := answerScope(token)
		if _, err := tx.exec("DELETE FROM idempotency WHERE scope = ? AND at < ?", scope, tx.now.Add(-answersFor)); err != nil {
			return err
		}
		n, err := tx.exec("INSERT INTO idempotency (scope, key, body_hash, result, at) VALUES (?, ?, ?, '', ?) ON CONFLICT DO NOTHING", scope, key, hash, tx.now)
		if err != nil || n > 0 {
			mine = err == nil
			return err
		}
		var row struct {
			BodyHash, Result string
			At               schema.Instant
		}
		if err := tx.db.Raw("SELECT body_hash, result, at FROM idempotency WHERE scope = ? AND key = ?", scope, key).Scan(&row).Error; err != nil {
			return err
		}
		switch {
		case row.BodyHash != hash:
			return &schema.Error{Code: schema.CodeReused, Field: "Idempotency-Key", Message: fmt.Sprintf("%q was used for another request", key), Hint: "use a new key for a new request"}
		case row.Result != "":
			answer = &Answer{}
			return json.Unmarshal([]byte(row.Result), answer)
		case tx.now.Sub(row.At) > abandonedAfter:
			n, err := tx.exec("UPDATE idempotency SET at = ? WHERE scope = ? AND key = ? AND at = ?", tx.now, scope, key, row.At)
			mine = err == nil && n > 0
			return err
		}
		return nil
	})
	return answer, mine, err
}

// KeepAnswer keeps what the request of BeginAnswer was answered.
func (s *Store) KeepAnswer(ctx context.Context, token, key string, a Answer) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return s.Write(ctx, func(tx *Tx) error {
		_, err := tx.exec("UPDATE idempotency SET result = ? WHERE scope = ? AND key = ?", string(b), answerScope(token), key)
		return err
	})
}

// DropAnswer gives the key back: nothing was done, and trying again can help.
func (s *Store) DropAnswer(ctx context.Context, token, key string) error {
	return s.Write(ctx, func(tx *Tx) error {
		_, err := tx.exec("DELETE FROM idempotency WHERE scope = ? AND key = ? AND result = ''", answerScope(token), key)
		return err
	})
}
