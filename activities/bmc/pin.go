package bmc

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
)

// A BMC signs its own certificate, so what is trusted is its key: the one told, or the first one seen. A key that changes
// stops everything until an operator says so (Pool.TrustKey, or the record that all processes share); a password is never
// sent to an unknown key. Where the operator's own authority signs the certificates (Config.CA) its word is enough, and a
// key that it didn't sign must have been named.

func (c *conn) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // VerifyConnection checks the key, or the chain, on every handshake, resumed ones too
		VerifyConnection:   c.verifyKey,
	}
}

func (c *conn) setPin(pin string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pin, c.told = pin, false
	c.http.CloseIdleConnections()
}

func (c *conn) verifyKey(cs tls.ConnectionState) error {
	sum := sha256.Sum256(cs.PeerCertificates[0].RawSubjectPublicKeyInfo)
	seen := hex.EncodeToString(sum[:])
	c.mu.Lock()
	pin, told := c.pin, c.told
	c.mu.Unlock()
	if pin == seen {
		return nil
	}
	if told {
		return c.untrusted(pin, seen, "")
	}
	unsigned := c.signed(cs)
	if c.pool.cfg.CA != nil && unsigned == nil {
		return nil
	}
	// Another process may have seen the first key, or an operator may have acknowledged this one.
	err := c.pool.shared.Update(context.Background(), c.address, func(s *State) error {
		switch {
		case s.Pin == "" && c.pool.cfg.CA == nil:
			s.Pin = seen
		case s.Pin != seen:
			s.Offered = seen
		}
		pin = s.Pin
		return nil
	})
	if err != nil {
		return err
	}
	if pin != seen {
		why := ""
		if c.pool.cfg.CA != nil {
			why = fmt.Sprintf("; not signed by the operator's authority: %v", unsigned)
		}
		return c.untrusted(pin, seen, why)
	}
	c.mu.Lock()
	c.pin = pin
	c.mu.Unlock()
	if c.pool.cfg.OnPin != nil {
		c.pool.cfg.OnPin(c.address, pin)
	}
	return nil
}

func (c *conn) untrusted(pin, seen, why string) error {
	return &Error{Kind: ErrUntrusted, Address: c.address, Detail: "trusted " + orDefault(pin, "none yet") + ", got " + seen + why,
		Hint: "if the bmc was replaced or its certificate renewed, acknowledge the new key; else someone is in between"}
}

// signed checks the chain up to the operator's authority, for the address that was dialled.
func (c *conn) signed(cs tls.ConnectionState) error {
	rest := x509.NewCertPool()
	for _, x := range cs.PeerCertificates[1:] {
		rest.AddCert(x)
	}
	_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: c.pool.cfg.CA, Intermediates: rest, DNSName: c.base.Hostname()})
	return err
}
