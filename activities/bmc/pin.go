package bmc

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
)

// A BMC signs its own certificate, so what is trusted is its key: the one told, or the first one seen. A key that changes
// stops everything until an operator says so (Pool.TrustKey); a password is never sent to an unknown key.

func (c *conn) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // the chain proves nothing here; VerifyConnection checks the key on every handshake, resumed ones too
		VerifyConnection:   c.verifyKey,
	}
}

func (c *conn) setPin(pin string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pin = pin
	c.http.CloseIdleConnections()
}

func (c *conn) verifyKey(cs tls.ConnectionState) error {
	sum := sha256.Sum256(cs.PeerCertificates[0].RawSubjectPublicKeyInfo)
	seen := hex.EncodeToString(sum[:])
	c.mu.Lock()
	pin := c.pin
	c.mu.Unlock()
	if pin == "" {
		err := c.pool.shared.Update(context.Background(), c.address, func(s *State) error {
			if s.Pin == "" {
				s.Pin = seen
			}
			pin = s.Pin
			return nil
		})
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.pin = pin
		c.mu.Unlock()
		if pin == seen && c.pool.cfg.OnPin != nil {
			c.pool.cfg.OnPin(c.address, pin)
		}
	}
	if pin != seen {
		return &Error{Kind: ErrUntrusted, Address: c.address, Detail: "pinned " + pin + ", got " + seen,
			Hint: "if the bmc was replaced or its certificate renewed, acknowledge the new key; else someone is in between"}
	}
	return nil
}
