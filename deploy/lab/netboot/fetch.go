package netboot

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"
)

// HTTP is a client that speaks from an address and follows no redirect, as firmware. It keeps no connection.
func HTTP(from netip.Addr) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:       (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}, Timeout: 10 * time.Second}).DialContext,
			DisableKeepAlives: true, ResponseHeaderTimeout: 30 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// maxScript bounds a file that is read whole.
const maxScript = 1 << 20

// Get fetches a small file.
func Get(ctx context.Context, from netip.Addr, url string) ([]byte, error) {
	var b []byte
	err := get(ctx, from, url, func(body io.Reader) (err error) {
		b, err = io.ReadAll(io.LimitReader(body, maxScript))
		return err
	})
	return b, err
}

// Skip fetches a file and drops it. A length that differs from the one that was announced is an error.
func Skip(ctx context.Context, from netip.Addr, url string) (n int64, err error) {
	err = get(ctx, from, url, func(body io.Reader) (err error) {
		n, err = io.Copy(io.Discard, body)
		return err
	})
	return n, err
}

// Post sends a small document in JSON.
func Post(ctx context.Context, from netip.Addr, url string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := HTTP(from).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return fmt.Errorf("HTTP %s", resp.Status)
	}
	return nil
}

func get(ctx context.Context, from netip.Addr, url string, read func(io.Reader) error) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := HTTP(from).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // only for words
		return fmt.Errorf("%s (%s)", resp.Status, b)
	}
	return read(resp.Body)
}

// TFTP reads a file as a UEFI firmware does (RFC 1350, 2347 to 2349): blocks of 1468 bytes, the size asked for. It
// returns the count of bytes.
func TFTP(ctx context.Context, from netip.Addr, server netip.AddrPort, file string) (int64, error) {
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: from.AsSlice()})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	request := []byte("\x00\x01" + file + "\x00octet\x00tsize\x000\x00blksize\x001468\x00")
	last, peer := request, server
	t := transfer{blksize: 512, tsize: -1}
	buf := make([]byte, 2048)
	for silent := 0; ; {
		if _, err := conn.WriteToUDPAddrPort(last, peer); err != nil {
			return t.bytes, err
		}
		if ctx.Err() == nil {
			_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		}
		n, src, err := conn.ReadFromUDPAddrPort(buf)
		if ctx.Err() != nil {
			return t.bytes, ctx.Err()
		}
		if err != nil {
			if silent++; silent > 5 {
				return t.bytes, fmt.Errorf("tftp %s from %s: no answer: %w", file, server, err)
			}
			continue
		}
		if peer != server && src != peer {
			continue // not this transfer
		}
		peer, silent = src, 0 // the server's own port for this transfer
		ack, done, err := t.step(buf[:n])
		if err != nil {
			return t.bytes, fmt.Errorf("tftp %s from %s: %w", file, server, err)
		}
		if ack != nil {
			last = ack
		}
		if done {
			_, err := conn.WriteToUDPAddrPort(last, peer)
			return t.bytes, err
		}
	}
}

// transfer is a read's state.
type transfer struct {
	blksize int
	tsize   int64
	block   uint16
	bytes   int64
}

func (t *transfer) step(p []byte) (ack []byte, done bool, err error) {
	if len(p) < 4 {
		return nil, false, errors.New("a packet of less than 4 bytes")
	}
	switch op := binary.BigEndian.Uint16(p); op {
	case 3: // DATA
		block := binary.BigEndian.Uint16(p[2:])
		if block != t.block+1 {
			return nil, false, nil // a repeat: the last ACK goes again
		}
		t.block = block
		t.bytes += int64(len(p) - 4)
		done = len(p)-4 < t.blksize
		if done && t.tsize >= 0 && t.bytes != t.tsize {
			return nil, true, fmt.Errorf("%d bytes came, %d were announced", t.bytes, t.tsize)
		}
		return []byte{0, 4, p[2], p[3]}, done, nil
	case 6: // OACK
		for f := fields(p[2:]); len(f) >= 2; f = f[2:] {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return nil, false, fmt.Errorf("option %s is %q", f[0], f[1])
			}
			switch f[0] {
			case "blksize":
				t.blksize = int(n)
			case "tsize":
				t.tsize = n
			}
		}
		return []byte{0, 4, 0, 0}, false, nil
	case 5: // ERROR
		return nil, false, fmt.Errorf("error %d: %s", binary.BigEndian.Uint16(p[2:]), fields(p[4:]))
	default:
		return nil, false, fmt.Errorf("opcode %d", op)
	}
}

func fields(b []byte) []string {
	var f []string
	for start, i := 0, 0; i < len(b); i++ {
		if b[i] == 0 {
			f = append(f, string(b[start:i]))
			start = i + 1
		}
	}
	return f
}
