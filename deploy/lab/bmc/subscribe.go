package bmc

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const subscriptionsPath = root + "/EventService/Subscriptions"

// pusher sends events to subscribers. Like most BMCs it takes any certificate unless the subscription says otherwise.
var pusher = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
	DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}}}

// Subscriptions lists where events are pushed to.
func (s *Server) Subscriptions() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, path := range s.subscribers() {
		out = append(out, digString(s.doc(path), "Destination"))
	}
	return out
}

// subscribers are the paths of subscriptions made here; those that a tree was captured with are nobody's here. The caller
// holds mu.
func (s *Server) subscribers() []string {
	var out []string
	for path := range s.pushes {
		out = append(out, path)
	}
	slices.Sort(out)
	return out
}

// subscribe answers POST of a subscription. The caller holds mu.
func (s *Server) subscribe(in Doc) *reply {
	service, coll := s.doc(root+"/EventService"), s.own(subscriptionsPath)
	if on, _ := service["ServiceEnabled"].(bool); !on || coll == nil {
		return refuse(http.StatusServiceUnavailable, "ServiceDisabled", "The event service is disabled.")
	}
	missing := func(name string) *reply {
		return refuse(http.StatusBadRequest, "PropertyMissing", fmt.Sprintf("The property %s is a required property and must be included in the request.", name))
	}
	to := digString(in, "Destination")
	types := strs(service["EventTypesForSubscription"])
	switch u, err := url.Parse(to); {
	case to == "":
		return missing("Destination")
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return refuse(http.StatusBadRequest, "PropertyValueFormatError", "The value for the property Destination is of a different format than the property can accept.")
	case digString(in, "Protocol") != "Redfish":
		return missing("Protocol")
	case len(types) > 0 && len(strs(in["EventTypes"])) == 0:
		return missing("EventTypes") // HPE
	case len(types) == 0 && in["EventTypes"] != nil:
		return refuse(http.StatusBadRequest, "PropertyUnknown", "The property EventTypes is not in the list of valid properties for the resource.") // OpenBMC
	}
	for _, t := range strs(in["EventTypes"]) {
		if !slices.Contains(types, t) {
			return refuse(http.StatusBadRequest, "PropertyValueNotInList", fmt.Sprintf("The value %s for the property EventTypes is not in the list of acceptable values.", t))
		}
	}
	s.nextID++
	path := subscriptionsPath + "/" + strconv.Itoa(s.nextID)
	d := Doc{"@odata.id": path, "@odata.type": "#EventDestination.v1_8_0.EventDestination", "Id": strconv.Itoa(s.nextID), "Name": "Event Destination"}
	merge(d, clone(in).(Doc))
	s.docs[path], s.pushes[path] = d, true
	list, _ := coll["Members"].([]any)
	coll["Members"], coll["Members@odata.count"] = append(list, link(path)), len(list)+1
	s.etags[subscriptionsPath]++
	return &reply{status: http.StatusCreated, doc: clone(d), header: http.Header{"Location": {path}}}
}

// unsubscribe answers DELETE of one. The caller holds mu.
func (s *Server) unsubscribe(path string) *reply {
	if !s.pushes[path] {
		return notFound(path)
	}
	coll := s.own(subscriptionsPath)
	list, _ := coll["Members"].([]any)
	list = slices.DeleteFunc(slices.Clone(list), func(m any) bool { return digString(m, "@odata.id") == path })
	coll["Members"], coll["Members@odata.count"] = list, len(list)
	delete(s.docs, path)
	delete(s.pushes, path)
	s.etags[subscriptionsPath]++
	return noContent()
}

// forgetSubscriptions is what a restart of the BMC does to them. The caller holds mu.
func (s *Server) forgetSubscriptions() {
	for _, path := range s.subscribers() {
		s.unsubscribe(path)
	}
}

// push sends an event to every subscriber, each once. The caller holds mu.
func (s *Server) push(record Doc) {
	if s.closed {
		return
	}
	for _, path := range s.subscribers() {
		d := s.docs[path]
		b, err := json.Marshal(Doc{"@odata.type": "#Event.v1_7_0.Event", "Name": "Event", "Context": d["Context"], "Events": list(record)})
		if err != nil {
			return // a log entry that isn't JSON was never served either
		}
		to := digString(d, "Destination")
		s.wg.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			defer context.AfterFunc(s.ending, cancel)()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(b))
			if err != nil {
				return
			}
			req.Header.Set("Content-Type", "application/json")
			if resp, err := pusher.Do(req); err == nil {
				_ = resp.Body.Close() // its answer is its own affair
			}
		})
	}
}

func isSubscription(path string) bool { return strings.HasPrefix(path, subscriptionsPath+"/") }
