package script

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"gpupool/pxe/boot"
	"gpupool/schema"
)

// Errors that the servers turn into their protocol's own.
var (
	ErrRefused  = errors.New("refused")           // the client may not have this
	ErrLimited  = errors.New("too many refusals") // it has guessed too often
	ErrNotFound = errors.New("no such document")

	ErrMalformed = errors.New("malformed")
)

// Locator tells which MAC an address belongs to; see dhcp.Server.MACAt.
type Locator interface {
	MACAt(ctx context.Context, ip netip.Addr) (mac, exchange string, ok bool, err error)
}

// Config of a Service.
type Config struct {
	// URL is this service's own, as its clients reach it: http://10.1.0.2:8080, without a slash at the end.
	URL string
	// URL6 is the same for clients that come over IPv6; empty = URL.
	URL6 string
	// APIURL is where an installed machine phones home; it is told in the enrol document.
	APIURL string
	// Plan is what is booted where there is no Installer.
	Plan boot.Plan
}

// Deps is what a Service works with. Record must not block.
type Deps struct {
	Inventory boot.Inventory
	Tokens    boot.Tokens
	Installer boot.Installer // nil = Config.Plan, and no document but enrol
	Reports   boot.Reports   // nil = reports of installers are evidence, and no more
	Locator   Locator
	Record    func(schema.BootEvidence)
	Progress  func(mac string) // told when a machine fetched its script
	Log       *slog.Logger
	Now       func() time.Time
}

// Service answers for scripts and documents, for HTTP and TFTP alike. Its methods are safe for concurrent use.
type Service struct {
	c Config
	Deps

	mu     sync.Mutex
	served map[string]string // MAC -> the exchange its last install script was given in
	guess  map[netip.Addr]*refusals
}

// New returns a Service.
func New(c Config, d Deps) *Service {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.Record == nil {
		d.Record = func(schema.BootEvidence) {}
	}
	if d.Progress == nil {
		d.Progress = func(string) {}
	}
	c.URL, c.URL6 = strings.TrimSuffix(c.URL, "/"), strings.TrimSuffix(c.URL6, "/")
	if c.URL6 == "" {
		c.URL6 = c.URL
	}
	return &Service{c: c, Deps: d, served: map[string]string{}, guess: map[netip.Addr]*refusals{}}
}

// ScriptURL is where a MAC's iPXE script is.
func (s *Service) ScriptURL(mac string) string { return s.c.URL + "/boot/" + mac + "/" + string(IPXE) }

// ScriptURL6 is the same for a machine that comes over IPv6.
func (s *Service) ScriptURL6(mac string) string {
	return s.c.URL6 + "/boot/" + mac + "/" + string(IPXE)
}

// url is this service's own, as a client at that address reaches it.
func (s *Service) url(client netip.Addr) string {
	if client.Is6() {
		return s.c.URL6
	}
	return s.c.URL
}

// FilesURL is where the public boot files are.
func (s *Service) FilesURL() string { return s.c.URL + "/files" }

// ParseMAC reads a MAC as boot loaders write it: with colons or hyphens, with the hardware type in front (01-...),
// or bare.
func ParseMAC(t string) (string, bool) {
	if len(t) == 20 && (strings.HasPrefix(t, "01-") || strings.HasPrefix(t, "01:")) {
		t = t[3:]
	}
	if len(t) == 12 {
		t = t[:2] + ":" + t[2:4] + ":" + t[4:6] + ":" + t[6:8] + ":" + t[8:10] + ":" + t[10:]
	}
	hw, err := net.ParseMAC(t)
	if err != nil {
		return "", false
	}
	return boot.MAC(hw), true
}

// Script is the script of a MAC, for a client at an address. head asks whether there is one without making it.
func (s *Service) Script(ctx context.Context, client netip.Addr, mac string, k Kind) ([]byte, error) {
	m, found, err := s.Inventory.ByMAC(ctx, mac)
	if err != nil {
		return nil, fmt.Errorf("inventory: %w", err)
	}
	if !found {
		return s.toDisk(client, mac, m, k, "it is not in the inventory")
	}
	armed, why := m.InstallAt(s.Now())
	did := "install"
	if armed == nil {
		if !s.inMemory(m) {
			return s.toDisk(client, mac, m, k, why)
		}
		m = m.Holding()
		armed, did = m.Armed, "its system, which lives in memory, again"
	}
	at, exchange, ok, err := s.Locator.MACAt(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("leases: %w", err)
	}
	if !ok || at != mac {
		return nil, s.refuse(client, boot.KindRefused, mac, m, string(k), "an install script is given only to the address that is leased to its MAC")
	}
	if !s.take(mac, exchange) {
		return nil, s.refuse(client, boot.KindRefused, mac, m, string(k), "the install script of this DHCP exchange was already given out: either the machine fetched it twice, or someone else did")
	}
	body, err := s.install(ctx, client, m, *armed, mac, k)
	if err != nil {
		s.give(mac, exchange)
		s.Record(s.evidence(boot.KindScript, client, mac, m, string(k), err.Error()))
		return nil, err
	}
	s.Progress(mac)
	e := s.evidence(boot.KindScript, client, mac, m, string(k)+": "+did, "ok")
	e.Bytes = int64(len(body))
	s.Record(e)
	return body, nil
}

// inMemory reports whether the system that the machine runs lives in memory: without being given it again it has none.
func (s *Service) inMemory(m boot.Machine) bool {
	return m.Runs != nil && s.Installer != nil && s.Installer.InMemory(m.Runs.Profile)
}

func (s *Service) toDisk(client netip.Addr, mac string, m boot.Machine, k Kind, why string) ([]byte, error) {
	body := []byte(disk(k, why))
	s.Progress(mac)
	e := s.evidence(boot.KindScript, client, mac, m, string(k)+": boot from disk", "ok: "+why)
	e.Bytes = int64(len(body))
	s.Record(e)
	return body, nil
}

func (s *Service) install(ctx context.Context, client netip.Addr, m boot.Machine, a schema.Armed, mac string, k Kind) ([]byte, error) {
	plan := s.c.Plan
	if s.Installer != nil {
		var err error
		if plan, err = s.Installer.Plan(ctx, m); err != nil {
			return nil, fmt.Errorf("install profile %q: %w", a.Profile, err)
		}
	}
	token, err := s.Tokens.Mint(ctx, m.ID, a.Attempt, schema.PurposeScript)
	if err != nil {
		return nil, fmt.Errorf("mint the attempt's boot token: %w", err)
	}
	text, err := install(k, plan, vars{base: s.url(client) + "/b/" + token, files: s.url(client) + "/files", server: m.ID, name: m.Name, mac: mac, attempt: a.Attempt})
	return []byte(text), err
}

// take claims the one install script of a DHCP exchange. An exchange that has no name (proxy mode: the addresses are
// another server's) isn't limited; each mint still revokes the one before.
func (s *Service) take(mac, exchange string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if exchange != "" && s.served[mac] == exchange {
		return false
	}
	s.served[mac] = exchange
	return true
}

// give takes the claim back: no script was made.
func (s *Service) give(mac, exchange string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.served[mac] == exchange {
		delete(s.served, mac)
	}
}

// Enrol is the built-in document that tells an installed machine who it is and how to phone home.
type Enrol struct {
	Server  string `json:"server"`
	Name    string `json:"name"`
	Attempt int    `json:"attempt"`
	Profile string `json:"profile"`
	API     string `json:"api"`        // URL to phone home to
	Token   string `json:"phone_home"` // for it, once
}

// EnrolName is the name of that document.
const EnrolName = "enrol"

// Holder is who shows a valid token: the machine of its grant, at an address of that machine.
type Holder struct {
	Machine boot.Machine
	MAC     string
	Attempt int
	token   string
}

// Authorize checks a token that a client shows in a path: it is live, for scripts, of the machine that has the
// client's address, and that machine is still armed for the same attempt. what is told as evidence.
func (s *Service) Authorize(ctx context.Context, client netip.Addr, token, what string) (Holder, error) {
	if s.limited(client) {
		return Holder{}, ErrLimited
	}
	no := func(m boot.Machine, mac, why string) (Holder, error) {
		return Holder{}, s.refuse(client, boot.KindToken, mac, m, what, why)
	}
	g, err := s.Tokens.Check(ctx, token)
	if errors.Is(err, boot.ErrToken) {
		return no(boot.Machine{}, "", "the token is unknown, expired or revoked")
	}
	if err != nil {
		return Holder{}, fmt.Errorf("boot tokens: %w", err)
	}
	m, found, err := s.Inventory.ByID(ctx, g.Server)
	if err != nil {
		return Holder{}, fmt.Errorf("inventory: %w", err)
	}
	if !found || g.Purpose != schema.PurposeScript {
		return no(m, "", "the token is not for boot documents")
	}
	mac, _, ok, err := s.Locator.MACAt(ctx, client)
	if err != nil {
		return Holder{}, fmt.Errorf("leases: %w", err)
	}
	at := boot.Machine{}
	if ok {
		if at, ok, err = s.Inventory.ByMAC(ctx, mac); err != nil {
			return Holder{}, fmt.Errorf("inventory: %w", err)
		}
	}
	if !ok || at.ID != g.Server {
		return no(m, mac, "the token was shown from an address that is not its machine's")
	}
	armed, why := m.InstallAt(s.Now())
	if armed == nil && s.inMemory(m) {
		m = m.Holding()
		armed = m.Armed
	}
	if armed == nil {
		return no(m, mac, why)
	}
	if armed.Attempt != g.Attempt {
		return no(m, mac, fmt.Sprintf("the token is of attempt %d; attempt %d is armed", g.Attempt, armed.Attempt))
	}
	return Holder{Machine: m, MAC: mac, Attempt: g.Attempt, token: token}, nil
}

// Document makes one document for a token's holder. A secret one is made once for each token.
func (s *Service) Document(ctx context.Context, client netip.Addr, h Holder, name string) (boot.Document, error) {
	used := false
	use := func() error {
		if used {
			return nil
		}
		_, err := s.Tokens.Use(ctx, h.token, name)
		used = err == nil
		return err
	}
	// The document is marked as fetched before the phone-home token is minted: minting revokes the earlier one, so
	// a second fetch would otherwise break the install that runs.
	phoneHome := func(ctx context.Context) (string, error) {
		if err := use(); err != nil {
			return "", err
		}
		return s.Tokens.Mint(ctx, h.Machine.ID, h.Attempt, schema.PurposePhoneHome)
	}
	doc, err := s.make(ctx, client, h, name, phoneHome)
	if err == nil && doc.Secret {
		err = use()
	}
	switch {
	case errors.Is(err, boot.ErrTokenUsed):
		return boot.Document{}, s.refuse(client, boot.KindToken, h.MAC, h.Machine, name, "this secret was already fetched with this token")
	case errors.Is(err, boot.ErrToken):
		return boot.Document{}, s.refuse(client, boot.KindToken, h.MAC, h.Machine, name, "the token was revoked meanwhile")
	case errors.Is(err, boot.ErrNoSuch):
		return boot.Document{}, fmt.Errorf("%w: %s", ErrNotFound, name)
	case err != nil:
		s.Record(s.evidence(boot.KindDocument, client, h.MAC, h.Machine, name, err.Error()))
		return boot.Document{}, err
	}
	e := s.evidence(boot.KindDocument, client, h.MAC, h.Machine, name, "ok")
	e.Bytes = int64(len(doc.Body))
	s.Record(e)
	return doc, nil
}

// maxReport bounds a report's text, in bytes.
const maxReport = 2000

// Report takes what the installer of a token's holder tells.
func (s *Service) Report(ctx context.Context, client netip.Addr, h Holder, r schema.InstallReport) error {
	if !r.State.Valid() {
		return fmt.Errorf("%w: state %q: want running, installed or failed", ErrMalformed, r.State)
	}
	r.Text = oneLine(strings.ToValidUTF8(r.Text[:min(len(r.Text), maxReport)], ""))
	s.Record(s.evidence(boot.KindReport, client, h.MAC, h.Machine, string(r.State), r.Text))
	if s.Reports == nil {
		return nil
	}
	if err := s.Reports.ReportInstall(ctx, h.Machine.ID, h.Attempt, r); err != nil {
		return fmt.Errorf("install report: %w", err)
	}
	return nil
}

func (s *Service) make(ctx context.Context, client netip.Addr, h Holder, name string, phoneHome func(context.Context) (string, error)) (boot.Document, error) {
	if name == EnrolName && !h.Machine.Armed.Sanitise { // nobody phones home from a server that is emptied
		token, err := phoneHome(ctx)
		if err != nil {
			return boot.Document{}, err
		}
		b, err := json.Marshal(Enrol{h.Machine.ID, h.Machine.Name, h.Attempt, h.Machine.Armed.Profile, s.c.APIURL, token})
		return boot.Document{ContentType: "application/json", Body: b, Secret: true}, err
	}
	if s.Installer == nil {
		return boot.Document{}, boot.ErrNoSuch
	}
	return s.Installer.Document(ctx, boot.DocumentRequest{Machine: h.Machine, Attempt: h.Attempt, Name: name, Base: s.url(client) + "/b/" + h.token, Files: s.url(client) + "/files", PhoneHome: phoneHome})
}

func (s *Service) evidence(kind string, client netip.Addr, mac string, m boot.Machine, what, result string) schema.BootEvidence {
	e := schema.BootEvidence{Kind: kind, MAC: mac, IP: client.String(), Server: m.ID, What: what, Result: result}
	if m.Armed != nil {
		e.Attempt = m.Armed.Attempt
	}
	return e
}
