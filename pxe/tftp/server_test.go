package tftp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	pin "github.com/pin/tftp/v3"
	"go.uber.org/goleak"

	"gpupool/pxe/tftp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// files are boot files in memory.
type files map[string][]byte

// hung is a file on a disk that answers once the channel is closed.
type hung struct {
	tftp.Content
	gone chan struct{}
}

func (h hung) ReadAt(b []byte, off int64) (int, error) {
	<-h.gone
	return h.Content.ReadAt(b, off)
}

// disks are files, of which "hung" is one.
type disks struct {
	files
	gone chan struct{}
}

func (d disks) Open(ctx context.Context, client netip.Addr, name string) (tftp.Content, error) {
	c, err := d.files.Open(ctx, client, name)
	if name == "hung" {
		c = hung{c, d.gone}
	}
	return c, err
}

func (f files) Open(_ context.Context, _ netip.Addr, name string) (tftp.Content, error) {
	if name == "outside" { // as a symbolic link that leads out of the root
		return nil, fmt.Errorf("%w: path escapes", fs.ErrPermission)
	}
	b, ok := f[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return tftp.Bytes(b), nil
}

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// serve starts a server on loopback and returns its address and what it reports.
func serve(t *testing.T, f tftp.Files, c tftp.Config) (netip.AddrPort, <-chan tftp.Transfer) {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan tftp.Transfer, 20_000)
	c.Report = func(x tftp.Transfer) { reports <- x }
	c.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tftp.New(f, c).Serve(ctx, conn) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return conn.LocalAddr().(*net.UDPAddr).AddrPort(), reports
}

// report waits for the next report.
func report(t *testing.T, reports <-chan tftp.Transfer) tftp.Transfer {
	t.Helper()
	select {
	case x := <-reports:
		return x
	case <-time.After(10 * time.Second):
		t.Fatal("no report")
		return tftp.Transfer{}
	}
}

// peer is a client packet by packet.
type peer struct {
	t  *testing.T
	c  *net.UDPConn
	to netip.AddrPort // the server's port, then the transfer's
}

func dial(t *testing.T, server netip.AddrPort) *peer {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &peer{t: t, c: c, to: server}
}

func (p *peer) send(b []byte) {
	p.t.Helper()
	if _, err := p.c.WriteToUDPAddrPort(b, p.to); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) request(op byte, fields ...string) {
	p.t.Helper()
	p.send(append([]byte{0, op}, strings.Join(fields, "\x00")+"\x00"...))
}

func (p *peer) ack(block uint16) { p.send(binary.BigEndian.AppendUint16([]byte{0, 4}, block)) }

// receive returns the next packet, nil where none comes within the time.
func (p *peer) receive(within time.Duration) []byte {
	p.t.Helper()
	b := make([]byte, 66000)
	p.c.SetReadDeadline(time.Now().Add(within))
	n, from, err := p.c.ReadFromUDPAddrPort(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.to = from
	return b[:n]
}

func (p *peer) want(what string, prefix []byte) []byte {
	p.t.Helper()
	b := p.receive(5 * time.Second)
	if !bytes.HasPrefix(b, prefix) {
		p.t.Fatalf("%s: got %.60q, want %q first", what, b, prefix)
	}
	return b
}

func (p *peer) silence(what string, within time.Duration) {
	p.t.Helper()
	if b := p.receive(within); b != nil {
		p.t.Fatalf("%s: got %.60q, want nothing", what, b)
	}
}

func data(block uint16) []byte { return binary.BigEndian.AppendUint16([]byte{0, 3}, block) }

func TestAForeignClientReadsFilesOfEverySize(t *testing.T) {
	t.Parallel()
	f := files{}
	for _, n := range []int{0, 1, 511, 512, 513, 1024, 100_000} {
		f[fmt.Sprint(n)] = noise(n)
	}
	at, reports := serve(t, f, tftp.Config{})
	for name, want := range f {
		for _, block := range []int{512, 1468} {
			c, err := pin.NewClient(at.String())
			if err != nil {
				t.Fatal(err)
			}
			c.SetBlockSize(block)
			c.RequestTSize(true)
			w, err := c.Receive(name, "octet")
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if _, err := w.WriteTo(&got); err != nil || !bytes.Equal(got.Bytes(), want) {
				t.Fatalf("%s bytes at %d: got %d, %v", name, block, got.Len(), err)
			}
			if x := report(t, reports); x.Result != tftp.OK || x.Bytes != int64(len(want)) || x.Name != name {
				t.Fatalf("reported %+v", x)
			}
		}
	}
}

func TestBlockNumbersRollOver(t *testing.T) {
	t.Parallel()
	want := noise(40<<20 + 7) // past 65,535 blocks of 512 bytes
	at, reports := serve(t, files{"initrd": want}, tftp.Config{})
	p := dial(t, at)
	p.request(1, "initrd", "octet", "windowsize", "32")
	p.want("options", []byte("\x00\x06windowsize\x0032\x00"))
	p.ack(0)
	var got bytes.Buffer
	for block := uint16(1); ; {
		b := p.want("a block", []byte{0, 3})
		if binary.BigEndian.Uint16(b[2:]) != block {
			if binary.BigEndian.Uint16(b[2:])%32 == 0 {
				p.ack(block - 1) // a busy machine was slow and the window came again
			}
			continue
		}
		got.Write(b[4:])
		if block%32 == 0 || len(b) < 516 {
			p.ack(block)
		}
		if len(b) < 516 {
			break
		}
		block++
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Fatalf("got %d bytes that differ from the %d sent", got.Len(), len(want))
	}
	if x := report(t, reports); x.Result != tftp.OK || x.Bytes != int64(len(want)) {
		t.Fatalf("reported %+v", x)
	}
}

func TestOptionsAreAcknowledgedOnlyWhereAskedAndUnderstood(t *testing.T) {
	t.Parallel()
	at, _ := serve(t, files{"f": noise(5000)}, tftp.Config{})
	for name, c := range map[string]struct {
		ask  []string
		want string // the first answer
	}{
		"none":                               {nil, "\x00\x03\x00\x01"},
		"unknown ones alone":                 {[]string{"multicast", "", "foo", "1"}, "\x00\x03\x00\x01"},
		"an unknown one among others":        {[]string{"foo", "1", "tsize", "0"}, "\x00\x06tsize\x005000\x00"},
		"names in capitals":                  {[]string{"BLKSIZE", "1024"}, "\x00\x06BLKSIZE\x001024\x00"},
		"a block size over the greatest":     {[]string{"blksize", "99999"}, "\x00\x06blksize\x0065464\x00"},
		"a block size under the least":       {[]string{"blksize", "7"}, "\x00\x03\x00\x01"},
		"the least block size":               {[]string{"blksize", "8"}, "\x00\x06blksize\x008\x00"},
		"a block size that is no number":     {[]string{"blksize", "big"}, "\x00\x03\x00\x01"},
		"a window over what is served":       {[]string{"windowsize", "65535"}, "\x00\x06windowsize\x0064\x00"},
		"a window of none":                   {[]string{"windowsize", "0"}, "\x00\x03\x00\x01"},
		"a timeout":                          {[]string{"timeout", "3"}, "\x00\x06timeout\x003\x00"},
		"a timeout that does not exist":      {[]string{"timeout", "256"}, "\x00\x03\x00\x01"},
		"one twice":                          {[]string{"blksize", "512", "blksize", "1024"}, "\x00\x06blksize\x00512\x00"},
		"a name without a value":             {[]string{"blksize"}, "\x00\x03\x00\x01"},
		"all, in the order of their request": {[]string{"windowsize", "4", "tsize", "0", "blksize", "1468", "timeout", "1"}, "\x00\x06windowsize\x004\x00tsize\x005000\x00blksize\x001468\x00timeout\x001\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := dial(t, at)
			p.request(1, append([]string{"f", "octet"}, c.ask...)...)
			b := p.want("answer", []byte(c.want))
			if b[1] == 6 && string(b) != c.want {
				t.Fatalf("options %q, want %q", b, c.want)
			}
			p.send([]byte("\x00\x05\x00\x00\x00"))
		})
	}
}

func TestASizeProbeIsNoFailure(t *testing.T) {
	t.Parallel()
	at, reports := serve(t, files{"snponly.efi": noise(3000)}, tftp.Config{})
	p := dial(t, at)
	p.request(1, "snponly.efi", "octet", "tsize", "0", "blksize", "1468")
	p.want("size", []byte("\x00\x06tsize\x003000\x00"))
	p.send([]byte("\x00\x05\x00\x08User aborted the transfer\x00")) // EDK2, word for word
	if x := report(t, reports); x.Result != tftp.Probe || x.Size != 3000 || !strings.Contains(x.Text, "error 8") {
		t.Fatalf("reported %+v", x)
	}
	p = dial(t, at)
	p.request(1, "snponly.efi", "octet", "blksize", "1468", "windowsize", "4")
	p.want("options", []byte("\x00\x06"))
	p.ack(0)
	for i := uint16(1); i <= 3; i++ {
		p.want("block", data(i))
	}
	p.ack(3)
	if x := report(t, reports); x.Result != tftp.OK || x.Bytes != 3000 {
		t.Fatalf("reported %+v", x)
	}
}

