package secret

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func key(id string, fill byte) Key {
	return Key{ID: id, Secret: [KeySize]byte(bytes.Repeat([]byte{fill}, KeySize))}
}

func TestKeyFiles(t *testing.T) {
	t.Parallel()
	ring := Keys{NewKey(), key("old", 7)}
	got, err := ParseKeys(ring.Format())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ring, got); diff != "" {
		t.Fatal(diff)
	}
	secret := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, KeySize))
	for name, c := range map[string]struct{ text, want string }{
		"no key":             {"# nothing\n\n", "no key"},
		"an id alone":        {"k1\n", "line 1 has 1 words"},
		"a third word":       {"\nk1 " + secret + " x", "line 2 has 3 words"},
		"a short secret":     {"k1 " + base64.StdEncoding.EncodeToString([]byte("short")), "must be 32 bytes"},
		"no base64":          {"k1 ???", "must be 32 bytes"},
		"an id twice":        {"k1 " + secret + "\nk1 " + secret, "line 2: key k1 is there twice"},
		"an id with a slash": {"a/b " + secret, "the id must be"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseKeys([]byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
			if strings.Contains(err.Error(), secret) {
				t.Fatalf("the error shows a secret: %v", err)
			}
		})
	}
	if s := fmt.Sprintf("%v %+v %#v", ring, ring, ring); strings.Contains(s, "7 7 7") || strings.Contains(s, "0x7, 0x7") {
		t.Fatalf("a printed ring shows its secrets: %s", s)
	}
}

func TestKeyFileIsMadeOnceAndKeptPrivate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "payload.keys")
	if _, err := LoadKeys(path); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("got %v", err)
	}
	// All that start at once end with the same key.
	var wg sync.WaitGroup
	rings := make([]Keys, 8)
	for i := range rings {
		wg.Go(func() {
			var err error
			if rings[i], err = LoadOrCreateKeys(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, ring := range rings[1:] {
		if diff := cmp.Diff(rings[0], ring); diff != "" {
			t.Fatal(diff)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".keys-*")); len(left) != 0 {
		t.Fatalf("left behind: %v", left)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadOrCreateKeys(path); err == nil || !strings.Contains(err.Error(), "0644") {
		t.Fatalf("a file that all can read: %v", err)
	}
}
