package bmc

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Request is one entry of the request log. Passwords in Body are replaced by "***".
type Request struct {
	At      time.Time
	Method  string
	Path    string // with its query
	IfMatch string
	// IfNoneMatch is of a GET that wants the resource only where it changed.
	IfNoneMatch string
	Body        string
	Status      int // 0: no answer was given (hang, drop)
	Took        time.Duration
}

// Requests returns a copy of the log, oldest first.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// Served is how many requests came since the start, answered or not.
func (s *Server) Served() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served
}

// ClearRequests empties the log.
func (s *Server) ClearRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = nil
}

// reply is an answer on its way out.
type reply struct {
	status int
	doc    any
	raw    []byte
	header http.Header
}

func noContent() *reply { return &reply{status: http.StatusNoContent} }

func refuse(status int, id, message string) *reply {
	return &reply{status: status, doc: Doc{"error": Doc{
		"code": "Base.1.13.GeneralError", "message": message, "@Message.ExtendedInfo": extended(id, message),
	}}}
}

// ServeHTTP answers one request: fault rules, then authentication, then the resource.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	path := s.canonical(clean(r.URL.Path))
	entry := Request{At: start, Method: r.Method, Path: path, IfMatch: r.Header.Get("If-Match"), IfNoneMatch: r.Header.Get("If-None-Match"), Body: redact(body)}
	if r.URL.RawQuery != "" {
		entry.Path += "?" + r.URL.RawQuery
	}
	defer func() {
		entry.Took = time.Since(start)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.served++
		if s.log = append(s.log, entry); len(s.log) > s.logCap {
			s.log = append(s.log[:0:0], s.log[len(s.log)-s.logCap:]...)
		}
	}()

	if !s.enter() {
		entry.Status = http.StatusServiceUnavailable
		rep := refuse(entry.Status, "ServiceTemporarilyUnavailable", "The service is temporarily unavailable. Retry in 0 seconds.")
		rep.header = http.Header{"Retry-After": {"0"}}
		rep.write(w, r)
		return
	}
	defer s.leave()
	if uri := s.eventURI(); uri != "" && path == uri && r.Method == http.MethodGet {
		entry.Status = s.stream(w, r)
		return
	}
	f := s.fault(r.Method, path)
	if f == nil {
		f = &Fault{}
	}
	defer s.hold(r)()
	if f.Latency > 0 {
		select {
		case <-time.After(f.Latency):
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	if f.Hang {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
	if f.Drop && !f.AfterApply {
		panic(http.ErrAbortHandler)
	}
	spoiled := f.Status != 0 || f.Replace != nil
	var rep *reply
	if !spoiled || f.AfterApply {
		rep = s.answer(r, path, body)
	}
	if f.Drop {
		panic(http.ErrAbortHandler)
	}
	if spoiled {
		rep = f.reply(rep)
	}
	if f.Merge != nil {
		if d, ok := rep.doc.(Doc); ok {
			d = clone(d).(Doc)
			merge(d, clone(f.Merge).(Doc))
			rep.doc = d
		}
	}
	for k, v := range f.Header {
		w.Header()[http.CanonicalHeaderKey(k)] = v
	}
	entry.Status = rep.status
	rep.write(w, r)
}

// enter counts a request in; false when the firmware can't take another now.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.quirks.OneAtATime && s.busy > 0 {
		return false
	}
	s.busy++
	return true
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
}

func (f *Fault) reply(was *reply) *reply {
	status := f.Status
	if status == 0 {
		status = http.StatusOK
		if was != nil {
			status = was.status
		}
	}
	if f.Replace != nil {
		return &reply{status: status, raw: f.Replace}
	}
	id := f.Message
	if id == "" {
		id = "GeneralError"
	}
	if status < 300 {
		return &reply{status: status}
	}
	return refuse(status, id, fmt.Sprintf("fault rule: %d %s", status, id))
}

func (rep *reply) write(w http.ResponseWriter, r *http.Request) {
	for k, v := range rep.header {
		w.Header()[k] = v
	}
	w.Header().Set("OData-Version", "4.0")
	b := rep.raw
	if b == nil && rep.doc != nil {
		b, _ = json.Marshal(rep.doc)
	}
	if len(b) > 0 && w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	if rep.status == http.StatusNoContent || rep.status == http.StatusNotModified {
		w.Header().Del("Content-Length")
		b = nil
	}
	w.WriteHeader(rep.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(b) // a client that hung up is its own affair
	}
}