func TestAnAbortInTheMiddleIsOne(t *testing.T) {
	t.Parallel()
	at, reports := serve(t, files{"f": noise(3000)}, tftp.Config{})
	p := dial(t, at)
	p.request(1, "f", "octet")
	p.want("block 1", data(1))
	p.ack(1)
	p.want("block 2", data(2))
	p.send([]byte("\x00\x05\x00\x03disk full\x00"))
	if x := report(t, reports); x.Result != tftp.Aborted || x.Bytes != 512 || x.Text != "error 3 disk full" {
		t.Fatalf("reported %+v", x)
	}
}

func TestADuplicateACKSendsNothingTwice(t *testing.T) {
	t.Parallel()
	at, _ := serve(t, files{"f": noise(3000)}, tftp.Config{Timeout: 3 * time.Second})
	p := dial(t, at)
	p.request(1, "f", "octet")
	p.want("block 1", data(1))
	p.ack(1)
	p.want("block 2", data(2))
	for range 5 {
		p.ack(1)
	}
	p.silence("after repeated ACKs of block 1", 300*time.Millisecond)
	p.ack(7) // one from the future
	p.silence("after an ACK of a block that was not sent", 300*time.Millisecond)
	p.ack(2)
	p.want("block 3", data(3))
	p.send([]byte("\x00\x05\x00\x00\x00"))
}

func TestALostBlockIsSentAgainAndAGapMovesTheWindow(t *testing.T) {
	t.Parallel()
	at, reports := serve(t, files{"f": noise(5*512 + 10)}, tftp.Config{Timeout: 200 * time.Millisecond})
	p := dial(t, at)
	p.request(1, "f", "octet", "windowsize", "3")
	p.want("options", []byte("\x00\x06"))
	p.want("options again, when their ACK is lost", []byte("\x00\x06"))
	p.ack(0)
	for i := uint16(1); i <= 3; i++ {
		p.want("block", data(i))
	}
	p.ack(1) // 2 was lost: the window begins at 2
	for i := uint16(2); i <= 4; i++ {
		p.want("block after a gap", data(i))
	}
	p.ack(1) // the whole window was lost, said once
	for i := uint16(2); i <= 4; i++ {
		p.want("block of the window again", data(i))
	}
	p.ack(4)
	for i := uint16(5); i <= 6; i++ {
		p.want("block", data(i))
	}
	for i := uint16(5); i <= 6; i++ { // no ACK: sent again
		p.want("block after a timeout", data(i))
	}
	p.ack(6)
	if x := report(t, reports); x.Result != tftp.OK || x.Bytes != 5*512+10 {
		t.Fatalf("reported %+v", x)
	}
}

func TestASilentClientIsGivenUp(t *testing.T) {
	t.Parallel()
	at, reports := serve(t, files{"f": noise(3000)}, tftp.Config{Timeout: 10 * time.Millisecond, Retries: 3})
	p := dial(t, at)
	p.request(1, "f", "octet", "tsize", "0")
	for range 3 { // it may be somebody else's address: not often
		p.want("size", []byte("\x00\x06tsize"))
	}
	p.want("the end", []byte("\x00\x05\x00\x00"))
	if x := report(t, reports); x.Result != tftp.TimedOut || x.Bytes != 0 {
		t.Fatalf("reported %+v", x)
	}
	p = dial(t, at)
	p.request(1, "f", "octet")
	p.want("block 1", data(1))
	p.ack(1)
	for n := 0; n < 4; {
		if b := p.receive(5 * time.Second); bytes.HasPrefix(b, data(2)) {
			n++
		} else if !bytes.HasPrefix(b, data(1)) || n > 0 { // which may have been sent again before its ACK came
			t.Fatalf("block 2: got %.60q", b)
		}
	}
	p.want("the end", []byte("\x00\x05\x00\x00"))
	if x := report(t, reports); x.Result != tftp.TimedOut || x.Bytes != 512 {
		t.Fatalf("reported %+v", x)
	}
}

