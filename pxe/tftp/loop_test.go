package tftp

import (
	"context"
	"encoding/binary"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestAWindowGoesOnWhenTheSocketHasRoomAgain: a socket that holds ten packets or so takes a window of 64, as its reader
// comes to them, in order and each once, with nothing but room to wait for. It is one of Unix's: UDP's to this machine are never full.
func TestAWindowGoesOnWhenTheSocketHasRoomAgain(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "client")
	client, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &port{fd, &syscall.SockaddrUnix{Name: name}}
	defer p.close()
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(l.run)
	defer running.Wait()
	defer l.close()
	s := &sender{port: p, content: Bytes(make([]byte, 100*1024)), terms: terms{block: 1024, window: 64, timeout: time.Hour}, heard: true, answered: func() {}, ended: make(chan outcome, 1), wants: make(chan piece, 1)}
	ctx, stopIt := context.WithCancel(t.Context())
	defer stopIt()
	driven := make(chan outcome, 1)
	running.Go(func() { driven <- l.drive(ctx, s) })
	b := make([]byte, 2000)
	if err := client.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for want := uint16(1); want <= 64; want++ {
		n, err := client.Read(b)
		if err != nil {
			t.Fatalf("block %d: %v", want, err)
		}
		if got := binary.BigEndian.Uint16(b[2:]); n != 4+1024 || got != want {
			t.Fatalf("got block %d in %d bytes, want %d", got, n, want)
		}
	}
	stopIt()
	if o := <-driven; o.result != stopped {
		t.Fatalf("ended as %+v", o)
	}
}
