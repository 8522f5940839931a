// Package secret seals small secrets (BMC passwords) with AES-256-GCM under a named key, and reads and makes the key
// files of the pool: this one's and that of worker/codec, which encrypts what workflows carry.
//
// Invariant: one key writes, every key in the ring reads, so that a key is rotated by adding one and sealing again.
// A sealed text is bound to its context (for a BMC: the server's id), so that it can't be moved to another row.
// A key file appears whole or not at all, and is read by nobody but its owner and group.
// Not here: where key files or sealed texts are kept.
package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
)

// ErrUnknownKey says that a text was sealed under a key that the ring doesn't have.
var ErrUnknownKey = errors.New("sealed under a key that is not in the key file")

// Ring is an ordered set of keys; the first one seals. Safe for concurrent use.
type Ring struct {
	writer string
	keys   map[string]cipher.AEAD
}

// New makes a ring of keys, the first of which seals.
func New(keys Keys) (*Ring, error) {
	if err := keys.Check(); err != nil {
		return nil, err
	}
	r := &Ring{writer: keys[0].ID, keys: make(map[string]cipher.AEAD, len(keys))}
	for _, k := range keys {
		block, err := aes.NewCipher(k.Secret[:])
		if err != nil {
			return nil, err
		}
		if r.keys[k.ID], err = cipher.NewGCM(block); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Parse makes a ring of a key file's text; see ParseKeys.
func Parse(text string) (*Ring, error) { return ring(ParseKeys([]byte(text))) }

// Load makes a ring of the key file at path; see LoadKeys.
func Load(path string) (*Ring, error) { return ring(LoadKeys(path)) }

// LoadOrCreate is Load that makes the file where there is none; see LoadOrCreateKeys.
func LoadOrCreate(path string) (*Ring, error) { return ring(LoadOrCreateKeys(path)) }

func ring(keys Keys, err error) (*Ring, error) {
	if err != nil {
		return nil, err
	}
	return New(keys)
}

// KeyID is the id of the key that seals.
func (r *Ring) KeyID() string { return r.writer }

// Seal encrypts plain for context and returns the key's id and base64 text.
func (r *Ring) Seal(plain []byte, context string) (keyID, sealed string, err error) {
	gcm := r.keys[r.writer]
	nonce := make([]byte, gcm.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return "", "", err
	}
	return r.writer, base64.StdEncoding.EncodeToString(gcm.Seal(nonce, nonce, plain, []byte(context))), nil
}

// Open decrypts what Seal made under keyID for context.
func (r *Ring) Open(keyID, sealed, context string) ([]byte, error) {
	gcm, ok := r.keys[keyID]
	if !ok {
		return nil, fmt.Errorf("key %q: %w", keyID, ErrUnknownKey)
	}
	b, err := base64.StdEncoding.DecodeString(sealed)
	if err != nil || len(b) < gcm.NonceSize() {
		return nil, errors.New("sealed text is damaged")
	}
	plain, err := gcm.Open(nil, b[:gcm.NonceSize()], b[gcm.NonceSize():], []byte(context))
	if err != nil {
		return nil, errors.New("sealed text is damaged, or was sealed for another row")
	}
	return plain, nil
}
