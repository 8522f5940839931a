package tftp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"

	pin "github.com/pin/tftp/v3/netascii"
)

// sender is one transfer: what its loop does when a packet comes or a time has passed. Nothing in it waits. Block 0 is the
// OACK, as its ACK says; the others are counted from 1 without wrapping, and on the wire they wrap at 65536, as every client
// in use does it.
type sender struct {
	*port
	content Content
	terms
	retries int
	// answered is called once, when the client answers: it is where it says it is.
	answered func()
	ended    chan outcome // room for one

	heard    bool
	base     int64 // the first block that isn't acknowledged
	end      int64 // the last of the window that begins there
	unsent   int64 // the first block of the window that the socket has not taken yet
	repeated bool  // the window was sent again as the client asked for it
	try      int   // how often it was sent again as no answer came
	patience time.Duration
	deadline time.Time // of the answer

	burst int // blocks that go out by one system call
	buf   []byte

	// What is sent comes from two pieces of the content, one after the other: while the first is sent the second is read, by
	// the transfer's own goroutine, so that a disk holds up nobody but who waits for it.
	now, then piece
	wants     chan piece // to be read; room for one
	asked     bool       // a piece is being read
	starved   bool       // the window waits for it
}

// piece is a part of the content: whole blocks, but for the last.
type piece struct {
	at int64
	b  []byte
}

func (p piece) end() int64 { return p.at + int64(len(p.b)) }

// outcome is how a transfer ended; with an empty result it has not.
type outcome struct {
	result Result
	text   string
}

// readAhead is how much is read at once, if that is not less than a window.
const readAhead = 128 << 10

// unheard is how often an answer is sent again to a client that has said nothing but its request. Anyone can send one in
// another's name, and what it is answered goes to that other: little more than was asked. A client that is there and
// missed all of it asks again.
const unheard = 2

// stopped is how a transfer ends that was told to; who told it knows why.
const stopped Result = "stopped"

// last is the number of the last block: the one shorter than the block size, empty where the size is a multiple.
func (s *sender) last() int64 { return s.content.Size()/int64(s.block) + 1 }

// acked is how many bytes the client has acknowledged.
func (s *sender) acked() int64 { return max(0, min((s.base-1)*int64(s.block), s.content.Size())) }

// begin answers the request.
func (s *sender) begin(now time.Time) outcome {
	s.burst = 1
	if s.oack == nil {
		s.base = 1
	}
	return s.next(now)
}

// next sends the window that begins at base.
func (s *sender) next(now time.Time) outcome {
	if s.base == 1 {
		s.burst = s.bursts(min(s.window, maxBurst, maxDatagram/(4+s.block)))
		s.buf = make([]byte, s.burst*(4+s.block))
	}
	s.end = s.base
	if s.base > 0 {
		s.end = min(s.base+int64(s.window)-1, s.last())
	}
	s.repeated, s.try, s.patience = false, 0, s.timeout
	if s.base > 0 {
		s.ask()
	}
	return s.transmit(now)
}

// transmit sends the window, and waits anew for its answer.
func (s *sender) transmit(now time.Time) outcome {
	s.unsent, s.deadline = s.base, now.Add(s.patience)
	return s.write()
}

// expired sends again what was not answered in time.
func (s *sender) expired(now time.Time) outcome {
	if s.starved {
		s.deadline = now.Add(s.patience) // it is not the client who is late
		return outcome{}
	}
	if s.try++; s.try > s.retries || !s.heard && s.try > unheard {
		_ = s.send(errorPacket(errOther, "timed out"))
		return outcome{TimedOut, fmt.Sprintf("block %d was sent %d times", s.base, s.try)}
	}
	s.patience = jitter(min(s.patience*3/2, 8*time.Second))
	return s.transmit(now)
}

// atOnce is how many packets of one transfer are taken before others have their turn: where the client is quick, its answer
// is there when the send returns.
const atOnce = 8

// receive takes what packets have come, from the port's client or another.
func (s *sender) receive(now time.Time, in []byte) outcome {
	for range atOnce {
		n, from, err := syscall.Recvfrom(s.fd, in, 0)
		if err != nil || from == nil {
			break // none is there, or an ICMP error of an earlier one; the deadline decides
		}
		if o := s.packet(now, in[:n], from); o.result != "" {
			return o
		}
	}
	return outcome{}
}