func redact(body []byte) string {
	var d Doc
	if len(body) == 0 || json.Unmarshal(body, &d) != nil {
		return string(body)
	}
	if _, ok := d["Password"]; !ok {
		return string(body)
	}
	d["Password"] = "***"
	b, _ := json.Marshal(d)
	return string(b)
}

// answer hands a request to the server behind this BMC that it is about, once it is let in, or to this one.
func (s *Server) answer(r *http.Request, path string, body []byte) *reply {
	if s.behind == nil || s.behind(r) == nil {
		return s.handle(r, path, body)
	}
	s.mu.Lock()
	rep := s.authenticate(r)
	s.mu.Unlock()
	if rep != nil {
		return rep
	}
	return s.behind(r).handle(pass(r), path, body)
}

// handle answers a request that no rule spoils.
func (s *Server) handle(r *http.Request, path string, body []byte) *reply {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.bmcDown) {
		rep := refuse(http.StatusServiceUnavailable, "ServiceTemporarilyUnavailable", "The service is temporarily unavailable. Retry in 1 seconds.")
		rep.header = http.Header{"Retry-After": {"1"}}
		return rep
	}
	var in Doc
	if len(body) > 0 && json.Unmarshal(body, &in) != nil {
		return refuse(http.StatusBadRequest, "MalformedJSON", "The request body submitted was malformed JSON and could not be parsed by the receiving service.")
	}
	get := r.Method == http.MethodGet || r.Method == http.MethodHead
	if rest, ok := strings.CutPrefix(path, s.sessionsAt); ok && (rest == "" || rest[0] == '/') {
		path = sessionsPath + rest
	}
	switch {
	case path == "/redfish" && get:
		return &reply{status: http.StatusOK, doc: Doc{"v1": "/redfish/v1/"}}
	case path == "/redfish/v1" && get:
		return s.get(r, path) // DSP0266 13.3.1: the service root needs no login
	case (path == sessionsPath || path == sessionsPath+"/Members") && r.Method == http.MethodPost:
		return s.openSession(in)
	}
	if rep := s.authenticate(r); rep != nil {
		return rep
	}
	if s.mustSet && !(r.Method == http.MethodPatch && path == s.index.account) && !strings.HasPrefix(path, sessionsPath+"/") {
		return s.mustChange()
	}
	switch {
	case get:
		return s.get(r, path)
	case r.Method == http.MethodDelete && strings.HasPrefix(path, sessionsPath+"/"):
		return s.closeSession(strings.TrimPrefix(path, sessionsPath+"/"))
	case r.Method == http.MethodDelete && isSubscription(path):
		return s.unsubscribe(path)
	case r.Method == http.MethodPatch:
		return s.patch(r, path, in)
	case r.Method == http.MethodPost && path == subscriptionsPath && s.doc(path) != nil:
		return s.subscribe(in)
	case r.Method == http.MethodPost:
		return s.post(r, path, in)
	}
	return refuse(http.StatusMethodNotAllowed, "OperationNotAllowed", "The HTTP method is not allowed on this resource.")
}

// mustChange refuses everything to an account with a factory password, and says where to change it. The caller holds mu.
func (s *Server) mustChange() *reply {
	rep := refuse(http.StatusForbidden, "PasswordChangeRequired", "The password provided for this account must be changed before access is granted. "+
		"PATCH the Password property for this account located at the target URI '"+s.index.account+"' to complete this process.")
	info, _ := dig(rep.doc, "error", "@Message.ExtendedInfo").([]any)
	info[0].(Doc)["MessageArgs"] = list(s.index.account)
	return rep
}

