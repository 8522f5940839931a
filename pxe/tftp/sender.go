package tftp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	pin "github.com/pin/tftp/v3/netascii"
)

// sender is one transfer. Blocks are counted from 1 without wrapping; on the wire they wrap at 65536, as every
// client in use does it.
type sender struct {
	conn    *net.UDPConn
	to      netip.AddrPort
	content Content
	terms
	retries int
	// answered is called once, when the client answers: it is where it says it is.
	answered func()

	heard bool
	base  int64 // the first block that isn't acknowledged
	buf   []byte
	read  []byte // read ahead: content from readAt on
	at    int64
}

const readAhead = 128 << 10

// unheard is how often an answer is sent again to a client that has said nothing but its request. Anyone can send one in
// another's name, and what it is answered goes to that other: little more than was asked. A client that is there and
// missed all of it asks again.
const unheard = 2

// stopped is how a transfer ends whose socket was closed from elsewhere; who did it knows why.
const stopped Result = "stopped"

// last is the number of the last block: the one shorter than the block size, empty where the size is a multiple.
func (s *sender) last() int64 { return s.content.Size()/int64(s.block) + 1 }

// acked is how many bytes the client has acknowledged.
func (s *sender) acked() int64 { return min((s.base-1)*int64(s.block), s.content.Size()) }

// run sends the file and returns how it ended.
func (s *sender) run() (Result, string) {
	s.base = 1
	s.buf = make([]byte, 4+s.block)
	if s.oack != nil {
		if r, text := s.exchange(func() error { _, err := s.conn.WriteToUDPAddrPort(s.oack, s.to); return err }, func(ack uint16) step {
			if ack == 0 {
				return forward
			}
			return stay
		}); r != OK {
			if r == Aborted {
				r = Probe // nothing was sent yet: it only wanted to know the size, or its options were not met
			}
			return r, text
		}
	}
	for s.base <= s.last() {
		end := min(s.base+int64(s.window)-1, s.last())
		resent := false
		r, text := s.exchange(func() error { return s.sendWindow(s.base, end) }, func(ack uint16) step {
			// How far the ACK is ahead of what was acknowledged before, on the wrapping 16 bits.
			d := int64(ack - uint16(s.base-1))
			switch {
			case d >= 1 && d <= end-s.base+1:
				s.base += d
				return forward
			case d == 0 && s.window > 1 && !resent:
				// The client missed the window's first block and says so once (RFC 7440 section 4). With
				// one block a window a repeated ACK means nothing, and must not double the traffic.
				resent = true
				return repeat
			}
			return stay
		})
		if r != OK {
			return r, text
		}
	}
	return OK, ""
}

type step int

const (
	stay    step = iota // not what is waited for
	forward             // acknowledged
	repeat              // send the same again
)

// exchange sends, and waits until the client's ACK moves on; it sends again when none comes in time.
func (s *sender) exchange(send func() error, ack func(uint16) step) (Result, string) {
	timeout := s.timeout
	for try := 0; ; try++ {
		if try > s.retries || !s.heard && try > unheard {
			_, _ = s.conn.WriteToUDPAddrPort(errorPacket(errOther, "timed out"), s.to)
			return TimedOut, fmt.Sprintf("block %d was sent %d times", s.base, try)
		}
		if err := send(); err != nil {
			return failed(err)
		}
		if err := s.conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
			return failed(err)
		}
		moved, r, text := s.await(send, ack)
		if moved {
			return r, text
		}
		timeout = jitter(min(timeout*3/2, 8*time.Second))
	}
}

func failed(err error) (Result, string) {
	if errors.Is(err, net.ErrClosed) {
		return stopped, "the server is stopping"
	}
	return Failed, err.Error()
}

// await reads until the deadline. moved is false where it passed.
func (s *sender) await(send func() error, ack func(uint16) step) (moved bool, r Result, text string) {
	var in [516]byte
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(in[:])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false, "", ""
		}
		if errors.Is(err, net.ErrClosed) {
			r, text := failed(err)
			return true, r, text
		}
		if err != nil {
			continue // an ICMP error of an earlier packet; the deadline decides
		}
		if netip.AddrPortFrom(from.Addr().Unmap(), from.Port()) != s.to {
			_, _ = s.conn.WriteToUDPAddrPort(errorPacket(errUnknownID, "unknown transfer"), from)
			continue
		}
		if n < 4 {
			continue
		}
		switch binary.BigEndian.Uint16(in[:]) {
		case opACK:
			switch ack(binary.BigEndian.Uint16(in[2:])) {
			case forward:
				if !s.heard {
					s.heard = true
					s.answered()
				}
				return true, OK, ""
			case repeat:
				if err := send(); err != nil {
					r, text := failed(err)
					return true, r, text
				}
			case stay:
			}
		case opERROR:
			text, _, _ := bytes.Cut(in[4:n], []byte{0})
			return true, Aborted, fmt.Sprintf("error %d %s", binary.BigEndian.Uint16(in[2:]), printable(string(text)))
		}
	}
}

// sendWindow sends the blocks from..to once.
func (s *sender) sendWindow(from, to int64) error {
	for b := from; b <= to; b++ {
		binary.BigEndian.PutUint16(s.buf, opDATA)
		binary.BigEndian.PutUint16(s.buf[2:], uint16(b))
		n, err := s.fill((b-1)*int64(s.block), s.buf[4:])
		if err != nil {
			_, _ = s.conn.WriteToUDPAddrPort(errorPacket(errOther, "read error"), s.to)
			return err
		}
		if _, err := s.conn.WriteToUDPAddrPort(s.buf[:4+n], s.to); err != nil {
			return err
		}
	}
	return nil
}

// fill copies one block from the read-ahead. Reading many blocks at once is what keeps one transfer near the
// network's speed.
func (s *sender) fill(off int64, to []byte) (int, error) {
	want := min(int64(len(to)), s.content.Size()-off)
	if want <= 0 {
		return 0, nil
	}
	if off < s.at || off+want > s.at+int64(len(s.read)) {
		n := want
		if s.heard { // room is for who takes what it asked for
			n = min(max(readAhead, want), s.content.Size()-off)
		}
		if int64(cap(s.read)) < n {
			s.read = make([]byte, n)
		}
		s.read, s.at = s.read[:n], off
		if got, err := s.content.ReadAt(s.read, off); int64(got) < n {
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // the file was cut while it is served
			}
			return 0, err
		}
	}
	return copy(to[:want], s.read[off-s.at:]), nil
}

// netasciiMax bounds what is translated in memory: netascii is for texts.
const netasciiMax = 1 << 20

// netascii translates a text's line ends as RFC 764 has it: LF is CR LF, a lone CR is CR NUL.
func netascii(c Content) (Content, error) {
	if c.Size() > netasciiMax {
		return nil, errors.New("too large for netascii: ask for octet")
	}
	b, err := io.ReadAll(pin.ToReader(io.NewSectionReader(c, 0, c.Size())))
	return Bytes(b), err
}

// Bytes is a Content in memory.
func Bytes(b []byte) Content { return memory{bytes.NewReader(b)} }

type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }
