package bmc_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

const eventLog = "/redfish/v1/Systems/HGX_Baseboard_0/LogServices/EventLog"

// The clock of a baseboard is often wrong and jumps, logs are cleared, and the reader restarts in between.
func TestALogIsReadOnceOverClearAndWrongClocksAndRestarts(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.DGXH100), lab.Hooks{})
	c := dial(t, s)
	n := 0
	add := func(clock string) {
		t.Helper()
		n++
		if _, err := s.AddLogEntry(eventLog, lab.Doc{"Created": clock, "Severity": "Critical", "Message": fmt.Sprintf("event %d", n)}); err != nil {
			t.Fatal(err)
		}
	}
	var cursor *bmc.Cursor
	read := func(history bool, want ...int) {
		t.Helper()
		if b, err := json.Marshal(cursor); err != nil { // as across a restart
			t.Fatal(err)
		} else if err := json.Unmarshal(b, &cursor); err != nil {
			t.Fatal(err)
		}
		entries, next, err := c.LogEntries(t.Context(), eventLog, cursor)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Message)
			if e.History != history {
				t.Fatalf("%s: history %v", e.Message, e.History)
			}
		}
		var all []string
		for _, w := range want {
			all = append(all, fmt.Sprintf("event %d", w))
		}
		if fmt.Sprint(got) != fmt.Sprint(all) {
			t.Fatalf("read %v, want %v", got, all)
		}
		cursor = next
	}
	add("2024-07-08T16:40:04+00:00")
	add("2020-05-08T11:14:01+00:00")
	read(true, 1, 2)
	read(false)
	add("1970-01-01T00:00:20+00:00")
	add("9999-12-31T23:59:59+00:00")
	read(false, 3, 4)
	if err := s.ClearLog(eventLog); err != nil {
		t.Fatal(err)
	}
	add("2024-07-08T16:40:04-0600")
	read(false, 5)
	if err := s.ClearLog(eventLog); err != nil {
		t.Fatal(err)
	}
	read(false)
	add("2024-07-09T00:00:00+00:00")
	read(false, 6)
}

func TestPagesThatRepeatThemselvesAreReadOnce(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.DGXH100), lab.Hooks{})
	c := dial(t, s)
	for range 3 {
		if _, err := s.AddLogEntry(eventLog, lab.Doc{"Message": "m"}); err != nil {
			t.Fatal(err)
		}
	}
	// The first page has everything and links to itself under another name, as a DGX H100 does.
	s.AddFault(lab.Fault{Path: eventLog + "/Entries", Merge: lab.Doc{"Members@odata.nextLink": eventLog + "/Entries?$skip=2", "Members@odata.count": 77}})
	entries, _, err := c.LogEntries(t.Context(), eventLog, nil)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	s.ClearFaults()
	s.AddFault(lab.Fault{Path: eventLog + "/Entries", Merge: lab.Doc{"Members": nil}}) // BlueField
	if entries, _, err = c.LogEntries(t.Context(), eventLog, nil); err != nil || len(entries) != 0 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
}

// A log that has not changed costs one small answer where the BMC has entity tags, and a tag that does not change with its log
// is believed for an hour, not for ever.
func TestALogThatDidNotChangeIsNotReadAgain(t *testing.T) {
	t.Parallel()
	for name, tags := range map[string]bool{lab.DGXH100: true, lab.HPE: true, lab.Dell: false, lab.GB200: false} { // HPE's are weak
		s := serve(t, profile(t, name), lab.Hooks{})
		c := dial(t, s)
		log := s.SystemPath() + "/LogServices/EventLog"
		add := func(words string) {
			t.Helper()
			if _, err := s.AddLogEntry(log, lab.Doc{"Created": "2024-07-08T16:40:04+00:00", "Message": words}); err != nil {
				t.Fatal(err)
			}
		}
		var cursor *bmc.Cursor
		read := func(want ...string) (conditional, unchanged int) {
			t.Helper()
			s.ClearRequests()
			b, err := json.Marshal(cursor)
			if err == nil {
				err = json.Unmarshal(b, &cursor)
			}
			if err != nil {
				t.Fatal(err)
			}
			entries, next, err := c.LogEntries(t.Context(), log, cursor)
			if err != nil || len(entries) != len(want) {
				t.Fatalf("%s: %v, %v; want %v", name, entries, err, want)
			}
			for i, e := range entries {
				if e.Message != want[i] {
					t.Fatalf("%s: %v; want %v", name, entries, want)
				}
			}
			cursor = next
			for _, r := range s.Requests() {
				if r.IfNoneMatch != "" {
					conditional++
				}
				if r.Status == http.StatusNotModified {
					unchanged++
				}
			}
			return conditional, unchanged
		}
		add("first")
		read("first")
		if n, same := read(); tags && (n != 1 || same != 1 || len(s.Requests()) != 1) || !tags && n != 0 {
			t.Errorf("%s: %d conditional requests, %d answered unchanged, of %d", name, n, same, len(s.Requests()))
		}
		add("second")
		if _, same := read("second"); same != 0 {
			t.Errorf("%s: changed and said unchanged", name)
		}
		if !tags {
			continue
		}
		// Firmware that takes no conditions, and a tag that lies.
		s.AddFault(lab.Fault{Method: "GET", Path: log + "/Entries", Status: 412, Count: 1})
		add("third")
		read("third")
		s.AddFault(lab.Fault{Method: "GET", Path: log + "/Entries", Status: http.StatusNotModified})
		add("fourth")
		read()
		s.ClearFaults()
		cursor.Whole = cursor.Whole.Add(-time.Hour)
		if n, _ := read("fourth"); n != 0 {
			t.Errorf("%s: after an hour the tag was still believed", name)
		}
	}
}
