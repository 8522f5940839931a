package bmc

import (
	"encoding/json"
	"net/http"
)

// eventURI is the path of the event stream, "" where the tree has none or has it switched off.
func (s *Server) eventURI() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.doc("/redfish/v1/EventService")
	if on, _ := d["ServiceEnabled"].(bool); !on {
		return ""
	}
	return clean(digString(d, "ServerSentEventUri"))
}

// stream serves server-sent events until the client or the server goes; it returns the status for the log.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) int {
	ch := make(chan []byte, 64)
	s.mu.Lock()
	if rep := s.authenticate(r); rep != nil {
		s.mu.Unlock()
		rep.write(w, r)
		return rep.status
	}
	s.hearers[ch] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.hearers, ch)
		s.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	for err := rc.Flush(); err == nil; err = rc.Flush() {
		select {
		case <-r.Context().Done():
			return http.StatusOK
		case b := <-ch:
			if _, err := w.Write(append(append([]byte("data: "), b...), "\n\n"...)); err != nil {
				return http.StatusOK
			}
		}
	}
	return http.StatusOK
}

// emit tells every listener of a log entry. One that doesn't keep up misses it, as with real ones. The caller holds mu.
func (s *Server) emit(entry Doc) {
	if len(s.hearers)+len(s.pushes) == 0 {
		return
	}
	record := Doc{"EventType": "Alert", "Message": entry["Message"], "MessageId": entry["MessageId"], "Severity": entry["Severity"], "EventTimestamp": entry["Created"]}
	s.push(record)
	b, err := json.Marshal(Doc{"@odata.type": "#Event.v1_7_0.Event", "Name": "Event", "Events": list(record)})
	if err != nil {
		return // a log entry that isn't JSON was never served either
	}
	for ch := range s.hearers {
		select {
		case ch <- b:
		default:
		}
	}
}

// Hearers is how many listen to the event stream.
func (s *Server) Hearers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.hearers)
}