// get answers GET and HEAD. The caller holds mu.
func (s *Server) get(r *http.Request, path string) *reply {
	switch {
	case path == sessionsPath:
		return s.listSessions()
	case strings.HasPrefix(path, sessionsPath+"/"):
		for _, x := range s.sessions {
			if x.id == strings.TrimPrefix(path, sessionsPath+"/") {
				return &reply{status: http.StatusOK, doc: s.sessionDoc(x)}
			}
		}
		return notFound(path)
	case s.tasks[path] != nil:
		return s.tasks[path].get()
	}
	key := path
	if q, err := url.QueryUnescape(r.URL.RawQuery); err == nil && q != "" {
		if _, ok := s.profile.Tree.Read(path + "?" + q); ok {
			key = path + "?" + q // a captured page
		}
	}
	raw, _ := s.profile.Tree.Read(key)
	d := s.doc(key)
	if d == nil {
		if raw == nil {
			return notFound(path)
		}
		return &reply{status: http.StatusOK, raw: raw} // broken JSON or not an object, as captured
	}
	if _, mine := s.docs[key]; mine {
		d = clone(d).(Doc)
	}
	if _, ok := d["PowerState"].(string); ok && strings.Count(path, "/") == 4 { // a system or a chassis
		d["PowerState"] = s.power.state()
	}
	if s.clockOff != 0 && strings.HasPrefix(path, "/redfish/v1/Managers/") && strings.Count(path, "/") == 4 {
		d["DateTime"] = time.Now().Add(s.clockOff).UTC().Format(time.RFC3339)
	}
	if list, ok := d["Members"].([]any); ok && s.reverse {
		slices.Reverse(list)
	}
	rep := &reply{status: http.StatusOK, doc: d, header: http.Header{}}
	if tag := s.etagOf(key, d); tag != "" {
		rep.header.Set("ETag", tag)
		if _, ok := d["@odata.etag"]; ok {
			d["@odata.etag"] = tag
		}
		if want := r.Header.Get("If-None-Match"); want != "" && want == tag {
			return &reply{status: http.StatusNotModified, header: rep.header}
		}
	}
	return rep
}

// etag is the entity tag of a resource, "" when the tree's has none. The caller holds mu.
func (s *Server) etag(path string) string { return s.etagOf(path, s.doc(path)) }

// etagOf is etag of a resource already read.
func (s *Server) etagOf(path string, d Doc) string {
	base := digString(d, "@odata.etag")
	if base == "" || s.quirks.NoSystemETags && path == s.sysPath {
		return ""
	}
	tag := strings.Trim(strings.TrimPrefix(base, "W/"), `"`)
	if n := s.etags[path]; n > 0 || s.docs[path] != nil {
		sum := sha256.Sum256([]byte(tag + fmt.Sprint(n)))
		tag = hex.EncodeToString(sum[:8])
	}
	tag = `"` + tag + `"`
	if s.quirks.WeakETags || s.quirks.IfMatch == IfMatchStrong {
		tag = "W/" + tag
	}
	return tag
}

// matches judges an If-Match header by a manner. A nil reply passes.
func (s *Server) matches(r *http.Request, path string, manner IfMatch) *reply {
	sent := r.Header.Get("If-Match")
	tag := s.etag(path)
	failed := refuse(http.StatusPreconditionFailed, "PreconditionFailed", "The ETag supplied did not match the ETag required to change this resource.")
	switch manner {
	case IfMatchRefused:
		if sent != "" {
			return failed
		}
		return nil
	case IfMatchAny:
		if sent != "*" {
			return failed
		}
		return nil
	case IfMatchStrong:
		tag = strings.TrimPrefix(tag, "W/")
	case IfMatchRequired:
		if sent == "" && tag != "" {
			return refuse(http.StatusPreconditionRequired, "PreconditionRequired", "A precondition header or annotation is required to change this resource.")
		}
	case IfMatchOptional:
	}
	if sent == "" || sent == "*" || tag == "" || sent == tag {
		return nil
	}
	return failed
}