func TestAForeignPortGetsError5AndTheTransferGoesOn(t *testing.T) {
	t.Parallel()
	at, reports := serve(t, files{"f": noise(600)}, tftp.Config{})
	p := dial(t, at)
	p.request(1, "f", "octet")
	p.want("block 1", data(1))
	q := dial(t, p.to)
	q.ack(1)
	q.want("refusal", []byte("\x00\x05\x00\x05"))
	p.ack(1)
	p.want("block 2", data(2))
	p.ack(2)
	if x := report(t, reports); x.Result != tftp.OK {
		t.Fatalf("reported %+v", x)
	}
}

// TestADiskThatHangsHoldsUpNobodyElse: more transfers than there are loops wait for it, and others don't.
func TestADiskThatHangsHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	d := disks{files{"hung": noise(100), "f": noise(300_000)}, make(chan struct{})}
	at, reports := serve(t, d, tftp.Config{PerClient: 20})
	var waiting []*peer
	for range 9 {
		p := dial(t, at)
		p.request(1, "hung", "octet")
		waiting = append(waiting, p)
	}
	for range 5 {
		c, err := pin.NewClient(at.String())
		if err != nil {
			t.Fatal(err)
		}
		c.SetTimeout(5 * time.Second)
		from, err := c.Receive("f", "octet")
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if _, err := from.WriteTo(&got); err != nil || !bytes.Equal(got.Bytes(), d.files["f"]) {
			t.Fatalf("got %d bytes: %v", got.Len(), err)
		}
		if x := report(t, reports); x.Name != "f" || x.Result != tftp.OK {
			t.Fatalf("reported %+v", x)
		}
	}
	close(d.gone)
	for _, p := range waiting {
		p.want("block 1, once the disk answers", data(1))
		p.ack(1)
		if x := report(t, reports); x.Name != "hung" || x.Result != tftp.OK || x.Bytes != 100 {
			t.Fatalf("reported %+v", x)
		}
	}
}

func TestARepeatedRequestIsOneTransfer(t *testing.T) {
	t.Parallel()
	at, reports := serve(t, files{"f": noise(100)}, tftp.Config{Timeout: 5 * time.Second})
	p := dial(t, at)
	p.request(1, "f", "octet")
	p.want("block 1", data(1))
	tid := p.to
	p.to = at
	p.request(1, "f", "octet")
	p.silence("after the same request from the same port", 300*time.Millisecond)
	p.to = tid
	p.ack(1)
	if x := report(t, reports); x.Result != tftp.OK {
		t.Fatalf("reported %+v", x)
	}
}

func TestWhatIsRefused(t *testing.T) {
	t.Parallel()
	at, _ := serve(t, files{"etc/passwd": []byte("inside"), "a/b": []byte("ab")}, tftp.Config{})
	for name, c := range map[string]struct {
		op     byte
		fields []string
		want   string
	}{
		"writing":                          {2, []string{"f", "octet"}, "\x00\x05\x00\x02"},
		"writing outside":                  {2, []string{"../f", "octet"}, "\x00\x05\x00\x02"},
		"a file that is not there":         {1, []string{"nothing", "octet"}, "\x00\x05\x00\x01"},
		"upwards with backslashes":         {1, []string{`..\..\etc\passwd`, "octet"}, "\x00\x05\x00\x02"},
		"upwards from the root":            {1, []string{"/../tftp-secret/x", "octet"}, "\x00\x05\x00\x02"},
		"upwards and down again":           {1, []string{"a/../etc/passwd", "octet"}, "\x00\x05\x00\x02"},
		"a link that leads out":            {1, []string{"outside", "octet"}, "\x00\x05\x00\x02"},
		"a name of 600 bytes":              {1, []string{strings.Repeat("x", 600), "octet"}, "\x00\x05\x00\x02"},
		"a name that is no UTF-8":          {1, []string{"a\xff/b", "octet"}, "\x00\x05\x00\x02"},
		"the root itself":                  {1, []string{"/", "octet"}, "\x00\x05\x00\x02"},
		"mail":                             {1, []string{"a/b", "mail"}, "\x00\x05\x00\x04"},
		"an absolute path is the root's":   {1, []string{"/etc/passwd", "octet"}, "\x00\x03\x00\x01inside"},
		"backslashes and slashes too many": {1, []string{`\\a//b`, "OCTET"}, "\x00\x03\x00\x01ab"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := dial(t, at)
			p.request(c.op, c.fields...)
			p.want("answer", []byte(c.want))
			p.send([]byte("\x00\x05\x00\x00\x00"))
		})
	}
	for name, b := range map[string][]byte{
		"nothing": {}, "one byte": {0}, "no end": []byte("\x00\x01name\x00octet"), "no mode": []byte("\x00\x01name\x00"), "data": []byte("\x00\x03\x00\x01x"), "an ACK": {0, 4, 0, 1}, "a NUL inside the name": []byte("\x00\x01\x00x\x00octet\x00"),
	} {
		t.Run("garbage is not answered: "+name, func(t *testing.T) {
			t.Parallel()
			p := dial(t, at)
			p.send(b)
			p.silence(name, 200*time.Millisecond)
		})
	}
}

