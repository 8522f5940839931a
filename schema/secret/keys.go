package secret

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// KeySize is the length of a key in bytes: AES-256.
const KeySize = 32

// Key is one encryption key. Its id stands beside everything it wrote and must never be given to
// another key.
type Key struct {
	ID     string
	Secret [KeySize]byte
}

// String is the key's id: a key that is logged by accident tells nothing.
func (k Key) String() string { return "key " + k.ID }

// GoString is String, for %#v.
func (k Key) GoString() string { return k.String() }

// Keys is a ring: the first writes, all read.
type Keys []Key

// keyID is what an id may be; it is kept beside what the key wrote.
var keyID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// Check refuses a ring that can't be used: no key, an id that is no id or is there twice.
func (ks Keys) Check() error {
	if len(ks) == 0 {
		return errors.New("there is no key; at least one is needed")
	}
	seen := map[string]bool{}
	for _, k := range ks {
		if !keyID.MatchString(k.ID) {
			return fmt.Errorf("key id %q must be 1 to 64 letters, digits, dots, dashes or underscores", k.ID)
		}
		if seen[k.ID] {
			return fmt.Errorf("key %s is there twice", k.ID)
		}
		seen[k.ID] = true
	}
	return nil
}

// NewKey makes a random key named by the day and four random characters.
func NewKey() Key {
	var k Key
	// crypto/rand.Read never fails; it ends the program where there is no randomness.
	_, _ = rand.Read(k.Secret[:])
	k.ID = time.Now().UTC().Format("20060102") + "-" + strings.ToLower(rand.Text()[:4])
	return k
}

// ParseKeys reads a key file: a line for each key, "id secret", the secret 32 bytes in base64, the
// writing key first. Empty lines and lines that begin with # are skipped. Errors name the line and
// never repeat a secret.
func ParseKeys(b []byte) (Keys, error) {
	var keys Keys
	seen := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("line %d has %d words; must be an id and a secret", n, len(fields))
		}
		id := fields[0]
		if !keyID.MatchString(id) {
			return nil, fmt.Errorf("line %d: the id must be 1 to 64 letters, digits, dots, dashes or underscores", n)
		}
		if seen[id] {
			return nil, fmt.Errorf("line %d: key %s is there twice", n, id)
		}
		seen[id] = true
		secret, err := base64.StdEncoding.DecodeString(fields[1])
		if err != nil || len(secret) != KeySize {
			return nil, fmt.Errorf("line %d: the secret of key %s must be %d bytes in base64", n, id, KeySize)
		}
		keys = append(keys, Key{ID: id, Secret: [KeySize]byte(secret)})
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no key in it")
	}
	return keys, nil
}

// Format writes a ring as ParseKeys reads it.
func (ks Keys) Format() []byte {
	var b bytes.Buffer
	b.WriteString("# gpupool keys: id and secret. The first writes, all read. To rotate, put a new one first\n# everywhere, and drop an old one when nothing it wrote is kept any more.\n")
	for _, k := range ks {
		fmt.Fprintf(&b, "%s %s\n", k.ID, base64.StdEncoding.EncodeToString(k.Secret[:]))
	}
	return b.Bytes()
}

// LoadKeys reads a key file. It refuses one that others than its owner and group can read.
func LoadKeys(path string) (Keys, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return nil, fmt.Errorf("keys: %s has mode %04o; others must not read it (hint: chmod 0600)", path, mode)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	keys, err := ParseKeys(b)
	if err != nil {
		return nil, fmt.Errorf("keys: %s: %w", path, err)
	}
	return keys, nil
}

// LoadOrCreateKeys reads a key file, and makes one with a new key where there is none. It is for a
// pool in one process; where several need the same keys, making one silently would make two.
//
// The file appears whole or not at all, and two processes that start at once end with the same keys.
func LoadOrCreateKeys(path string) (Keys, error) {
	keys, err := LoadKeys(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return keys, err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	f, err := os.CreateTemp(dir, ".keys-*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(Keys{NewKey()}.Format())
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	// A link, unlike a rename, doesn't replace what another process put there meanwhile.
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("keys: %w", err)
	}
	if err := syncDir(dir); err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	return LoadKeys(path)
}

// syncDir makes a new name in dir survive a power cut: without the key, what it wrote is lost.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
