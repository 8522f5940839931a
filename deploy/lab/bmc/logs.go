package bmc

import (
	"fmt"
	"strconv"
)

// AddLogEntry appends an entry to a log service ("/redfish/v1/Systems/DGX/LogServices/EventLog") and returns its id.
// Fields that entry leaves out (Id, EntryType) are filled in.
func (s *Server) AddLogEntry(service string, entry Doc) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := clean(digString(s.doc(clean(service)), "Entries", "@odata.id"))
	coll := s.own(path)
	if coll == nil {
		return "", fmt.Errorf("lab bmc %s: no log service %s", s.profile.Name, service)
	}
	list, _ := coll["Members"].([]any)
	next := 1
	for _, m := range list {
		id := digString(m, "@odata.id")
		if n, err := strconv.Atoi(id[len(path)+1:]); err == nil && n >= next {
			next = n + 1
		}
	}
	id := strconv.Itoa(next)
	d := Doc{"@odata.id": path + "/" + id, "@odata.type": "#LogEntry.v1_11_0.LogEntry", "Id": id, "Name": "Log Entry", "EntryType": "Event"}
	merge(d, clone(entry).(Doc))
	s.docs[path+"/"+id] = d
	// Entries are served inside the collection, as most BMCs do.
	coll["Members"] = append(list, d)
	coll["Members@odata.count"] = len(list) + 1
	s.etags[path]++
	s.emit(d)
	return id, nil
}

// ClearLog empties a log service, as an operator's ClearLog does: numbering begins again.
func (s *Server) ClearLog(service string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := clean(digString(s.doc(clean(service)), "Entries", "@odata.id"))
	coll := s.own(path)
	if coll == nil {
		return fmt.Errorf("lab bmc %s: no log service %s", s.profile.Name, service)
	}
	coll["Members"], coll["Members@odata.count"] = []any{}, 0
	s.etags[path]++
	return nil
}

// HostLogger is the log of the host's serial console: an entry is a line. "" where the BMC keeps none.
func (s *Server) HostLogger() string {
	if !s.hostLogger {
		return ""
	}
	return s.sysPath + "/LogServices/HostLogger"
}

func (s *Server) addHostLogger() {
	path := s.HostLogger()
	s.docs[path] = Doc{"@odata.id": path, "@odata.type": "#LogService.v1_3_0.LogService", "Id": "HostLogger", "Name": "Host Logger", "ServiceEnabled": true, "Entries": link(path + "/Entries")}
	s.docs[path+"/Entries"] = Doc{"@odata.id": path + "/Entries", "@odata.type": "#LogEntryCollection.LogEntryCollection", "Name": "Host Logger Entries", "Members": []any{}, "Members@odata.count": 0}
	if services := s.own(clean(digString(s.doc(s.sysPath), "LogServices", "@odata.id"))); services != nil {
		list, _ := services["Members"].([]any)
		services["Members"] = append(list, link(path))
		services["Members@odata.count"] = len(list) + 1
	}
}

// ReplaceLog makes a log say these messages and nothing else, the oldest first.
func (s *Server) ReplaceLog(service string, messages []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := clean(digString(s.doc(clean(service)), "Entries", "@odata.id"))
	coll := s.own(path)
	if coll == nil {
		return fmt.Errorf("lab bmc %s: no log service %s", s.profile.Name, service)
	}
	list := make([]any, 0, len(messages))
	for i, text := range messages {
		id := strconv.Itoa(i + 1)
		list = append(list, Doc{"@odata.id": path + "/" + id, "@odata.type": "#LogEntry.v1_11_0.LogEntry", "Id": id, "Name": "Log Entry", "EntryType": "Oem", "Message": text})
	}
	coll["Members"], coll["Members@odata.count"] = list, len(list)
	s.etags[path]++
	return nil
}
