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

// CreateOne commits one event.
func (s *Store) CreateOne(ctx context.Context) error {
	return s.Write(ctx, func(tx *Tx) error {
		tx.Emit(schema.Event{Kind: schema.EventAudit, Subject: "test"}, nil)
		return nil
	})
}
