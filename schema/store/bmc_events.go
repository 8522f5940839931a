package store

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"

	"gpupool/schema"
)

// bmcListener is the row of a server's address for pushed events. Its secret is kept as a hash: who reads the database can't
// make a BMC speak.
type bmcListener struct {
	Server     string
	SecretHash string
	MadeAt     schema.Instant
	HeardAt    schema.Instant
	Waiting    int64 // 1 = an event came that the watch has not taken
}

func secretHash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func (s *Store) bmcListener(ctx context.Context, server string) (bmcListener, error) {
	var row bmcListener
	return row, s.read(ctx).Raw("SELECT * FROM bmc_listeners WHERE server = ?", server).Scan(&row).Error
}

func (l bmcListener) opens(secret string) bool {
	return l.SecretHash != "" && subtle.ConstantTimeCompare([]byte(l.SecretHash), []byte(secretHash(secret))) == 1
}

// BMCListens reports whether a server's BMC may push events with this secret.
func (s *Store) BMCListens(ctx context.Context, server, secret string) (bool, error) {
	row, err := s.bmcListener(ctx, server)
	return row.opens(secret), err
}

// SetBMCListener makes the secret the one that a server's BMC pushes events with; an earlier one opens no more.
func (s *Store) SetBMCListener(ctx context.Context, server, secret string) error {
	return s.Write(ctx, func(tx *Tx) error {
		_, err := tx.exec(`INSERT INTO bmc_listeners (server, secret_hash, made_at) VALUES (?, ?, ?)
			ON CONFLICT (server) DO UPDATE SET secret_hash = excluded.secret_hash, made_at = excluded.made_at`, server, secretHash(secret), tx.now)
		return err
	})
}

// HeardBMC keeps that a server's BMC pushed an event, until the watch takes it. A storm of events costs one write between two
// takes. A wrong secret and an unknown server are the same CodeNotFound.
func (s *Store) HeardBMC(ctx context.Context, server, secret string) error {
	row, err := s.bmcListener(ctx, server)
	if err != nil {
		return err
	}
	if !row.opens(secret) {
		return schema.NotFound("address for events of server", server)
	}
	if row.Waiting == 1 {
		return nil
	}
	return s.Write(ctx, func(tx *Tx) error {
		_, err := tx.exec("UPDATE bmc_listeners SET waiting = 1, heard_at = ? WHERE server = ?", tx.now, server)
		return err
	})
}

// BMCHeard is when a server's BMC last pushed an event that the watch took up; 0 where it never did.
func (s *Store) BMCHeard(ctx context.Context, server string) (schema.Instant, error) {
	row, err := s.bmcListener(ctx, server)
	return row.HeardAt, err
}

// TakeBMCEvents lists the servers of a site whose BMCs pushed an event since they were taken last.
func (s *Store) TakeBMCEvents(ctx context.Context, site string) ([]string, error) {
	var out []string
	err := s.read(ctx).Raw("SELECT l.server FROM bmc_listeners l JOIN servers v ON v.id = l.server WHERE l.waiting = 1 AND v.site = ? ORDER BY l.server", site).Scan(&out).Error
	if err != nil || len(out) == 0 {
		return nil, err
	}
	return out, s.Write(ctx, func(tx *Tx) error {
		_, err := tx.exec("UPDATE bmc_listeners SET waiting = 0 WHERE waiting = 1 AND server IN ?", out)
		return err
	})
}