func TestOneAddressHasSoManyTransfersAtOnce(t *testing.T) {
	t.Parallel()
	at, reports := serve(t, files{"f": noise(2000)}, tftp.Config{PerClient: 2})
	a, b, c := dial(t, at), dial(t, at), dial(t, at)
	for _, p := range []*peer{a, b} {
		p.request(1, "f", "octet")
		p.want("block 1", data(1))
		p.ack(1)
		p.want("block 2", data(2))
	}
	c.request(1, "f", "octet")
	c.want("refusal", []byte("\x00\x05\x00\x00busy"))
	if x := report(t, reports); x.Result != tftp.Busy {
		t.Fatalf("reported %+v", x)
	}
	a.send([]byte("\x00\x05\x00\x00\x00"))
	report(t, reports)
	// The place is free once the report is in; the release follows it at once.
	deadline := time.Now().Add(5 * time.Second)
	for {
		d := dial(t, at)
		d.request(1, "f", "octet")
		if bytes.HasPrefix(d.receive(time.Second), data(1)) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the place was not given back")
		}
	}
}

// TestHalfOpenTransfersKeepNobodyOut: ten thousand requests whose sender never answers, each from an address of its own and
// with the longest timeout there is. Clients that are there are served as ever, meanwhile and after, a transfer from before
// goes on, and what is kept for the others is bounded.
func TestHalfOpenTransfersKeepNobodyOut(t *testing.T) {
	t.Parallel()
	at, _ := serve(t, files{"f": noise(100_000)}, tftp.Config{})
	early := dial(t, at)
	early.request(1, "f", "octet")
	early.want("block 1", data(1))
	early.ack(1)
	early.want("block 2", data(2))
	var flood sync.WaitGroup
	defer flood.Wait()
	half, whole := make(chan struct{}), make(chan struct{})
	flood.Go(func() {
		defer close(whole)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for i := range 10_000 {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 66, byte(i>>8), byte(i))})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := c.WriteToUDPAddrPort([]byte("\x00\x01f\x00octet\x00timeout\x00255\x00"), at); err != nil {
				t.Error(err)
			}
			c.Close()
			if i%50 == 0 {
				<-tick.C
			}
			if i == 5000 {
				close(half)
			}
		}
	})
	fetch := func(when string) {
		t.Helper()
		c, err := pin.NewClient(at.String())
		if err != nil {
			t.Fatal(err)
		}
		from, err := c.Receive("f", "octet")
		if err != nil {
			t.Fatalf("a client that is there, %s: %v", when, err)
		}
		var got bytes.Buffer
		if _, err := from.WriteTo(&got); err != nil || got.Len() != 100_000 {
			t.Fatalf("a client that is there, %s, got %d bytes: %v", when, got.Len(), err)
		}
	}
	<-half
	fetch("during a flood")
	<-whole
	fetch("after it")
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > 1500; <-time.After(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines after ten thousand requests, of which 1024 may be under way", runtime.NumGoroutine())
		}
	}
	early.ack(2)
	for b := early.receive(5 * time.Second); !bytes.HasPrefix(b, data(3)); b = early.receive(5 * time.Second) {
		if !bytes.HasPrefix(b, data(2)) { // which was sent again, as it was waited for
			t.Fatalf("the transfer from before does not go on: got %.60q", b)
		}
	}
}

// TestAnAddressIsNotBlockedInItsName: requests that claim a client's address take places that only it may have.
func TestAnAddressIsNotBlockedInItsName(t *testing.T) {
	t.Parallel()
	at, reports := serve(t, files{"f": noise(100)}, tftp.Config{PerClient: 2})
	for range 5 {
		dial(t, at).request(1, "f", "octet", "timeout", "255")
	}
	p := dial(t, at)
	p.request(1, "f", "octet")
	p.want("block 1", data(1))
	p.ack(1)
	for {
		switch x := report(t, reports); x.Result {
		case tftp.Crowded:
		case tftp.OK:
			return
		default:
			t.Fatalf("reported %+v", x)
		}
	}
}

