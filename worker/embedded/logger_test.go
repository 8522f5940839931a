package embedded

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"strings"
	"testing"

	"go.temporal.io/server/common/log/tag"
)

func TestFatalEndsTheGoroutineNotTheProcess(t *testing.T) {
	t.Parallel()
	s := &Server{condition: newCondition()}
	s.condition.built.Store(true)
	if err := s.Err(); err != nil {
		t.Fatalf("a server that is well has the error %v", err)
	}
	ended := make(chan struct{})
	returned := false
	go func() {
		defer close(ended)
		logger{to: quiet(), server: s.condition}.Fatal("serve", tag.Error(fs.ErrClosed))
		returned = true
	}()
	<-ended
	if returned {
		t.Fatal("Fatal returned to its caller")
	}
	<-s.Failed()
	if err := s.Err(); !errors.Is(err, fs.ErrClosed) || !strings.HasPrefix(err.Error(), "serve") {
		t.Fatalf("Err is %v, want the message and the cause", err)
	}
}

func TestWarningsOfStartAndStopAreDebug(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := newCondition()
	l := logger{to: slog.New(slog.NewTextHandler(&out, nil)), server: c}.With(tag.NewStringTag("service", "history"))
	l.Warn("no one answers yet")
	c.quiet.Store(false)
	l.Warn("slow disk")
	if got := out.String(); strings.Contains(got, "answers") || !strings.Contains(got, `level=WARN msg="slow disk" service=history`) {
		t.Fatal(got)
	}
}
