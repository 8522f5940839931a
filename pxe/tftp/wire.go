package tftp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"path"
	"strconv"
	"strings"
	"time"
)

const (
	opRRQ   = 1
	opWRQ   = 2
	opDATA  = 3
	opACK   = 4
	opERROR = 5
	opOACK  = 6

	errOther     = 0
	errNotFound  = 1
	errAccess    = 2
	errIllegal   = 4
	errUnknownID = 5

	defaultBlock = 512
	minBlock     = 8     // RFC 2348
	maxBlock     = 65464 // RFC 2348
	maxWindow    = 64    // what is acknowledged; RFC 7440 allows 65535, but no NIC's boot code has that much room
	overhead     = 32    // IPv4 header, UDP header, TFTP header
	maxName      = 255
)

// request is an RRQ or WRQ.
type request struct {
	op      uint16
	name    string
	mode    string
	options []pair // as sent, in order
}

type pair struct{ name, value string }

var errMalformed = errors.New("malformed request")

// parseRequest reads an RRQ or WRQ. Every string must end in NUL; option names may be in any case (RFC 2347).
func parseRequest(b []byte) (request, error) {
	if len(b) < 4 || b[len(b)-1] != 0 {
		return request{}, errMalformed
	}
	r := request{op: binary.BigEndian.Uint16(b)}
	if r.op != opRRQ && r.op != opWRQ {
		return request{}, errMalformed
	}
	f := bytes.Split(b[2:len(b)-1], []byte{0})
	if len(f) < 2 || len(f[0]) == 0 {
		return request{}, errMalformed
	}
	r.name, r.mode = string(f[0]), strings.ToLower(string(f[1]))
	for f = f[2:]; len(f) >= 2 && len(r.options) < 16; f = f[2:] {
		r.options = append(r.options, pair{string(f[0]), string(f[1])})
	}
	return r, nil
}

var errName = errors.New("file name leaves the folder of boot files")

// clean makes a name of what firmware sends: backslashes, leading and doubled slashes. What points outside is
// refused, not bent into something inside: it is an attempt, and is reported as one.
func clean(name string) (string, error) {
	if len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f || r == 0xfffd }) {
		return "", errName
	}
	name = strings.ReplaceAll(name, `\`, "/")
	for _, part := range strings.Split(name, "/") {
		if part == ".." {
			return "", errName
		}
	}
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if name == "" {
		return "", errName
	}
	return name, nil
}

// terms is what was agreed for one transfer.
type terms struct {
	block   int
	window  int
	timeout time.Duration
	oack    []byte // nil = no option was agreed: the first DATA is the answer
	sizeAsk bool   // tsize was asked for
}

// agree takes the options it understands and can honour (RFC 2347: the rest are left out of the OACK). mtu is that
// of the interface the request came in on; size is the file's.
func agree(options []pair, mtu int, size int64, timeout time.Duration) terms {
	t := terms{block: defaultBlock, window: 1, timeout: timeout}
	seen := map[string]bool{}
	var ack []byte
	for _, o := range options {
		name := strings.ToLower(o.name)
		n, err := strconv.ParseInt(o.value, 10, 64)
		if err != nil || seen[name] {
			continue
		}
		seen[name] = true
		switch {
		case name == "blksize" && n >= minBlock:
			t.block = int(min(n, maxBlock, int64(max(mtu-overhead, defaultBlock))))
			n = int64(t.block)
		case name == "tsize" && n >= 0:
			n, t.sizeAsk = size, true
		case name == "timeout" && n >= 1 && n <= 255:
			t.timeout = time.Duration(n) * time.Second
		case name == "windowsize" && n >= 1 && n <= 65535:
			t.window = int(min(n, maxWindow))
			n = int64(t.window)
		default:
			continue
		}
		ack = append(append(ack, o.name...), 0)
		ack = append(strconv.AppendInt(ack, n, 10), 0)
	}
	if ack != nil {
		t.oack = append([]byte{0, opOACK}, ack...)
	}
	return t
}

func errorPacket(code uint16, text string) []byte {
	b := binary.BigEndian.AppendUint16([]byte{0, opERROR}, code)
	return append(append(b, text...), 0)
}