// TestAnotherRequestFromTheSamePortReplacesTheFirst: firmware that asks for the size, doesn't say that it wants no more,
// and goes on from the same port.
func TestAnotherRequestFromTheSamePortReplacesTheFirst(t *testing.T) {
	t.Parallel()
	at, reports := serve(t, files{"f": noise(100)}, tftp.Config{})
	p := dial(t, at)
	p.request(1, "f", "octet", "tsize", "0")
	p.want("size", []byte("\x00\x06tsize\x00100"))
	p.to = at
	p.request(1, "f", "octet", "blksize", "1400")
	p.want("block size", []byte("\x00\x06blksize\x001400"))
	if x := report(t, reports); x.Result != tftp.Replaced {
		t.Fatalf("reported %+v", x)
	}
	p.ack(0)
	p.want("block 1", data(1))
	p.ack(1)
	if x := report(t, reports); x.Result != tftp.OK || x.Bytes != 100 {
		t.Fatalf("reported %+v", x)
	}
}

func TestNetasciiEndsLinesAsItSays(t *testing.T) {
	t.Parallel()
	// Long enough for every boundary inside, of nothing but what is translated and what isn't.
	long := make([]byte, 5000)
	for i, n := range noise(len(long)) {
		long[i] = "\r\na"[n%3]
	}
	at, _ := serve(t, files{"t": []byte("a\nb\rc"), "long": long}, tftp.Config{})
	p := dial(t, at)
	p.request(1, "t", "netascii", "tsize", "0")
	p.want("size", []byte("\x00\x06tsize\x007\x00"))
	p.ack(0)
	if b := p.want("text", data(1)); string(b[4:]) != "a\r\nb\r\x00c" {
		t.Fatalf("got %q", b[4:])
	}
	p.ack(1)
	want := strings.NewReplacer("\r", "\r\x00", "\n", "\r\n").Replace(string(long))
	p = dial(t, at)
	p.request(1, "long", "netascii", "blksize", "20000")
	p.want("block size", []byte("\x00\x06blksize\x0020000\x00"))
	p.ack(0)
	if b := p.want("long text", data(1)); string(b[4:]) != want {
		t.Fatalf("%d bytes, want %d: %q", len(b)-4, len(want), b[4:])
	}
	p.ack(1)
}

// FuzzTransfer sends anything in the middle of a transfer, from its client's port and from another: it goes on, block after
// block, each once and with what is in the file, and a stranger is answered nothing but error 5.
func FuzzTransfer(f *testing.F) {
	f.Add([]byte("\x04\x00\x04\x00\x00\x04\x00\x04\xff\xff\x03\x00\x03\x00"))
	f.Add([]byte("\x84\x00\x04\x00\x01\x8d\x00\x01x\x00octet\x00a\x001\x00\x00\x02\x00\x05"))
	f.Fuzz(func(t *testing.T, story []byte) {
		if len(story) > 400 {
			return
		}
		const block = 16
		content := noise(block*64 + 5)
		at, _ := serve(t, files{"f": content}, tftp.Config{Timeout: 20 * time.Second})
		p := dial(t, at)
		p.request(1, "f", "octet", "blksize", "16")
		p.want("block size", []byte("\x00\x06blksize\x0016\x00"))
		stranger := dial(t, p.to)
		sent := uint16(0) // the block that the client has, and acknowledges
		for len(story) > 0 && sent < 64 {
			n, foreign := int(story[0]&0x7f), story[0]&0x80 != 0
			n = min(n, len(story)-1)
			packet := story[1 : 1+n]
			story = story[1+n:]
			switch {
			case foreign:
				stranger.send(packet)
				stranger.want("a stranger's packet", []byte{0, 5, 0, 5})
			case n >= 4 && packet[0] == 0 && (packet[1] == 5 || packet[1] == 4 && binary.BigEndian.Uint16(packet[2:]) == sent):
				continue // an error ends it, and that acknowledgement moves it on
			default:
				p.send(packet)
			}
			p.ack(sent)
			sent++
			if got := p.want("the next block", data(sent)); !bytes.Equal(got[4:], content[(int(sent)-1)*block:min(int(sent)*block, len(content))]) {
				t.Fatalf("block %d is %x", sent, got[4:])
			}
		}
		p.send([]byte("\x00\x05\x00\x00\x00"))
	})
}
