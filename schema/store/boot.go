package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"gpupool/schema"
)

// HashToken is how every token is kept: hex SHA-256. Tokens are 32 random bytes, so no salt or stretching is needed.
func HashToken(token string) string {
	h := sha256.Sum256([]byte(token))
	return hex.EncodeToString(h[:])
}

// Arm lets the server's next network boot install it, under this attempt only, until ttl has passed.
func (s *Store) Arm(ctx context.Context, server string, attempt int, ttl time.Duration) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if err := current(v, attempt); err != nil {
			return err
		}
		if err := tx.destructible(v); err != nil {
			return err
		}
		_, err = tx.exec("INSERT INTO armed (server, attempt, profile, at, expires_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT (server) DO UPDATE SET attempt = excluded.attempt, profile = excluded.profile, at = excluded.at, expires_at = excluded.expires_at",
			v.ID, attempt, v.Profile, tx.now, tx.now.Add(ttl))
		return err
	})
}

// Disarm takes Arm back and revokes the attempt's tokens.
func (s *Store) Disarm(ctx context.Context, server string, attempt int) error {
	return s.Write(ctx, func(tx *Tx) error { return tx.disarm(server, attempt) })
}

func (tx *Tx) disarm(server string, attempt int) error {
	if _, err := tx.exec("DELETE FROM armed WHERE server = ? AND attempt = ?", server, attempt); err != nil {
		return err
	}
	_, err := tx.exec("UPDATE boot_tokens SET revoked_at = ? WHERE server = ? AND attempt = ? AND revoked_at = 0 AND used_at = 0", tx.now, server, attempt)
	return err
}

// Armed is the live arming of a server, if any. It holds only while the server is onboarding under that attempt.
func (s *Store) Armed(ctx context.Context, server string) (schema.Armed, bool, error) {
	var a schema.Armed
	err := s.read(ctx).Raw(`SELECT a.* FROM armed a JOIN servers s ON s.id = a.server AND s.attempt = a.attempt
		WHERE a.server = ? AND a.expires_at > ? AND s.phase = ? AND NOT s.protected`, server, s.Now(), schema.PhaseOnboarding).Scan(&a).Error
	return a, a.Server != "", err
}

// MintBootToken keeps the hash of a fresh token; an earlier one of the same server and purpose is revoked. The server
// must be armed for the attempt at this moment.
func (s *Store) MintBootToken(ctx context.Context, server string, attempt int, purpose schema.BootPurpose, hash string, ttl time.Duration) error {
	return s.Write(ctx, func(tx *Tx) error {
		var a schema.Armed
		if err := tx.lock(&a, "server = ? AND attempt = ? AND expires_at > ?", server, attempt, tx.now); err != nil {
			if isNoRows(err) {
				return schema.Stale(fmt.Sprintf("server %s is not armed for attempt %d", server, attempt))
			}
			return err
		}
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if err := current(v, attempt); err != nil {
			return err
		}
		if err := tx.destructible(v); err != nil {
			return err
		}
		if _, err := tx.exec("UPDATE boot_tokens SET revoked_at = ? WHERE server = ? AND purpose = ? AND revoked_at = 0 AND used_at = 0", tx.now, server, purpose); err != nil {
			return err
		}
		return tx.db.Create(&schema.BootToken{Hash: hash, Server: server, Attempt: attempt, Purpose: purpose, MintedAt: tx.now, ExpiresAt: tx.now.Add(ttl)}).Error
	})
}

// BootToken is a token that is good now for purpose: known, not expired, not revoked, of the server's live attempt.
// use marks it used, and a used one is refused. Every refusal is the same CodeForbidden error.
func (s *Store) BootToken(ctx context.Context, hash string, purpose schema.BootPurpose, use bool) (schema.BootToken, error) {
	var t schema.BootToken
	err := s.Write(ctx, func(tx *Tx) error {
		var err error
		t, err = tx.bootToken(hash, purpose, use)
		return err
	})
	return t, err
}

func (tx *Tx) bootToken(hash string, purpose schema.BootPurpose, use bool) (schema.BootToken, error) {
	refused := &schema.Error{Code: schema.CodeForbidden, Message: "the boot token is not good (unknown, used, expired, or of an attempt that has passed)", Hint: "start the server's onboarding again"}
	var t schema.BootToken
	if err := tx.lock(&t, "hash = ? AND purpose = ?", hash, purpose); err != nil {
		if isNoRows(err) {
			return t, refused
		}
		return t, err
	}
	if t.UsedAt != 0 || t.RevokedAt != 0 || t.ExpiresAt <= tx.now {
		return t, refused
	}
	v, err := tx.server(t.Server)
	if err != nil {
		return t, err
	}
	if current(v, t.Attempt) != nil {
		return t, refused
	}
	if use {
		t.UsedAt = tx.now
		if _, err := tx.exec("UPDATE boot_tokens SET used_at = ? WHERE hash = ?", tx.now, hash); err != nil {
			return t, err
		}
	}
	return t, nil
}

// RecordBoot keeps evidence of a boot as an event.
func (s *Store) RecordBoot(ctx context.Context, e schema.BootEvidence) error {
	return s.Write(ctx, func(tx *Tx) error {
		subject := e.Server
		if subject == "" {
			subject = e.MAC
		}
		tx.Emit(schema.Event{Kind: schema.EventBoot, Subject: subject, Server: e.Server}, e)
		return nil
	})
}
