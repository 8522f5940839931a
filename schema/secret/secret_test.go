package secret

import (
	"errors"
	"testing"
)

func TestASealedTextOpensOnlyWholeUnderItsKeyAndForItsRow(t *testing.T) {
	t.Parallel()
	old, err := New(Keys{key("old", 1)})
	if err != nil {
		t.Fatal(err)
	}
	id, sealed, err := old.Seal([]byte("calvin"), "srv_1")
	if err != nil || id != "old" {
		t.Fatalf("sealed under %q: %v", id, err)
	}
	// A key that was put first seals; the old one still opens.
	both, err := New(Keys{key("next", 2), key("old", 1)})
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := both.Open(id, sealed, "srv_1"); err != nil || string(plain) != "calvin" || both.KeyID() != "next" {
		t.Fatalf("%q, %v, sealing with %s", plain, err, both.KeyID())
	}
	for name, try := range map[string]func() ([]byte, error){
		"for another row":   func() ([]byte, error) { return both.Open(id, sealed, "srv_2") },
		"under another key": func() ([]byte, error) { return both.Open("next", sealed, "srv_1") },
		"cut":               func() ([]byte, error) { return both.Open(id, sealed[:8], "srv_1") },
		"no base64":         func() ([]byte, error) { return both.Open(id, "?"+sealed, "srv_1") },
	} {
		if plain, err := try(); err == nil {
			t.Fatalf("%s: opened as %q", name, plain)
		}
	}
	next, err := New(Keys{key("next", 2)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := next.Open(id, sealed, "srv_1"); !errors.Is(err, ErrUnknownKey) {
		t.Fatalf("got %v, want ErrUnknownKey", err)
	}
}

func TestARingThatCannotBeUsedIsRefused(t *testing.T) {
	t.Parallel()
	for name, keys := range map[string]Keys{"no key": nil, "an id twice": {key("a", 1), key("a", 2)}, "an id with a space": {key("a b", 1)}} {
		if _, err := New(keys); err == nil {
			t.Fatalf("%s: accepted", name)
		}
	}
}
