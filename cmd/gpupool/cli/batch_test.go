package cli

import (
	"strings"
	"testing"
)

func TestABatchBeginsAFewAtATimeAndEndsWhenTooManyStop(t *testing.T) {
	t.Parallel()
	ten := strings.Fields("a b c d e f g h i j")
	batchOf := func(atOnce int, maxFailed string) *batch {
		b, err := newBatch(atOnce, maxFailed)
		if err != nil {
			t.Fatal(err)
		}
		b.waiting, b.all = ten, len(ten)
		return b
	}
	b := batchOf(3, "10%")
	for i, step := range []struct {
		running, stopped int
		want             string
	}{{0, 0, "a b c"}, {3, 0, ""}, {2, 0, "d"}, {1, 1, "e f"}, {2, 2, ""}, {0, 2, ""}} { // 1 of 10 may stop, 2 are more
		if got := strings.Join(b.next(step.running, step.stopped), " "); got != step.want {
			t.Errorf("step %d: %q begin, want %q", i, got, step.want)
		}
	}
	if len(b.waiting) != 4 {
		t.Errorf("%v wait, want four", b.waiting)
	}
	if got := batchOf(0, "0").next(0, 0); len(got) != 10 {
		t.Errorf("without a limit %d begin, want all", len(got))
	}
	if got := batchOf(0, "0").next(0, 1); got != nil {
		t.Errorf("the first that stops is one too many: %v begin", got)
	}
	if b := batchOf(0, ""); b.inTurn() || len(b.next(0, 10)) != 10 {
		t.Error("without flags all begin, whatever happens")
	}
	for _, bad := range []string{"x", "-1", "101%", "%", "1.5%"} {
		if _, err := newBatch(1, bad); err == nil || !strings.Contains(err.Error(), "--max-failed") {
			t.Errorf("--max-failed %q: %v", bad, err)
		}
	}
	if _, err := newBatch(-1, ""); err == nil {
		t.Error("--at-once -1 was taken")
	}
}