// patch answers PATCH: known properties of a resource, after its entity tag. The caller holds mu.
func (s *Server) patch(r *http.Request, path string, in Doc) *reply {
	d := s.doc(path)
	if d == nil {
		return notFound(path)
	}
	if rep := s.matches(r, path, s.quirks.IfMatch); rep != nil {
		return rep
	}
	if len(in) == 0 {
		return refuse(http.StatusBadRequest, "EmptyJSON", "The request body submitted contained an empty JSON object.")
	}
	for k := range in {
		_, known := d[k]
		if !known && !(k == "Attributes" && strings.Contains(path, "/Bios/")) { // Supermicro's pending resource begins without
			return refuse(http.StatusBadRequest, "PropertyUnknown", fmt.Sprintf("The property %s is not in the list of valid properties for the resource.", k))
		}
	}
	if path == s.index.account {
		return s.patchAccount(path, in)
	}
	rest := clone(in).(Doc)
	if boot, ok := in["Boot"].(map[string]any); ok && (path == s.sysPath || path == s.setPath) {
		if rep := s.patchBoot(path, boot); rep != nil {
			return rep
		}
		delete(rest, "Boot")
	}
	merge(s.own(path), rest)
	s.etags[path]++
	s.locate(path, rest)
	return noContent()
}

// locate tells the machine when its locator light was changed. The caller holds mu.
func (s *Server) locate(path string, in Doc) {
	on, set := in["LocationIndicatorActive"].(bool)
	if led, ok := in["IndicatorLED"].(string); ok {
		on, set = led != "Off", true
	}
	if h := s.hooks.Locate; set && h != nil && strings.Count(path, "/") == 4 {
		s.enqueue(func() { h(on) })
	}
}

func (s *Server) patchAccount(path string, in Doc) *reply {
	d := s.own(path)
	if pw, ok := in["Password"].(string); ok {
		if len(pw) < 8 {
			return refuse(http.StatusBadRequest, "PropertyValueFormatError", "The password does not meet the length policy.")
		}
		s.password, s.mustSet = pw, false
		d["PasswordChangeRequired"] = false
	}
	if name, ok := in["UserName"].(string); ok {
		s.user, d["UserName"] = name, name
	}
	s.etags[path]++
	return noContent()
}

// post answers actions. The caller holds mu.
func (s *Server) post(r *http.Request, path string, in Doc) *reply {
	owner, action, ok := strings.Cut(path, "/Actions/")
	if !ok {
		return refuse(http.StatusMethodNotAllowed, "OperationNotAllowed", "The HTTP method is not allowed on this resource.")
	}
	d := s.doc(owner)
	if d == nil {
		return notFound(path)
	}
	kind := digString(in, "ResetType")
	switch {
	case action == "ComputerSystem.Reset" && owner != s.sysPath:
		// What a DGX does when asked to reset its baseboard as if it were the host.
		return refuse(http.StatusInternalServerError, "InternalError", "The request failed due to an internal service error. The service is still operational.")
	case action == "ComputerSystem.Reset":
		if kind == "" {
			return refuse(http.StatusBadRequest, "ActionParameterMissing", "The action Reset requires the parameter ResetType to be present in the request body.")
		}
		return s.reset(kind)
	case action == "VirtualMedia.InsertMedia":
		image := digString(in, "Image")
		if image == "" {
			return refuse(http.StatusBadRequest, "ActionParameterMissing", "The action InsertMedia requires the parameter Image to be present in the request body.")
		}
		if on, _ := d["Inserted"].(bool); on {
			return refuse(http.StatusConflict, "ResourceInUse", "The change to the requested resource failed because the resource is in use or in transit.")
		}
		merge(s.own(owner), Doc{"Image": image, "Inserted": true, "WriteProtected": true, "ConnectedVia": "URI"})
		return noContent()
	case action == "VirtualMedia.EjectMedia":
		merge(s.own(owner), Doc{"Image": nil, "Inserted": false, "ConnectedVia": "NotConnected"})
		return noContent()
	case action == "Manager.Reset":
		if rep := s.matches(r, owner, s.quirks.ResetIfMatch); rep != nil {
			return rep
		}
		s.restart()
		return noContent()
	}
	if value, ok := acActions[action]; ok {
		if !s.knows(d, action) || kind != value {
			return refuse(http.StatusBadRequest, "ActionParameterNotSupported", "The parameter ResetType is not supported with this value.")
		}
		s.loseAC()
		return noContent()
	}
	if actions, ok := d["Actions"].(map[string]any); ok && actions["#"+action] != nil {
		return noContent() // known, without an effect here
	}
	return notFound(path)
}
