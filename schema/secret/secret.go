// Package secret seals small secrets (BMC passwords, payload keys) with AES-256-GCM under a named key.
//
// Invariant: one key writes, every key in the ring reads, so that a key is rotated by adding one and sealing again.
// A sealed text is bound to its context (for a BMC: the server's id), so that it can't be moved to another row.
// Not here: where keys or sealed texts are kept.
package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// ErrUnknownKey says that a text was sealed under a key that the ring doesn't have.
var ErrUnknownKey = errors.New("sealed under a key that is not in the key file")

// Ring is an ordered set of keys; the first one seals. Safe for concurrent use.
type Ring struct {
	writer string
	keys   map[string]cipher.AEAD
}

// Parse reads a key file: one `id base64(32 bytes)` a line, the sealing key first; blank lines and # lines are skipped.
func Parse(text string) (*Ring, error) {
	r := &Ring{keys: map[string]cipher.AEAD{}}
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, enc, ok := strings.Cut(line, " ")
		key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(enc))
		if !ok || err != nil || len(key) != 32 {
			return nil, fmt.Errorf("key file line %d: want `id base64-of-32-bytes`", n+1)
		}
		if _, twice := r.keys[id]; twice {
			return nil, fmt.Errorf("key file line %d: key id %q is there twice", n+1, id)
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("key file line %d: %w", n+1, err)
		}
		if r.keys[id], err = cipher.NewGCM(block); err != nil {
			return nil, fmt.Errorf("key file line %d: %w", n+1, err)
		}
		if r.writer == "" {
			r.writer = id
		}
	}
	if r.writer == "" {
		return nil, errors.New("key file holds no key: want at least one line `id base64-of-32-bytes`")
	}
	return r, nil
}

// LoadOrCreate reads the key file at path, making one with a fresh key (mode 0600) where there is none.
func LoadOrCreate(path string) (*Ring, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		key := make([]byte, 32)
		if _, err := rand.Read(key); err != nil {
			return nil, err
		}
		b = []byte("# gpupool key file: the first key seals, all read. Losing it loses every sealed secret: back it up apart from the database.\nk1 " + base64.StdEncoding.EncodeToString(key) + "\n")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		tmp := path + ".new"
		if err := os.WriteFile(tmp, b, 0o600); err != nil {
			return nil, err
		}
		// Link refuses to replace a file that another process made meanwhile.
		if err := os.Link(tmp, path); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		_ = os.Remove(tmp)
		if b, err = os.ReadFile(path); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, fmt.Errorf("reading the key file: %w", err)
	}
	return Parse(string(b))
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
