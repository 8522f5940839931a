// Package httpboot serves boot files, scripts and documents by HTTP/1.1 to firmware, boot loaders and installers.
//
// Invariants: no redirect (UEFI's client and shim follow none), no chunked body (some firmware reads Content-Length
// only), HEAD as GET without the body, ranges for installers that resume; a path is cleaned here and never leaves
// the root; the client is the peer of the TCP connection, whatever headers say; no token is logged.
//
// Paths:
//
//	/files/NAME          a public boot file
//	/boot/MAC/KIND       a machine's script: script.ipxe, grub.cfg, extlinux.conf
//	/b/TOKEN/NAME        a document of an install attempt
//	/b/TOKEN/files/NAME  a boot file, for one that may be had with a token only
//	/b/TOKEN/report      POST: what the attempt's installer tells, schema.InstallReport in JSON
//	/healthz             "ok"
//	/metrics             counts, for Prometheus
//
// Not here: what a script says and who may have it (pxe/script).
package httpboot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"gpupool/pxe/boot"
	"gpupool/pxe/script"
	"gpupool/schema"
)

// Files opens a boot file beneath the root: fs.ErrNotExist, or fs.ErrPermission for what would leave it.
type Files interface {
	OpenFile(name string) (*os.File, error)
}

// Handler answers HTTP.
type Handler struct {
	Files   Files
	Scripts *script.Service
	Locator script.Locator
	Record  func(schema.BootEvidence) // must not block
	// Who tells the machine and attempt behind a MAC, for evidence.
	Who func(ctx context.Context, mac string) (server string, attempt int)
	Log *slog.Logger
	// Metrics answers /metrics; nil = there are none. They are counts, without names or addresses.
	Metrics http.Handler
	// Stall is how long a client may take for each 8 MiB of a file, 0 = 2 min, and for what it sends, 0 = 10 s.
	Stall time.Duration
}

// NewServer is the HTTP server around h: HTTP/1.1 only, with bounds on slow and idle clients and on connections, but none
// on how long a large file may take.
func NewServer(h *Handler) *http.Server {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return &http.Server{
		Handler: h, Protocols: p, ConnState: newConnections(perClient, total).state, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(h.Log.Handler(), slog.LevelDebug),
	}
}

const bodyWithin = 10 * time.Second

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	client := peer(r)
	if r.ContentLength != 0 {
		// What was said to come and doesn't would hold the connection, whether or not anybody here wants it.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(cmp.Or(h.Stall, bodyWithin)))
	}
	if token, ok := reportPath(r); ok {
		h.report(w, r, client, token)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		problem(w, http.StatusMethodNotAllowed, "only GET and HEAD are served")
		return
	}
	p, ok := clean(r.URL.Path)
	if !ok {
		h.Record(schema.BootEvidence{Kind: boot.KindHTTP, IP: client.String(), What: "(bad path)", Result: "refused: outside the boot files"})
		problem(w, http.StatusNotFound, "no such path")
		return
	}
	first, rest, _ := strings.Cut(p, "/")
	switch {
	case p == "metrics" && h.Metrics != nil:
		h.Metrics.ServeHTTP(w, r)
	case p == "healthz":
		body(w, r, "text/plain; charset=utf-8", []byte("ok\n"))
	case first == "files" && rest != "":
		h.file(w, r, client, rest)
	case first == "boot":
		mac, kind, _ := strings.Cut(rest, "/")
		h.script(w, r, client, mac, kind)
	case first == "b":
		token, name, _ := strings.Cut(rest, "/")
		h.document(w, r, client, token, name)
	default:
		problem(w, http.StatusNotFound, "no such path")
	}
}

// clean makes one canonical path of what firmware asks for (shim asks for //grubx64.efi). What points above the root
// is refused rather than bent.
func clean(p string) (string, bool) {
	if len(p) > 1024 || strings.ContainsFunc(p, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '\\' || r == 0xfffd }) {
		return "", false
	}
	for _, part := range strings.Split(p, "/") {
		if part == ".." {
			return "", false
		}
	}
	return strings.TrimPrefix(path.Clean("/"+p), "/"), true
}

