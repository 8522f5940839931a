package store_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// A server that was taken over has its agent's key, and what is told with it is bounded; a clock that ran ahead, and an agent that
// knows more than its platform, are no attack, and cost neither their evidence nor the server.
func TestAHeartbeatIsTakenForWhatItCanBe(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	s := storetest.OpenAt(t, func() time.Time { return now })
	v := storetest.Available(t, s, 1, "nvidia-h100-80gb", 8)
	now = now.Add(time.Hour)
	devices, err := s.Accelerators(t.Context(), store.AcceleratorFilter{Server: v.ID})
	if err != nil {
		t.Fatal(err)
	}
	for field, h := range map[string]agentproto.Heartbeat{
		"devices":           {Devices: make([]agentproto.Device, agentproto.MaxDevices+1)},
		"evidence":          {Evidence: make([]agentproto.Evidence, agentproto.MaxEvidence+1)},
		"running":           {Running: make([]string, agentproto.MaxEvidence+1)},
		"devices[0].serial": {Devices: []agentproto.Device{{Serial: strings.Repeat("s", 10<<20)}}},
		"evidence[0].code":  {Evidence: []agentproto.Evidence{{Code: strings.Repeat("7", 1000)}}},
		"evidence[0].id":    {Evidence: []agentproto.Evidence{{ID: strings.Repeat("7", 1000)}}},
	} {
		_, err := s.Heartbeat(t.Context(), v.ID, h)
		var e *schema.Error
		if !errors.As(err, &e) || e.Code != schema.CodeInvalid || e.Field != field || e.Hint == "" || len(err.Error()) > 500 {
			t.Errorf("%s: %.500v", field, err)
		}
	}
	at := schema.At(now)
	_, err = s.Heartbeat(t.Context(), v.ID, agentproto.Heartbeat{BootID: "b", Evidence: []agentproto.Evidence{
		{ID: "ahead", Device: devices[0].Serial, Kind: "xid", Code: "94", Severity: schema.SeverityWarning, Text: "from a clock that was wrong", At: at.Add(73 * 365 * 24 * time.Hour)},
		{ID: "skewed", Device: devices[0].Serial, Kind: "xid", Code: "31", Severity: schema.SeverityWarning, Text: "from a clock that is a little fast", At: at.Add(4 * time.Minute)},
		{ID: "newer", Device: devices[1].Serial, Kind: "flux", Severity: "grave", Text: "a kind and a severity of next year"},
		{ID: "long", Kind: "kernel", Severity: schema.SeverityInfo, Text: strings.Repeat("é", 1<<20)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.Faults(t.Context(), v.ID)
	if err != nil || len(list) != 4 {
		t.Fatalf("%d faults, %v", len(list), err)
	}
	got := map[string]schema.Fault{}
	for _, f := range list {
		got[f.Kind+f.Code] = f
	}
	if f := got["xid94"]; f.At != at {
		t.Errorf("what lies ahead is dated %s, not %s", f.At, at)
	}
	if f := got["xid31"]; f.At != at.Add(4*time.Minute) {
		t.Errorf("within the skew of clocks it is dated %s", f.At)
	}
	if f := got["flux"]; f.Severity != schema.SeverityWarning || f.Accelerator == "" {
		t.Errorf("of a newer agent: %+v", f)
	}
	if f := got["kernel"]; len(f.Text) > agentproto.MaxText || !strings.HasPrefix(f.Text, "éé") {
		t.Errorf("%d bytes of text are kept", len(f.Text))
	}
	// Its end, told by the clock that was put right, ends it.
	if err := s.ClearFaults(t.Context(), v.ID, schema.Fault{Accelerator: got["xid94"].Accelerator, Kind: "xid", Code: "94", At: at.Add(time.Minute), Text: "over"}); err != nil {
		t.Fatal(err)
	}
	if f, err := s.Fault(t.Context(), got["xid94"].ID); err != nil || f.ClearedAt == 0 {
		t.Errorf("it is still open: %+v %v", f, err)
	}
}
