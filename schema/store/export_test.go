package store

import (
	"context"

	"gpupool/schema"
)

// ReadPhoto says what a picture is.
var ReadPhoto = readPhoto

// Exec runs a statement past the store's own rules, for tests of the database's.
func (s *Store) Exec(ctx context.Context, q string) error {
	_, err := s.write(ctx, func(tx *Tx) error { _, err := tx.exec(q); return err })
	return err
}

// CreateOne commits one event about a job.
func (s *Store) CreateOne(ctx context.Context, job string) error {
	return s.Write(ctx, func(tx *Tx) error {
		tx.Emit(schema.Event{Kind: schema.EventAudit, Subject: "test", Job: job}, nil)
		return nil
	})
}

// Pass is where a listener goes on that has come to at, with own as the commits of its process.
func Pass(own map[int64]int64, at int64) int64 {
	h := newHub()
	h.own = own
	return h.pass(at)
}
