package httpboot

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gpupool/pxe/script"
	"gpupool/schema"
)

type folder string

func (f folder) OpenFile(name string) (*os.File, error) {
	return os.Open(filepath.Join(string(f), name))
}

// site is the HTTP server alone, on loopback; done is told what became of each file.
func site(t *testing.T, size int64, change func(*Handler, *http.Server)) (at string, done <-chan schema.BootEvidence) {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "initrd"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	f.Close()
	told := make(chan schema.BootEvidence, 16)
	h := &Handler{Files: folder(dir), Scripts: &script.Service{}, Locator: nobody{}, Record: func(e schema.BootEvidence) { told <- e }, Log: logger(t)}
	s := NewServer(h)
	change(h, s)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close()
		<-served
	})
	return l.Addr().String(), told
}

// TestAClientThatReadsNothingIsNotWaitedForForEver: it asks for a file that no socket's buffers hold, and reads no more.
func TestAClientThatReadsNothingIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	at, done := site(t, 1<<30, func(h *Handler, _ *http.Server) { h.Stall = 300 * time.Millisecond })
	c, err := net.Dial("tcp4", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /files/initrd HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-done:
		if e.Result != "aborted by client" || e.Bytes <= 0 || e.Bytes >= 1<<30 {
			t.Fatalf("%+v", e)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it is still waited for")
	}
}

// TestABodyThatDoesNotComeIsNotWaitedForForEver: what is announced with a GET, or in place of a report, holds no connection.
func TestABodyThatDoesNotComeIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	at, _ := site(t, 1, func(h *Handler, _ *http.Server) { h.Stall = 300 * time.Millisecond })
	for name, head := range map[string]string{
		"a GET with a length":    "GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
		"a file with chunks":     "GET /files/initrd HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;",
		"a POST to nowhere":      "POST /files/initrd HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nx",
		"a HEAD with a length":   "HEAD /files/initrd HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
		"a PUT that expects 100": "PUT /files/initrd HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 100000\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := net.Dial("tcp4", at)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, head); err != nil {
				t.Fatal(err)
			}
			c.SetReadDeadline(time.Now().Add(20 * time.Second))
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Fatalf("the connection is still open: %v", err)
			}
		})
	}
}

// TestAHeadThatComesByDropsIsNotWaitedForForEver: a client that says a little all the time, and never all of it, is cut off when a
// whole head would have been there; so are many of them.
func TestAHeadThatComesByDropsIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	at, _ := site(t, 1, func(_ *Handler, s *http.Server) {
		if s.ReadHeaderTimeout <= 0 || s.ReadHeaderTimeout > 30*time.Second {
			t.Errorf("a head may take %s, want a bound of seconds", s.ReadHeaderTimeout)
		}
		s.ReadHeaderTimeout = 300 * time.Millisecond
	})
	var all sync.WaitGroup
	defer all.Wait()
	for range 50 {
		c, err := net.Dial("tcp4", at)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer c.Close()
			if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n"); err != nil {
				t.Error(err)
			}
			drop := time.NewTicker(20 * time.Millisecond)
			defer drop.Stop()
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-drop.C {
				if _, err := io.WriteString(c, "X: y\r\n"); err != nil {
					return // it was cut off
				}
			}
			t.Error("it is still waited for")
		})
	}
}

// TestWhatIsAskedForInPieces: a client that asks for the same over and over gets no more than the file.
func TestWhatIsAskedForInPieces(t *testing.T) {
	t.Parallel()
	const size = 1000
	at, _ := site(t, size, func(*Handler, *http.Server) {})
	for ask, want := range map[string]struct{ status, most int }{
		"bytes=0-99":     {206, 100},
		"bytes=-10":      {206, 10},
		"bytes=990-5000": {206, 10},
		"bytes=" + strings.Repeat("0-,", 500) + "0-": {200, size},
		"bytes=0-18446744073709551616":               {416, 100},
		"bytes=5-1":                                  {416, 100},
		"bytes=2000-":                                {416, 100},
		"lines=1-2":                                  {416, 100},
		"bytes=--1":                                  {416, 100},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+"/files/initrd", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Range", ask)
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, a.Body)
		a.Body.Close()
		if err != nil || a.StatusCode != want.status || n > int64(want.most) || a.ContentLength != n {
			t.Errorf("%.40s: %d, %d bytes of %d, %v; want %d and at most %d", ask, a.StatusCode, n, a.ContentLength, err, want.status, want.most)
		}
	}
}

// TestAHeadTooLargeIsRefused: no path, and no line of a head, takes more than its room.
func TestAHeadTooLargeIsRefused(t *testing.T) {
	t.Parallel()
	at, _ := site(t, 1, func(*Handler, *http.Server) {})
	for name, head := range map[string]string{
		"a path":       "GET /files/" + strings.Repeat("a", 64<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"one line":     "GET /files/initrd HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 64<<10) + "\r\n\r\n",
		"many lines":   "GET /files/initrd HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X: y\r\n", 16<<10) + "\r\n",
		"a folded one": "GET /files/initrd HTTP/1.1\r\nHost: x\r\nX: y\r\n" + strings.Repeat(" z\r\n", 32<<10) + "\r\n",
	} {
		c, err := net.Dial("tcp4", at)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.WriteString(c, head) }()
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		b := make([]byte, 15)
		n, _ := io.ReadFull(c, b)
		c.Close()
		if got := string(b[:n]); !strings.HasPrefix(got, "HTTP/1.1 431") && !strings.HasPrefix(got, "HTTP/1.1 400") {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

// TestALargeFileTakesAsLongAsItDoes: many pieces, each in its time, and the connection is there for the next request.
func TestALargeFileTakesAsLongAsItDoes(t *testing.T) {
	t.Parallel()
	const size = 3*piece + 17
	at, done := site(t, size, func(h *Handler, _ *http.Server) { h.Stall = 10 * time.Second })
	for range 2 {
		r, err := http.Get("http://" + at + "/files/initrd")
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, r.Body)
		r.Body.Close()
		if n != size || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if e := <-done; e.Result != "ok" || e.Bytes != size {
			t.Fatalf("%+v", e)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestOneAddressHasSoManyConnections: what is beyond is closed; another address, and a place that is free again, are served.
func TestOneAddressHasSoManyConnections(t *testing.T) {
	t.Parallel()
	at, _ := site(t, 1, func(_ *Handler, s *http.Server) { s.ConnState = newConnections(2, 3).state })
	dial := func(from string) net.Conn {
		t.Helper()
		c, err := (&net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}).Dial("tcp4", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	answered := func(c net.Conn) bool {
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return false
		}
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, _ := c.Read(make([]byte, 512))
		return n > 0
	}
	a, b := dial("127.0.0.1"), dial("127.0.0.1")
	if !answered(a) || !answered(b) {
		t.Fatal("two of one address: want both served")
	}
	if answered(dial("127.0.0.1")) {
		t.Fatal("a third of one address is served")
	}
	if !answered(dial("127.0.0.2")) {
		t.Fatal("one of another address is not served")
	}
	if answered(dial("127.0.0.3")) {
		t.Fatal("a fourth of all is served")
	}
	a.Close()
	for end := time.Now().Add(5 * time.Second); !answered(dial("127.0.0.3")); <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a place that is free again is not given")
		}
	}
}

type nobody struct{}

func (nobody) MACAt(context.Context, netip.Addr) (string, string, bool, error) {
	return "", "", false, nil
}

func logger(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }
