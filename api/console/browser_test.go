//go:build browser

package console_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"gpupool/api/testpool"
	"gpupool/schema"
	"gpupool/schema/store"
)

// browser is a tab that notes what a person would not see: errors, and requests that leave the pool.
type browser struct {
	t    *testing.T
	ctx  context.Context
	pool *testpool.Pool
	dir  string // where the pictures go

	mu    sync.Mutex
	wrong []string
}

func newBrowser(t *testing.T, p *testpool.Pool) *browser {
	t.Helper()
	found := false
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if _, err := exec.LookPath(name); err == nil {
			found = true
		}
	}
	if !found {
		t.Skip("no Chromium here: apt-get install --no-install-recommends chromium fonts-dejavu-core")
	}
	dir, err := filepath.Abs("../../build/browser")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.WindowSize(1280, 900))
	alloc, stop := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(stop)
	b := &browser{t: t, pool: p, dir: dir}
	ctx, stop := chromedp.NewContext(alloc)
	t.Cleanup(stop)
	b.ctx = ctx
	b.do(chromedp.Navigate("about:blank")) // starts the browser, without a deadline of its own
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatal(err)
	}
	command(b, network.Enable, network.EnableParams{})
	command(b, log.Enable, cdp.Empty{})
	command(b, runtime.Enable, cdp.Empty{})
	command(b, page.Enable, page.EnableParams{})
	return b
}

// hear runs in the browser's reader: it must not ask the browser anything.
func (b *browser) hear(ev any) {
	switch e := ev.(type) {
	case *runtime.EventExceptionThrown:
		b.note("exception: " + e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		// A refused form is a 4xx by intent, and the browser logs it.
		if e.Entry.Level == "error" && !strings.Contains(e.Entry.Text, "the server responded with a status of 4") {
			b.note("console: " + e.Entry.Text)
		}
	case *network.EventRequestWillBeSent:
		if u := e.Request.URL; !strings.HasPrefix(u, b.pool.URL+"/") && !strings.HasPrefix(u, "data:") && !strings.HasPrefix(u, "about:") {
			b.note("a request leaves the pool: " + u)
		}
	case *page.EventJavascriptDialogOpening:
		go func() {
			if _, err := chromedp.Call(b.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true}); err != nil {
				b.note("dialog: " + err.Error())
			}
		}()
	}
}

// command sends one command of the browser's protocol.
func command[P, R any](b *browser, cmd cdp.Command[P, R], params P) {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, cmd, params); err != nil {
		b.t.Fatal(err)
	}
}

// phone gives the page a phone's screen; desk a desk's.
func (b *browser) phone() {
	b.t.Helper()
	command(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 390, Height: 844, DeviceScaleFactor: 2, Mobile: true})
}

func (b *browser) desk() {
	b.t.Helper()
	command(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 1280, Height: 900, DeviceScaleFactor: 1})
}

func (b *browser) scheme(name string) {
	b.t.Helper()
	command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}}})
}

func (b *browser) note(s string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = append(b.wrong, s)
}

// do runs actions, each for at most half a minute.
func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, stop := b.ctx, func() {}
	if chromedp.FromContext(b.ctx).Target != nil { // the first call starts the browser, and its deadline would end it
		ctx, stop = context.WithTimeout(b.ctx, 30*time.Second)
	}
	defer stop()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.picture("failed")
		b.t.Fatal(err)
	}
}

func (b *browser) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.pool.URL+path), chromedp.WaitReady(chromedp.CSS("main")))
}

// sees waits until the page's text holds s, without the page being loaded again by the test.
func (b *browser) sees(s string) {
	b.t.Helper()
	ctx, stop := context.WithTimeout(b.ctx, 20*time.Second)
	defer stop()
	says := fmt.Sprintf("document.body.innerText.toLowerCase().includes(%q)", strings.ToLower(s))
	for {
		// A page that is just being left answers with an error; the next one is asked then.
		if ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](says)); err == nil && ok {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			b.picture("failed")
			text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.body.innerText"))
			b.t.Fatalf("the page never says %q; it says:\n%s", s, text)
		}
	}
}

func (b *browser) submit(selector string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

// picture keeps the whole page as an image, for people to look at.
func (b *browser) picture(name string) {
	b.t.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Logf("no picture %s: %v", name, err)
		return
	}
	if err := os.WriteFile(filepath.Join(b.dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// look takes pictures in light, dark and at a phone's width, and checks what a picture doesn't show.
func (b *browser) look(name string) {
	b.t.Helper()
	b.desk()
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		b.check(name+" ("+scheme+")", contrast)
		b.picture(name + "-" + scheme)
	}
	b.check(name, labelled)
	b.scheme("light")
	b.phone()
	b.check(name+" (phone)", narrow)
	b.picture(name + "-phone")
	b.desk()
}

func (b *browser) check(name, script string) {
	b.t.Helper()
	bad, err := chromedp.Run(b.ctx, chromedp.Evaluate[[]string](script))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, s := range bad {
		b.t.Errorf("%s: %s", name, s)
	}
}

// contrast finds text whose contrast with what is behind it is below WCAG 2.2's 4.5 to 1 (3 to 1 for large text).
const contrast = `(() => {
  const rgb = s => { const m = s.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const lum = c => { const f = c.slice(0, 3).map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * f[0] + .7152 * f[1] + .0722 * f[2]; };
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] > 0) return c; } return [255, 255, 255, 1]; };
  const bad = [];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility()) continue;
    const st = getComputedStyle(e), a = lum(rgb(st.color)), b = lum(behind(e));
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05), size = parseFloat(st.fontSize);
    const need = size >= 24 || (size >= 18.66 && +st.fontWeight >= 700) ? 3 : 4.5;
    if (ratio < need) bad.push("contrast " + ratio.toFixed(2) + " of " + JSON.stringify(e.textContent.trim().slice(0, 40)));
  }
  return bad;
})()`

// labelled finds controls without a name, images without a text, tables without headings, and ids used twice.
const labelled = `(() => {
  const bad = [], seen = new Set();
  for (const e of document.querySelectorAll("input:not([type=hidden]), select, textarea")) if (!e.labels.length) bad.push("no label: " + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll("button, a[href]")) if (!(e.textContent.trim() || e.ariaLabel)) bad.push("no name: " + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll("[role=img]")) if (!e.ariaLabel) bad.push("no text: " + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll("[id]")) { if (seen.has(e.id)) bad.push("id twice: " + e.id); seen.add(e.id); }
  if (document.querySelectorAll("h1").length !== 1) bad.push(document.querySelectorAll("h1").length + " headings of the first level");
  if (!document.documentElement.lang) bad.push("no language");
  if (document.querySelector("[style]:not(.plot *), style, script:not([src])")) bad.push("inline style or script: " + document.querySelector("[style]:not(.plot *), style, script:not([src])").outerHTML.slice(0, 80));
  return bad;
})()`

// narrow finds a page that scrolls sideways, and targets too small for a thumb.
const narrow = `(() => {
  const bad = [];
  if (document.documentElement.scrollWidth > innerWidth) bad.push("it is " + document.documentElement.scrollWidth + " wide on a screen of " + innerWidth);
  for (const e of document.querySelectorAll("main button, main input:not([type=hidden]):not([type=checkbox])")) { const r = e.getBoundingClientRect(); if (r.height && r.height < 40) bad.push("only " + r.height + " high: " + e.outerHTML.slice(0, 60)); }
  return bad;
})()`

// A person's way through the console: signing in, watching servers arrive, mending one, reading why a job waits,
// cancelling it, and repairing a GPU on a phone. Nothing is reloaded by hand.
func TestBrowserTheWayThroughTheConsole(t *testing.T) {
	p, err := testpool.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	b := newBrowser(t, p)

	b.open("/ui/servers")
	b.sees("API token")
	b.look("login")
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), "gpt_wrong"))
	b.submit("button.main")
	b.sees("not an API token")
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), p.Token))
	b.submit("button.main")
	b.sees("No server is here") // where it was going

	b.open("/ui/")
	b.sees("Nothing waits for a person")
	for i, serial := range []string{"J1", testpool.BadSerial + "2"} {
		enroll(t, p, i+1, serial)
	}
	b.sees("enrolled") // by itself
	b.open("/ui/servers")
	b.sees("r1s2")
	for _, name := range []string{"r1s1", "r1s2"} {
		v, err := p.Store.Server(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		b.open("/ui/servers/" + v.ID)
		b.submit("button.main") // Onboard, and the question
		b.sees("Onboarding has started")
	}
	b.sees("Stopped at burn-in")
	b.sees("1.9 TB/s")
	b.look("server-stopped")
	b.open("/ui/")
	b.sees("Retry, skip or abort")
	b.look("pool")
	b.submit("main td a[href*='#do']")
	b.do(chromedp.WaitVisible(chromedp.CSS("#do")))
	b.submit("#do button.main")
	b.sees("in the pool")
	b.sees("SXM8")
	b.do(chromedp.SendKeys(chromedp.CSS("#reason"), "cable check"))
	b.submit("button[formaction$='/cordon']")
	b.sees("No new jobs will start here")
	b.sees("cable check")
	b.submit("form[action$='/uncordon'] button")
	b.sees("The operator's cordon is lifted")

	jobs := submit(t, p)
	b.open("/ui/jobs")
	b.sees("not enough free accelerators")
	b.look("jobs")
	b.open("/ui/jobs/" + jobs["waits"])
	b.sees("CAPACITY")
	b.sees("Clears when")
	b.look("job-waiting")
	b.open("/ui/jobs/" + jobs["runs"])
	b.sees("node 0 of 2")
	b.look("job-running")
	b.submit("button.danger") // Cancel, and the question
	b.sees("The job is being cancelled")
	b.sees("asked to stop")
	b.open("/ui/jobs/" + jobs["waits"])
	b.sees("completed")
	b.sees("hello from the job")

	b.open("/ui/queue")
	b.sees("No queue is stopped")
	if _, err := p.Store.StopQueue(t.Context(), "someone else", schema.Stop{Spec: "h100x8", Why: "the filers are swapped"}); err != nil {
		t.Fatal(err)
	}
	b.sees("the filers are swapped") // by itself
	b.submit("#stop summary")
	b.do(chromedp.SendKeys(chromedp.CSS("#stop_why"), "budget review"))
	b.submit("#stop button.danger") // Stop the queue, and the question
	b.sees("it is not said which queue")
	b.do(chromedp.SendKeys(chromedp.CSS("#stop_tenant"), "research"))
	b.submit("#stop button.danger")
	b.sees("tenant research")
	b.submit("#window summary")
	b.do(chromedp.SendKeys(chromedp.CSS("#window_servers"), "r1s2"), chromedp.SendKeys(chromedp.CSS("#window_note"), "new fans"))
	b.submit("#window button.main")
	b.sees("new fans")
	sweep(t, p, "research")
	b.sees("of at most 2")
	b.look("queue")
	b.submit("#stops form[action$='/start'] button") // Start, and the question
	b.sees("The queue is started")
	b.submit("#windows form[action$='/end'] button")
	b.sees("The window is gone")
	b.open("/ui/arrays/research/llm/sweep")
	b.do(chromedp.SetValue(chromedp.CSS("#limit"), "1"))
	b.submit("form[action$='/limit'] button")
	b.sees("of at most 1")
	b.look("array")
	b.submit("button.danger") // Cancel all its jobs, and the question
	b.sees("being cancelled")

	r, err := p.Break(t.Context(), "r1s1", "SXM4")
	if err != nil {
		t.Fatal(err)
	}
	if state, err := p.Store.RepairDrained(t.Context(), r.ID, store.Until{}); err != nil || state != schema.RepairWaiting {
		t.Fatal(state, err)
	}
	command(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: camera})
	b.signIn(schema.RoleTechnician)
	b.sees("Wait for you")
	b.look("repairs")
	b.phone()
	b.submit("a.place")
	b.sees("What was done")
	b.submit("form[action$='/claim'] button")
	b.sees("It is yours")
	b.submit("form[action$='/light-on'] button")
	b.sees("being switched on for browser-technician")
	b.look("repair")
	b.phone()
	b.do(chromedp.Click(chromedp.CSS("button[data-scan=new_serial]")))
	b.sees("Which of them is the serial?")
	b.do(chromedp.Click(chromedp.CSS("#new_serial_scanned button:last-of-type")))
	b.sees("compare it with the label")
	if got, err := chromedp.Run(b.ctx, chromedp.Value(chromedp.CSS("#new_serial"))); err != nil || got != "J1-GPU5" {
		t.Fatalf("scanned %q, %v", got, err)
	}
	// A hand scanner's Enter leads on and sends nothing: the note is typed into the next field.
	b.do(chromedp.SendKeys(chromedp.CSS("#new_serial"), kb.Enter))
	if at, err := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.activeElement.id")); err != nil || at != "note" {
		t.Fatalf("after a scan one is at %q, %v", at, err)
	}
	b.do(chromedp.SendKeys(chromedp.CSS("#note"), "swapped, seated twice"))
	b.do(chromedp.SetValue(chromedp.CSS("#old_serial"), "SOMETHING-ELSE"))
	b.submit(".done button.main")
	b.sees("is not the part to be replaced")
	if note, err := chromedp.Run(b.ctx, chromedp.Value(chromedp.CSS("#note"))); err != nil || note != "swapped, seated twice" {
		t.Fatalf("what was typed is lost: %q, %v", note, err)
	}
	b.do(chromedp.SetValue(chromedp.CSS("#old_serial"), "J1-GPU4"), chromedp.SetValue(chromedp.CSS("#new_serial"), "NEW-GPU4"))
	label := filepath.Join(t.TempDir(), "label.jpg")
	if err := os.WriteFile(label, []byte(pixel), 0o600); err != nil {
		t.Fatal(err)
	}
	b.do(chromedp.SetUploadFiles(chromedp.CSS("#photo"), []string{label}))
	b.submit(".done button.main")
	b.sees("proven and back in the pool")
	b.check("the photo", `[...document.querySelectorAll(".photos img")].length === 1 ? [] : ["no photo is shown"]`)
	b.sees("goes back")
	b.picture("repair-returned-phone")
	b.open("/ui/parts")
	b.sees("J1-GPU4")
	b.look("parts")
	b.open("/ui/times")
	b.sees("Cordon to return")
	b.look("times")
	b.gaveUp(p)
	b.desk()

	b.signIn(schema.RoleOperator)
	b.open("/ui/breakers/" + breaker(t, p))
	b.sees("fell off the bus")
	b.look("breaker")
	b.do(chromedp.SendKeys(chromedp.CSS("#reason"), "a bad driver, rolled back"))
	b.submit("button.main") // Reset, and the question
	b.sees("The breaker is reset")

	b.open("/ui/usage")
	b.sees("research")
	b.sees("The four counts")
	b.check("the plots", `document.querySelectorAll(".plot").length > 0 && document.querySelectorAll(".plot").length === document.querySelectorAll(".plot canvas").length ? [] : ["plots without a picture"]`)
	b.look("usage")

	b.signIn(schema.RoleTenantMember)
	b.sees("Jobs")
	b.check("a tenant's page", `[...document.querySelectorAll("nav a")].map(a => a.textContent).filter(t => !["Jobs", "Queue", "Usage"].includes(t)).map(t => "a tenant is offered " + t)`)

	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.wrong {
		t.Error(w)
	}
}

// gaveUp is a technician who can't mend a second server, on a phone.
func (b *browser) gaveUp(p *testpool.Pool) {
	b.t.Helper()
	r, err := p.Break(b.t.Context(), "r1s2", "SXM2")
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := p.Store.RepairDrained(b.t.Context(), r.ID, store.Until{}); err != nil {
		b.t.Fatal(err)
	}
	b.phone()
	b.open("/ui/repairs/" + r.ID)
	b.submit("#could-not-fix summary")
	b.do(chromedp.SendKeys(chromedp.CSS("#why"), "two cards failed in this slot"))
	b.submit("#could-not-fix button")
	b.sees("Operators are called")
	b.sees("the server retired")
	b.look("repair-given-up")
}

// camera is a browser that reads bar codes, and a person who photographs a label with two of them.
const camera = `window.BarcodeDetector = class { async detect(picture) { return picture.width === 1 ? [{rawValue: "920-23687-2530"}, {rawValue: " J1-GPU5 "}] : []; } };
HTMLInputElement.prototype.click = function () {
  const d = new DataTransfer(), b = Uint8Array.from(atob("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="), c => c.charCodeAt(0));
  d.items.add(new File([b], "label.png", {type: "image/png"}));
  this.files = d.files;
  this.dispatchEvent(new Event("change"));
};`

// signIn starts anew as someone of a role.
func (b *browser) signIn(role schema.Role) {
	b.t.Helper()
	tenant, project := "", ""
	if role == schema.RoleTenantMember {
		tenant, project = "research", "llm"
	}
	token, err := b.pool.NewToken(b.t.Context(), "browser-"+string(role), role, tenant, project)
	if err != nil {
		b.t.Fatal(err)
	}
	b.do(chromedp.Navigate("about:blank")) // an open page would lead to the login by itself, and back to itself
	command(b, network.ClearBrowserCookies, cdp.Empty{})
	b.open("/")
	b.do(chromedp.SendKeys(chromedp.CSS("#token"), token))
	b.submit("button.main")
	b.sees("Sign out")
}

func enroll(t *testing.T, p *testpool.Pool, n int, serial string) {
	t.Helper()
	_, err := p.Store.EnrollServers(t.Context(), "test", p.Ring, []store.NewServer{{
		Name: fmt.Sprintf("r1s%d", n), Region: testpool.Region, Site: "ams1", Rack: "r1", Unit: 10 + n, Serial: serial, MACs: []string{fmt.Sprintf("02:00:00:00:00:%02x", n)},
		BMCAddress: fmt.Sprintf("https://10.0.0.%d", n), BMCUsername: "admin", BMCPassword: "secret", Model: "nvidia-h100-80gb", Accelerators: 8, CPUs: 96, MemoryBytes: 2 << 40,
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// submit makes a tenant with a job that runs on all there is, and one that waits for it.
func submit(t *testing.T, p *testpool.Pool) map[string]string {
	t.Helper()
	ctx, ids := t.Context(), map[string]string{}
	if _, err := p.Store.CreateSpec(ctx, "test", store.NewSpec{Name: "h100x8", Model: "nvidia-h100-80gb", Accelerators: 8, CPUs: 96, MemoryBytes: 1 << 40}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Store.CreateTenant(ctx, "test", "research", 100); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Store.CreateProject(ctx, "test", "research", "llm"); err != nil {
		t.Fatal(err)
	}
	for _, j := range []store.NewJob{
		{Name: "runs", Nodes: 2, Command: []string{"sleep", "forever"}},
		{Name: "waits", Nodes: 1, Command: []string{"echo", "hello from the job"}},
	} {
		j.Tenant, j.Project, j.Spec, j.TimeLimit = "research", "llm", "h100x8", time.Hour
		got, _, err := p.Store.SubmitJob(ctx, "alice", "", "", j)
		if err != nil {
			t.Fatal(err)
		}
		ids[j.Name] = got.ID
	}
	return ids
}