func (h *Handler) script(w http.ResponseWriter, r *http.Request, client netip.Addr, mac, kind string) {
	mac, ok := script.ParseMAC(mac)
	k := script.Kind(kind)
	if kind == "script" {
		k = script.IPXE
	}
	if !ok || k != script.IPXE && k != script.GRUB && k != script.Extlinux {
		problem(w, http.StatusNotFound, "want /boot/MAC/script.ipxe, grub.cfg or extlinux.conf")
		return
	}
	if r.Method == http.MethodHead {
		// Making an install script mints a token; asking whether there is one must not.
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusOK)
		return
	}
	b, err := h.Scripts.Script(r.Context(), client, mac, k)
	if err != nil {
		h.fail(w, err)
		return
	}
	body(w, r, "text/plain; charset=utf-8", b)
}

func (h *Handler) document(w http.ResponseWriter, r *http.Request, client netip.Addr, token, name string) {
	if name == "" {
		problem(w, http.StatusNotFound, "no such path")
		return
	}
	holder, err := h.Scripts.Authorize(r.Context(), client, token, name)
	if err != nil {
		h.fail(w, err)
		return
	}
	if file, ok := strings.CutPrefix(name, "files/"); ok {
		h.file(w, r, client, file)
		return
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Allow", "GET")
		problem(w, http.StatusMethodNotAllowed, "a document is fetched with GET, once if it is secret")
		return
	}
	doc, err := h.Scripts.Document(r.Context(), client, holder, name)
	if err != nil {
		h.fail(w, err)
		return
	}
	body(w, r, doc.ContentType, doc.Body)
}

// maxReport bounds a report: what a sanitise run says of some dozens of drives.
const maxReport = 256 << 10

// reportPath is the token of a POST to /b/TOKEN/report, the one thing that may be posted.
func reportPath(r *http.Request) (token string, ok bool) {
	rest, b := strings.CutPrefix(r.URL.Path, "/b/")
	token, name, _ := strings.Cut(rest, "/")
	return token, b && r.Method == http.MethodPost && name == schema.InstallReportName
}

func (h *Handler) report(w http.ResponseWriter, r *http.Request, client netip.Addr, token string) {
	holder, err := h.Scripts.Authorize(r.Context(), client, token, schema.InstallReportName)
	if err != nil {
		h.fail(w, err)
		return
	}
	var report schema.InstallReport
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxReport)).Decode(&report); err != nil {
		problem(w, http.StatusBadRequest, "want a report in JSON: state and text")
		return
	}
	if err := h.Scripts.Report(r.Context(), client, holder, report); err != nil {
		h.fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (h *Handler) fail(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, script.ErrLimited):
		w.Header().Set("Retry-After", "60")
		problem(w, http.StatusTooManyRequests, "too many refused requests from this address")
	case errors.Is(err, script.ErrRefused):
		problem(w, http.StatusForbidden, "not for this client")
	case errors.Is(err, script.ErrMalformed):
		problem(w, http.StatusBadRequest, err.Error())
	case errors.Is(err, script.ErrNotFound):
		problem(w, http.StatusNotFound, "no such document")
	default:
		h.Log.Error("boot document", "err", err)
		problem(w, http.StatusServiceUnavailable, "try again")
	}
}

// file serves a public boot file. http.ServeContent does ranges, HEAD, Content-Length and sendfile.
func (h *Handler) file(w http.ResponseWriter, r *http.Request, client netip.Addr, name string) {
	e := schema.BootEvidence{Kind: boot.KindHTTP, IP: client.String(), What: name}
	defer func() {
		if mac, _, ok, err := h.Locator.MACAt(context.WithoutCancel(r.Context()), client); err == nil && ok {
			e.MAC = mac
			e.Server, e.Attempt = h.Who(context.WithoutCancel(r.Context()), mac)
		}
		h.Record(e)
	}()
	f, err := h.Files.OpenFile(name)
	if err != nil {
		e.Result = "no such file"
		if !errors.Is(err, fs.ErrNotExist) {
			e.Result = "refused: outside the boot files"
		}
		problem(w, http.StatusNotFound, "no such file")
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		e.Result = err.Error()
		problem(w, http.StatusInternalServerError, "read error")
		return
	}
	w.Header().Set("Content-Type", contentType(name))
	c := &counter{ResponseWriter: w, stall: cmp.Or(h.Stall, stall)}
	http.ServeContent(c, r, "", st.ModTime(), f)
	e.Bytes = c.n
	want, _ := strconv.ParseInt(c.Header().Get("Content-Length"), 10, 64)
	switch {
	case r.Method == http.MethodHead:
		e.Result = "ok: size asked for"
	case c.status >= 400 || c.status == http.StatusNotModified:
		e.Result = http.StatusText(c.status)
	case c.n < want:
		e.Result = "aborted by client"
	case c.status == http.StatusPartialContent:
		e.Result = "ok: " + c.Header().Get("Content-Range")
	default:
		e.Result = "ok"
	}
}

func contentType(name string) string {
	switch path.Ext(name) {
	case ".efi":
		return "application/efi" // what UEFI's HTTP boot takes for a program (UEFI 2.10 section 24.7.3.5)
	case ".iso":
		return "application/vnd.efi-iso"
	case ".img":
		return "application/vnd.efi-img"
	case ".cfg", ".ipxe", ".txt", ".conf":
		return "text/plain; charset=utf-8"
	}
	return "application/octet-stream"
}

// body answers with a whole small body, its length told first.
func body(w http.ResponseWriter, r *http.Request, typ string, b []byte) {
	if typ == "" {
		typ = "text/plain; charset=utf-8"
	}
	w.Header().Set("Content-Type", typ)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodHead {
		_, _ = w.Write(b)
	}
}

func problem(w http.ResponseWriter, status int, text string) {
	b := []byte(text + "\n")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(b)
}

// peer is who holds the other end of the connection. X-Forwarded-For and the like are what the client says.
func peer(r *http.Request) netip.Addr {
	a, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap().WithZone("")
}

// counter counts what was written. It passes ReadFrom on, which is what makes sendfile possible.
type counter struct {
	http.ResponseWriter
	n      int64
	status int
	stall  time.Duration
}

func (c *counter) WriteHeader(s int) {
	c.status = s
	c.ResponseWriter.WriteHeader(s)
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.n += int64(n)
	return n, err
}

// A client that takes less than a piece of a file in this time has gone, or holds the connection for the sake of it: what
// it takes is at least 70 kB/s, which any network that boots servers has.
const (
	piece = 8 << 20
	stall = 2 * time.Minute
)

// ReadFrom sends piece by piece, each with a time of its own: a large file may take as long as it does, but one that
// nobody reads is not held open for ever.
func (c *counter) ReadFrom(r io.Reader) (int64, error) {
	whole, ok := r.(*io.LimitedReader)
	if !ok {
		whole = &io.LimitedReader{R: r, N: 1<<63 - 1}
	}
	begun := c.n
	for whole.N > 0 {
		if err := c.deadline(time.Now().Add(c.stall)); err != nil {
			return c.n - begun, err
		}
		// A reader of the file itself and no more, or the system could not send it without copying.
		part := &io.LimitedReader{R: whole.R, N: min(whole.N, piece)}
		asked := part.N
		n, err := io.Copy(c.ResponseWriter, part)
		c.n, whole.N = c.n+n, whole.N-n
		if err != nil || n < asked {
			return c.n - begun, err
		}
	}
	return c.n - begun, c.deadline(time.Time{})
}

func (c *counter) deadline(t time.Time) error {
	err := http.NewResponseController(c.ResponseWriter).SetWriteDeadline(t)
	if errors.Is(err, http.ErrNotSupported) {
		return nil // a recorder, in tests
	}
	return err
}