func (s *sender) packet(now time.Time, in []byte, from syscall.Sockaddr) outcome {
	if !s.isFrom(from) {
		_ = syscall.Sendto(s.fd, errorPacket(errUnknownID, "unknown transfer"), 0, from)
		return outcome{}
	}
	if len(in) < 4 {
		return outcome{}
	}
	switch binary.BigEndian.Uint16(in) {
	case opACK:
		return s.ack(now, binary.BigEndian.Uint16(in[2:]))
	case opERROR:
		text, _, _ := bytes.Cut(in[4:], []byte{0})
		o := outcome{Aborted, fmt.Sprintf("error %d %s", binary.BigEndian.Uint16(in[2:]), printable(string(text)))}
		if s.base == 0 {
			o.result = Probe // nothing was sent yet: it only wanted to know the size, or its options were not met
		}
		return o
	}
	return outcome{}
}

func (s *sender) ack(now time.Time, block uint16) outcome {
	// How far the ACK is ahead of what was acknowledged before, on the wrapping 16 bits.
	d := int64(block - uint16(s.base-1))
	switch {
	case d >= 1 && d <= s.end-s.base+1:
		s.base += d
		if !s.heard {
			s.heard = true
			s.answered()
		}
		if s.base > s.last() {
			return outcome{result: OK}
		}
		return s.next(now)
	case d == 0 && s.end > s.base && !s.repeated:
		// The client missed the window's first block and says so once (RFC 7440 section 4). With one block a window a
		// repeated ACK means nothing, and must not double the traffic.
		s.repeated, s.unsent = true, s.base
		return s.write()
	}
	return outcome{}
}

// blocked reports whether a part of the window waits for room in the socket.
func (s *sender) blocked() bool { return s.unsent <= s.end && !s.starved }

// write sends of the window what is read and the socket takes.
func (s *sender) write() outcome {
	s.starved = false
	for s.unsent <= s.end {
		b, n := s.oack, 1
		if s.unsent > 0 {
			if b, n = s.blocks(s.unsent, int(min(int64(s.burst), s.end-s.unsent+1))); n == 0 {
				s.starved = true
				return outcome{}
			}
		}
		switch err := s.send(b); {
		case err == nil:
			s.unsent += int64(n)
		case errors.Is(err, syscall.EAGAIN):
			return outcome{}
		case s.burst > 1: // not on this path
			s.burst = s.bursts(1)
		default:
			return outcome{Failed, err.Error()}
		}
	}
	return outcome{}
}

// blocks makes packets, one after the other: those of the blocks from the first on, n at most, as many as are read.
func (s *sender) blocks(first int64, n int) ([]byte, int) {
	b := s.buf[:0]
	for i := range n {
		data, ok := s.data((first + int64(i) - 1) * int64(s.block))
		if !ok {
			return b, i
		}
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, opDATA), uint16(first+int64(i)))
		b = append(b, data...)
	}
	return b, n
}

// data is what the block at an offset holds; ok is false where it is not read yet.
func (s *sender) data(off int64) (b []byte, ok bool) {
	n := min(int64(s.block), s.content.Size()-off)
	if n == 0 {
		return nil, true
	}
	for _, p := range []piece{s.now, s.then} {
		if off >= p.at && off+n <= p.end() {
			return p.b[off-p.at:][:n], true
		}
	}
	return nil, false
}

// ask wants the next piece, where there is room for one: once the window has left the first.
func (s *sender) ask() {
	if off := (s.base - 1) * int64(s.block); len(s.then.b) > 0 && off >= s.then.at {
		s.now, s.then = s.then, piece{at: s.then.end(), b: s.now.b[:0]}
	}
	if rest := s.content.Size() - s.now.end(); !s.asked && len(s.then.b) == 0 && rest > 0 {
		n := int64(s.block)
		if s.heard { // room is for who takes what it asked for
			n *= int64(max(s.window, readAhead/s.block))
		}
		n = min(n, rest)
		s.asked = true
		s.wants <- piece{s.now.end(), slices.Grow(s.then.b[:0], int(n))[:n]}
	}
}

// fed takes the piece that was asked for.
func (s *sender) fed(p piece, err error) outcome {
	if err != nil {
		_ = s.send(errorPacket(errOther, "read error"))
		return outcome{Failed, err.Error()}
	}
	s.asked, s.then = false, p
	s.ask()
	if s.starved {
		return s.write()
	}
	return outcome{}
}

// read reads a piece; the content is the one that was opened, or has been cut since.
func (s *sender) read(p piece) error {
	n, err := s.content.ReadAt(p.b, p.at)
	if n == len(p.b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
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
