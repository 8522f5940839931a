package proc

import (
	"bufio"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a shell in a session of its own, with the marks, and returns when it has printed a line.
func start(t *testing.T, script string, marks ...string) ID {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, marks...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	if !bufio.NewScanner(out).Scan() {
		t.Fatal("it printed nothing")
	}
	p, err := New("").Identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return p.ID
}

func TestADescendantIsFoundWhereverItWent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		script string
		want   int
	}{
		"a child":                              {"sleep 30 & echo up; wait", 2},
		"one with a session of its own":        {"setsid sleep 30 & sleep 0.1; echo up; wait", 2},
		"one without the environment":          {"env -i sleep 30 & sleep 0.1; echo up; wait", 2},
		"one whose parent is gone":             {"(sleep 30 &) ; sleep 30 & echo up; wait", 3},
		"one with both is beyond what we know": {"env -i setsid sleep 0.3 & sleep 0.1; echo up; wait", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			marks := []string{"PROC_TEST=" + strings.ReplaceAll(name, " ", "-"), "PROC_TEST_2=x"}
			id := start(t, c.script, marks...)
			found, err := New("").Find(t.Context(), Query{Marks: marks, Session: id})
			if err != nil || len(found) != c.want {
				t.Errorf("%d processes (%v), want %d: %+v", len(found), err, c.want, found)
			}
			if found, err := New("").Find(t.Context(), Query{Marks: []string{marks[0], "PROC_TEST_2=y"}}); err != nil || len(found) != 0 {
				t.Errorf("one mark of two is enough: %+v (%v)", found, err)
			}
			for _, p := range found {
				_ = syscall.Kill(p.PID, syscall.SIGKILL)
			}
			for end := time.Now().Add(5 * time.Second); ; {
				left, err := New("").Find(t.Context(), Query{Marks: marks, Session: id})
				if err != nil {
					t.Fatal(err)
				}
				if len(left) == 0 {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("left after a kill: %+v", left)
				}
			}
			if New("").Alive(id) {
				t.Error("a zombie counts as alive")
			}
		})
	}
}

func TestManyWhoAskShareAScan(t *testing.T) {
	t.Parallel()
	table := New("")
	id := start(t, "echo up; sleep 30", "PROC_SHARE=1")
	done := make(chan int, 50)
	for range 50 {
		go func() {
			f, err := table.Find(t.Context(), Query{Session: id})
			if err != nil {
				t.Error(err)
			}
			done <- len(f)
		}()
	}
	for range 50 {
		if n := <-done; n < 1 {
			t.Errorf("one of them found %d", n)
		}
	}
}

func TestStatLines(t *testing.T) {
	t.Parallel()
	rest := " S 1 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3"
	for name, want := range map[string]Process{
		"sh":                {ID: ID{7, 98765}, State: 'S', Parent: 1, Group: 2, Session: 3, Command: "sh"},
		"a b) S 9 9 9 (x":   {ID: ID{7, 98765}, State: 'S', Parent: 1, Group: 2, Session: 3, Command: "a b) S 9 9 9 (x"},
		"name\nwith a line": {ID: ID{7, 98765}, State: 'S', Parent: 1, Group: 2, Session: 3, Command: "name\nwith a line"},
	} {
		if got, err := parseStat(7, []byte("7 ("+name+")"+rest)); err != nil || got != want {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
	}
	for _, bad := range []string{"", "7 (sh", "7 sh S 1", "7 (sh) S 1 2", "7 (sh) S x 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765"} {
		if p, err := parseStat(7, []byte(bad)); err == nil {
			t.Errorf("%q was read as %+v", bad, p)
		}
	}
}

func TestMarksAreWholeWords(t *testing.T) {
	t.Parallel()
	env := []byte("A=1\x00BB=22\x00C=\x00")
	for mark, want := range map[string]bool{"A=1": true, "A=": false, "BB=2": false, "B=22": false, "C=": true, "A=1\x00BB=22": false} {
		if got := carries(env, []string{mark}); got != want {
			t.Errorf("%q: %v", mark, got)
		}
	}
	if slices.Contains([]bool{carries(nil, []string{"A=1"})}, true) {
		t.Error("an empty environment carries a mark")
	}
}

func FuzzStat(f *testing.F) {
	f.Add([]byte("7 (sh) S 1 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2 3"))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseStat(1, b) })
}
