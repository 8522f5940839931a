package bmc

import (
	"net/http"
	"testing"
)

// FuzzBody feeds what a BMC may send to everything that reads bodies: it must neither panic nor invent a value.
func FuzzBody(f *testing.F) {
	for _, seed := range []string{
		`{}`, `null`, `[]`, `{"Members":null}`, `{"Members":[{"@odata.id":"/redfish/v1/Systems/1"},7,null,{"Id":3}]}`,
		`{"Boot":{"BootSourceOverrideTarget":7,"BootSourceOverrideEnabled":null},"PowerState":null}`,
		`{"error":{"code":"Base.1.0.GeneralError","@Message.ExtendedInfo":[{"MessageId":"x"},null,3]}}`,
		`{"error":{"@Message.ExtendedInfo":{"MessageId":"Base.1.8.PasswordChangeRequired"}}}`, `<html>`, "{\"Id\":\"\xff\"}",
		`{"Id":"5","Created":"2024-07-10T22:08:53-0600","MessageArgs":["a",1]}`, `{"LifeTime":{"CorrectableECCErrorCount":"12"}}`,
	} {
		f.Add([]byte(seed))
	}
	c := &conn{address: "https://bmc"}
	f.Fuzz(func(t *testing.T, body []byte) {
		e := c.refusal("op", "/redfish/v1", asGofish(&answer{status: http.StatusBadRequest, body: body}))
		if len(e.Detail) > maxDetail+len("…") {
			t.Fatalf("%d bytes of the bmc's words in an error", len(e.Detail))
		}
		if len(eventsOf(body)) == 0 {
			t.Fatal("an event that is no hint")
		}
		_ = taskOf(&answer{header: http.Header{}, body: body})
		_ = sessionPath(&answer{header: http.Header{}, body: body})
		r, err := decodeBody("/redfish/v1/x", body)
		if err != nil {
			return
		}
		_, _ = gpuOf(r), readingOf(r, "/c")
		_ = settingOf(r)
		_, _, _ = light(r, true)
		_, _ = c.judge(Task{}, r)
		var m GPUMetrics
		m.memory(r, r)
		if v, shown := at(r.body, "LifeTime", "CorrectableECCErrorCount").(float64); (m.CorrectableECC != nil) != shown || shown && *m.CorrectableECC != v {
			t.Fatal("a counter that the body doesn't have")
		}
		if p := powerOf(r); p != PowerUnknown && r.str("PowerState") == "" {
			t.Fatalf("power %s from nothing", p)
		}
		list := []LogEntry{entryOf("/s", r), entryOf("/s", r)}
		sortEntries(list)
		_, cursor := since(list, nil)
		if again, _ := since(list, cursor); len(again) != 0 {
			t.Fatal("an entry came twice")
		}
	})
}
