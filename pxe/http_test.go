package pxe_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpupool/pxe"
	"gpupool/pxe/boot"
	"gpupool/pxe/pxetest"
	"gpupool/pxe/tftp"
	"gpupool/schema"
)

// raw sends a request as bytes and returns the response's head and body, on a connection of its own.
func raw(t *testing.T, s *site, request string) (*http.Response, []byte) {
	t.Helper()
	c, err := net.Dial("tcp", s.Addrs().HTTP.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	r, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r, b
}

func TestHTTPAsFirmwareSpeaksIt(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.11", nil)
	secret := filepath.Join(filepath.Dir(s.root), filepath.Base(s.root)+"-secret")
	if err := os.WriteFile(secret, []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(secret) })
	if err := os.Symlink(secret, filepath.Join(s.root, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.root, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	whole := strings.Repeat("efi", 1000)
	for name, c := range map[string]struct {
		request string
		status  int
		length  int64
		body    string
		header  map[string]string
	}{
		"GET":                         {"GET /files/snponly.efi HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 200, 3000, whole, map[string]string{"Content-Type": "application/efi", "Accept-Ranges": "bytes"}},
		"HEAD":                        {"HEAD /files/snponly.efi HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 200, 3000, "", map[string]string{"Content-Type": "application/efi"}},
		"a doubled slash":             {"GET //files//snponly.efi HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 200, 3000, whole, nil},
		"HTTP/1.0":                    {"GET /files/vmlinuz HTTP/1.0\r\n\r\n", 200, 6, "kernel", nil},
		"an absolute URL":             {"GET http://h/files/vmlinuz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 200, 6, "kernel", nil},
		"a range":                     {"GET /files/vmlinuz HTTP/1.1\r\nHost: h\r\nRange: bytes=2-3\r\nConnection: close\r\n\r\n", 206, 2, "rn", map[string]string{"Content-Range": "bytes 2-3/6"}},
		"a range to the end":          {"GET /files/vmlinuz HTTP/1.1\r\nHost: h\r\nRange: bytes=4-\r\nConnection: close\r\n\r\n", 206, 2, "el", nil},
		"a range past the end":        {"GET /files/vmlinuz HTTP/1.1\r\nHost: h\r\nRange: bytes=60-\r\nConnection: close\r\n\r\n", 416, -2, "", nil},
		"a folder":                    {"GET /files/dir HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 404, -2, "", nil},
		"a folder with a slash":       {"GET /files/dir/ HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 404, -2, "", nil},
		"index.html":                  {"GET /files/index.html HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 404, -2, "", nil},
		"a link that leads out":       {"GET /files/link HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 404, -2, "", nil},
		"upwards":                     {"GET /files/../" + filepath.Base(secret) + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 404, -2, "", nil},
		"upwards, encoded":            {"GET /files/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 404, -2, "", nil},
		"upwards, with backslashes":   {"GET /files/..%5c..%5cetc%5cpasswd HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 404, -2, "", nil},
		"a NUL":                       {"GET /files/vmlinuz%00.efi HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 404, -2, "", nil},
		"a file that isn't there":     {"GET /files/nothing HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 404, -2, "", nil},
		"the root":                    {"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 404, -2, "", nil},
		"health":                      {"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 200, 3, "ok\n", nil},
		"POST":                        {"POST /files/vmlinuz HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 405, -2, "", map[string]string{"Allow": "GET, HEAD"}},
		"PUT":                         {"PUT /files/new HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx", 405, -2, "", nil},
		"a script for no MAC":         {"GET /boot/nonsense/script.ipxe HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 404, -2, "", nil},
		"a script of no kind":         {"GET /boot/" + mac + "/passwd HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 404, -2, "", nil},
		"HEAD of a script":            {"HEAD /boot/" + mac + "/script.ipxe HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 200, -1, "", nil},
		"a MAC with hyphens":          {"GET /boot/01-52-54-00-77-00-01/script.ipxe HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 200, -2, "", nil},
		"a wish for another protocol": {"GET /files/vmlinuz HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", 200, 6, "kernel", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, b := raw(t, s, c.request)
			if r.StatusCode != c.status || len(r.TransferEncoding) != 0 || r.Header.Get("Location") != "" {
				t.Fatalf("%s %v %v %q; want %d, not chunked, no redirect", r.Status, r.TransferEncoding, r.Header, b, c.status)
			}
			if c.length != -2 && r.ContentLength != c.length || c.length == -2 && r.ContentLength < 0 {
				t.Fatalf("Content-Length %d, want %d", r.ContentLength, c.length)
			}
			if c.status/100 == 2 && c.length >= 0 && string(b) != c.body || bytes.Contains(b, []byte("outside")) {
				t.Fatalf("body %q, want %q", b, c.body)
			}
			for k, v := range c.header {
				if r.Header.Get(k) != v {
					t.Fatalf("%s is %q, want %q", k, r.Header.Get(k), v)
				}
			}
		})
	}
}

func TestADownloadThatIsCutIsEvidence(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.12", nil)
	if err := os.WriteFile(filepath.Join(s.root, "big"), make([]byte, 64<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", s.Addrs().HTTP.String())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "GET /files/big HTTP/1.1\r\nHost: h\r\n\r\n")
	if _, err := io.CopyN(io.Discard, c, 1000); err != nil {
		t.Fatal(err)
	}
	c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	e, err := s.Wait(ctx, func(e schema.BootEvidence) bool { return e.What == "big" })
	if err != nil || e.Result != "aborted by client" || e.Bytes >= 64<<20 {
		t.Fatalf("%+v, %v", e, err)
	}
}

func TestLoadersThatFetchTheirScriptByTFTPGetTheSame(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.13", nil)
	s.Arm("srv-1", 1)
	ip := s.client(t, mac, "127.77.13.1").lease(pxeX64).YourIPAddr
	read := func(from net.IP, name string) []byte {
		t.Helper()
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: from})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.WriteToUDPAddrPort([]byte("\x00\x01"+name+"\x00octet\x00blksize\x008192\x00"), s.Addrs().TFTP); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 9000)
		for {
			c.SetReadDeadline(time.Now().Add(5 * time.Second))
			n, at, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				t.Fatal(err)
			}
			if b[1] == 6 {
				c.WriteToUDPAddrPort([]byte{0, 4, 0, 0}, at)
				continue
			}
			if b[1] == 3 {
				c.WriteToUDPAddrPort([]byte{0, 4, 0, 1}, at)
			}
			return b[:n]
		}
	}
	if b := read(net.IPv4(127, 77, 13, 99), "grub/grub.cfg-01-52-54-00-77-00-01"); !bytes.HasPrefix(b, []byte("\x00\x05\x00\x02")) {
		t.Fatalf("a neighbour got %q", b)
	}
	b := read(ip, "grub/grub.cfg-01-52-54-00-77-00-01")
	if !bytes.Contains(b, []byte("linux /vmlinuz gpupool.enrol="+s.URL()+"/b/")) || !bytes.Contains(b, []byte("initrd /initrd\n")) {
		t.Fatalf("GRUB's script: %q", b)
	}
	s.Disarm("srv-1")
	if b := read(ip, "/grub/grub.cfg"); !bytes.Contains(b, []byte("chainloader")) || bytes.Contains(b, []byte("/b/")) {
		t.Fatalf("GRUB's script after the attempt: %q", b)
	}
	if b := read(ip, "pxelinux.cfg/01-52-54-00-77-00-01"); !bytes.Contains(b, []byte("LOCALBOOT 0")) {
		t.Fatalf("U-Boot's script: %q", b)
	}
	if b := read(net.IPv4(127, 77, 13, 99), "grub.cfg"); !bytes.HasPrefix(b, []byte("\x00\x05\x00\x01")) {
		t.Fatalf("a client without a lease got %q", b)
	}
	// A file that the operator put there wins.
	if err := os.WriteFile(filepath.Join(s.root, "grub.cfg"), []byte("own"), 0o644); err != nil {
		t.Fatal(err)
	}
	if b := read(ip, "grub.cfg"); string(b[4:]) != "own" {
		t.Fatalf("the operator's own file: %q", b)
	}
}

// TestWhatTFTPServesAndRefusesIsEvidence: whose file it was, how much of it, and how it ended; what points outside and what
// would be written is of a kind of its own, for who audits.
func TestWhatTFTPServesAndRefusesIsEvidence(t *testing.T) {
	t.Parallel()
	s := newSite(t, "127.77.19", nil)
	s.Arm("srv-1", 2)
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: s.client(t, mac, "127.77.19.1").lease(pxeX64).YourIPAddr})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := os.WriteFile(filepath.Join(s.root, "small.efi"), make([]byte, 700), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(s.root, "link")); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		request, answer, kind, what, result string
		bytes                               int64
	}{
		{"\x00\x01small.efi\x00octet\x00", "\x00\x03", boot.KindTFTP, "small.efi", "ok", 700},
		{"\x00\x01..\\..\\etc\\passwd\x00octet\x00", "\x00\x05\x00\x02", boot.KindTFTPDenied, "..\\..\\etc\\passwd", string(tftp.Denied), 0},
		{"\x00\x01/../tftp-secret/x\x00octet\x00", "\x00\x05\x00\x02", boot.KindTFTPDenied, "/../tftp-secret/x", string(tftp.Denied), 0},
		{"\x00\x01link\x00octet\x00", "\x00\x05\x00\x02", boot.KindTFTPDenied, "link", string(tftp.Denied), 0},
		{"\x00\x02small.efi\x00octet\x00", "\x00\x05\x00\x02", boot.KindTFTPDenied, "small.efi", string(tftp.Write), 0},
		{"\x00\x01/etc/passwd\x00octet\x00", "\x00\x05\x00\x01", boot.KindTFTP, "etc/passwd", string(tftp.NotFound), 0},
	} {
		if _, err := c.WriteToUDPAddrPort([]byte(x.request), s.Addrs().TFTP); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 600)
		for block := byte(1); ; block++ {
			if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			n, at, err := c.ReadFromUDPAddrPort(b)
			if err != nil || !strings.HasPrefix(string(b[:n]), x.answer) {
				t.Fatalf("%q is answered %q, %v; want %q", x.request, b[:n], err, x.answer)
			}
			if b[1] != 3 {
				break
			}
			if _, err := c.WriteToUDPAddrPort([]byte{0, 4, 0, block}, at); err != nil {
				t.Fatal(err)
			}
			if n < 516 {
				break
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		e, err := s.Wait(ctx, func(e schema.BootEvidence) bool { return e.Kind == x.kind && e.What == x.what })
		cancel()
		if err != nil || e.MAC != mac || e.Server != "srv-1" || e.Attempt != 2 || e.Bytes != x.bytes || e.Result != x.result {
			t.Fatalf("%q: %+v %v; want %s of %d bytes of %s, attempt 2: %s", x.request, e, err, x.kind, x.bytes, mac, x.result)
		}
	}
}

// certificate makes one for 127.0.0.1 and writes it and its key to files.
func certificate(t *testing.T) (certFile, keyFile string, der []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "pxe"}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err = x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	kb, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, b := range map[string][]byte{certFile: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), keyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kb})} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile, der
}

func TestHTTPSWithTheOperatorsCertificate(t *testing.T) {
	t.Parallel()
	cf, kf, der := certificate(t)
	s := newSite(t, "127.77.14", func(c *pxe.Config) { c.TLSCert, c.TLSKey = cf, kf })
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	r, err := (&http.Client{Transport: tr}).Get(s.URL() + "/files/vmlinuz")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); err != nil || string(b) != "kernel" || r.ProtoMajor != 1 || !strings.HasPrefix(s.URL(), "https://") {
		t.Fatalf("%s %s %q %v", s.URL(), r.Proto, b, err)
	}
}

// FuzzHTTPPath: no path gets anything but a file of the root or a script without a secret, and none is redirected.
func FuzzHTTPPath(f *testing.F) {
	for _, p := range []string{"files/vmlinuz", "/files/../x", "boot/52:54:00:77:00:01/script.ipxe", "b/x/files/vmlinuz", "files/%2e%2e/passwd", "healthz", "b//", "boot///", "files/%00"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.ParseRequestURI("/" + path)
		if err != nil {
			return // net/http refuses it before the handler
		}
		h := fuzzed(t)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, &http.Request{Method: http.MethodGet, URL: u, RemoteAddr: "127.0.0.1:1", Header: http.Header{}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1})
		b := w.Body.Bytes()
		if w.Code/100 == 3 || w.Code >= 500 || w.Header().Get("Content-Length") != strconv.Itoa(len(b)) || bytes.Contains(b, []byte("outside")) || bytes.Contains(b, []byte("/b/")) {
			t.Fatalf("%q: %d %v %q", path, w.Code, w.Header(), b)
		}
	})
}

// fuzzed is a handler without sockets over a root that has a file beside it.
func fuzzed(t *testing.T) http.Handler {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for name, text := range map[string]string{"passwd": "outside", "root/vmlinuz": "kernel"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := pxetest.New()
	p.Put(boot.Machine{ID: "srv-1", Phase: schema.PhaseAvailable}, mac)
	s, err := pxe.New(pxe.Config{Mode: "proxy", ServerID: "127.0.0.1", DHCP: pxe.Off, PXE: pxe.Off, TFTP: pxe.Off, HTTP: pxe.Off, URL: "http://127.0.0.1", Root: root},
		pxe.Deps{Inventory: p, Tokens: p, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.Handler()
}
