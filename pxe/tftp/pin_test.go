package tftp_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"testing"
	"time"

	pin "github.com/pin/tftp/v3"

	"gpupool/pxe/tftp"
)

// TestWhatPinsServerDoesNotDo is the reason for this package, one promise after the other: ours keeps it and pin/tftp's
// server, as it is in go.mod, doesn't. Where it comes to keep all of them, use it instead.
func TestWhatPinsServerDoesNotDo(t *testing.T) {
	t.Parallel()
	content := files{"file": noise(5000)}
	for promise, kept := range map[string]func(*peer) bool{
		"windowsize is agreed (RFC 7440)": func(p *peer) bool {
			p.request(1, "file", "octet", "windowsize", "4")
			return bytes.Contains(p.receive(5*time.Second), []byte("windowsize\x004"))
		},
		"the client's timeout is agreed (RFC 2349)": func(p *peer) bool {
			p.request(1, "file", "octet", "timeout", "3")
			return bytes.Contains(p.receive(5*time.Second), []byte("timeout\x003"))
		},
		"blocks under 512 bytes are agreed (RFC 2348)": func(p *peer) bool {
			p.request(1, "file", "octet", "blksize", "8")
			return bytes.Contains(p.receive(5*time.Second), []byte("blksize\x008"))
		},
		"a missing file is error 1": func(p *peer) bool {
			p.request(1, "nowhere", "octet")
			return bytes.HasPrefix(p.receive(5*time.Second), []byte{0, 5, 0, 1})
		},
		"a file that may not be had is error 2": func(p *peer) bool {
			p.request(1, "outside", "octet")
			return bytes.HasPrefix(p.receive(5*time.Second), []byte{0, 5, 0, 2})
		},
		"a write is error 2": func(p *peer) bool {
			p.request(2, "new", "octet")
			return bytes.HasPrefix(p.receive(5*time.Second), []byte{0, 5, 0, 2})
		},
		"a packet from a foreign port is error 5": func(p *peer) bool {
			p.request(1, "file", "octet")
			if p.receive(5*time.Second) == nil {
				return false
			}
			foreign := dial(p.t, p.to)
			foreign.ack(1)
			return bytes.HasPrefix(foreign.receive(time.Second), []byte{0, 5, 0, 5})
		},
		"a request that is repeated is one transfer": func(p *peer) bool {
			server := p.to
			p.request(1, "file", "octet")
			p.receive(5 * time.Second)
			first := p.to
			p.to = server
			p.request(1, "file", "octet")
			return p.receive(500*time.Millisecond) == nil || p.to == first
		},
	} {
		t.Run(promise, func(t *testing.T) {
			t.Parallel()
			at, _ := serve(t, content, tftp.Config{Timeout: time.Second})
			if !kept(dial(t, at)) {
				t.Error("ours does not")
			}
			c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			s := pin.NewServer(func(name string, to io.ReaderFrom) error {
				b, ok := content[name]
				switch {
				case ok:
					_, err := to.ReadFrom(bytes.NewReader(b))
					return err
				case name == "outside":
					return fmt.Errorf("%w: path escapes", fs.ErrPermission)
				}
				return fs.ErrNotExist
			}, nil)
			s.SetTimeout(200 * time.Millisecond)
			s.SetRetries(1)
			served := make(chan error, 1)
			go func() { served <- s.Serve(c) }()
			if kept(dial(t, c.LocalAddr().(*net.UDPAddr).AddrPort())) != (promise == "a missing file is error 1") { // by chance: its every error is
				t.Error("pin/tftp's does, by now")
			}
			s.Shutdown()
			if err := <-served; err != nil && !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
	}
}
