package tftp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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
	read  []byte // read ahead: content from at on
	at    int64
}

// outcome is how a transfer ended; with an empty result it has not.
type outcome struct {
	result Result
	text   string
}

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
	return s.transmit(now)
}

// transmit sends the window, and waits anew for its answer.
func (s *sender) transmit(now time.Time) outcome {
	s.unsent, s.deadline = s.base, now.Add(s.patience)
	return s.write()
}

// expired sends again what was not answered in time.
func (s *sender) expired(now time.Time) outcome {
	if s.try++; s.try > s.retries || !s.heard && s.try > unheard {
		_ = s.send(errorPacket(errOther, "timed out"))
		return outcome{TimedOut, fmt.Sprintf("block %d was sent %d times", s.base, s.try)}
	}
	s.patience = jitter(min(s.patience*3/2, 8*time.Second))
	return s.transmit(now)
}

// receive takes one packet, from the port's client or another.
func (s *sender) receive(now time.Time, in []byte) outcome {
	n, from, err := syscall.Recvfrom(s.fd, in, 0)
	if err != nil || from == nil {
		return outcome{} // none is there, or an ICMP error of an earlier one; the deadline decides
	}
	if !s.isFrom(from) {
		_ = syscall.Sendto(s.fd, errorPacket(errUnknownID, "unknown transfer"), 0, from)
		return outcome{}
	}
	if n < 4 {
		return outcome{}
	}
	switch binary.BigEndian.Uint16(in) {
	case opACK:
		return s.ack(now, binary.BigEndian.Uint16(in[2:]))
	case opERROR:
		text, _, _ := bytes.Cut(in[4:n], []byte{0})
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
func (s *sender) blocked() bool { return s.unsent <= s.end }

// write sends of the window what the socket takes.
func (s *sender) write() outcome {
	for s.blocked() {
		b, n := s.oack, 1
		if s.unsent > 0 {
			n = int(min(int64(s.burst), s.end-s.unsent+1))
			var err error
			if b, err = s.blocks(s.unsent, n); err != nil {
				_ = s.send(errorPacket(errOther, "read error"))
				return outcome{Failed, err.Error()}
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

// blocks makes n packets, one after the other: those of the blocks from the first on.
func (s *sender) blocks(first int64, n int) ([]byte, error) {
	b := s.buf[:0]
	for i := first; i < first+int64(n); i++ {
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, opDATA), uint16(i))
		got, err := s.fill((i-1)*int64(s.block), b[len(b):len(b)+s.block])
		if err != nil {
			return nil, err
		}
		b = b[:len(b)+got]
	}
	return b, nil
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
