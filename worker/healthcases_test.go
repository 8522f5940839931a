package worker

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/activities/health"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/worker/agent/accelerator"
)

// watched is a server of the record with its agent's memory, from the readings to the verdict.
type watched struct {
	t      *testing.T
	db     *store.Store
	ms     atomic.Int64
	server schema.Server
	memory accelerator.Memory
	names  []string // serials of its devices
	ids    []string // their ids in the record
	n      int
}

func newWatched(t *testing.T, devices int) *watched {
	w := &watched{t: t}
	w.ms.Store(1_700_000_000_000)
	w.db = storetest.OpenAt(t, func() time.Time { return time.UnixMilli(w.ms.Load()) })
	w.server = storetest.Available(t, w.db, 1, "nvidia-gb200-192gb", devices)
	all, err := w.db.Accelerators(t.Context(), store.AcceleratorFilter{Server: w.server.ID})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		w.names, w.ids = append(w.names, a.Serial), append(w.ids, a.ID)
	}
	return w
}

// devices are the server's, as the record knows them.
func (w *watched) devices() []agentproto.Device {
	w.t.Helper()
	all, err := w.db.Accelerators(w.t.Context(), store.AcceleratorFilter{Server: w.server.ID})
	if err != nil {
		w.t.Fatal(err)
	}
	var list []agentproto.Device
	for _, a := range all {
		list = append(list, agentproto.Device{Vendor: a.Vendor, Model: a.Model, Serial: a.Serial, UUID: a.UUID, PCI: a.PCI, Slot: a.Slot, Index: a.Index, Firmware: a.Firmware, MemoryBytes: a.MemoryBytes, Samples: map[string]float64{}})
	}
	return list
}

// beat is a heartbeat with a reading and what it shows. The agent may have died since the last.
func (w *watched) beat(list []agentproto.Device) {
	w.t.Helper()
	b, err := json.Marshal(w.memory)
	if err != nil {
		w.t.Fatal(err)
	}
	w.memory = accelerator.Memory{}
	if err := json.Unmarshal(b, &w.memory); err != nil {
		w.t.Fatal(err)
	}
	h := agentproto.Heartbeat{BootID: "b", Devices: list, Apart: true}
	for _, s := range w.memory.Step("b", w.db.Now(), list) {
		w.n++
		h.Evidence = append(h.Evidence, agentproto.Evidence{Device: s.Device, Kind: s.Kind, Code: s.Code, Part: s.Part, Value: s.Value, Severity: s.Severity, Text: s.Text, At: w.db.Now(), ID: fmt.Sprint("b/", w.n)})
	}
	if _, err := w.db.Heartbeat(w.t.Context(), w.server.ID, h); err != nil {
		w.t.Fatal(err)
	}
	for _, f := range w.faults() {
		if err := health.Judge(w.t.Context(), w.db, f.ID); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *watched) faults() []schema.Fault {
	w.t.Helper()
	all, err := w.db.Faults(w.t.Context(), w.server.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// Case 10 of the cases on health: a storm of correctable errors on one device, which under load keeps the others from
// answering. Within an hour of 60 readings the four answer 58, 1, 11 and 17 times.
func TestAStormOfCorrectableErrorsIsNamedAndItsSilentNeighboursAreNot(t *testing.T) {
	t.Parallel()
	w := newWatched(t, 4)
	answers := []int{58, 1, 11, 17}
	var tell schema.Fault
	unknown := map[int]bool{}
	for minute := range 60 {
		list := w.devices()
		for i := range list {
			// Spread evenly, so that device i answers answers[i] times.
			if (minute+1)*answers[i]/60 == minute*answers[i]/60 {
				list[i].Samples, list[i].Error = nil, "no answer within 4s"
				continue
			}
			list[i].Samples = map[string]float64{accelerator.ECCCorrected: 0, accelerator.ECCUncorrected: 0, accelerator.RemappedRows: 0, accelerator.RemapFailed: 0}
			if i == 2 {
				list[i].Samples[accelerator.ECCCorrected] = 9.6e9 + 17_700*60*float64(minute)
				list[i].Samples[accelerator.RemappedRows] = 8
			}
		}
		w.beat(list)
		all, err := w.db.Accelerators(t.Context(), store.AcceleratorFilter{Server: w.server.ID})
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range all {
			switch silent := list[i].Error != ""; {
			case i == 2:
			case silent && a.Health != schema.HealthUnknown:
				t.Fatalf("minute %d: device %d gave no answer and is %s", minute, i, a.Health)
			case silent:
				unknown[i] = true
			case a.Health != schema.HealthHealthy:
				t.Fatalf("minute %d: device %d answered and is %s: %s", minute, i, a.Health, a.HealthWhy)
			}
		}
		if faults := w.faults(); len(faults) > 0 && tell.ID == "" {
			tell = faults[0]
			if minute > 20 {
				t.Errorf("the storm was told in minute %d", minute)
			}
		}
		w.ms.Add(time.Minute.Milliseconds())
	}
	if len(unknown) != 3 {
		t.Errorf("unknown for a while were %v, want the three others", unknown)
	}
	for _, f := range w.faults() {
		if f.Accelerator != w.ids[2] || f.Kind != "ecc-correctable" {
			t.Errorf("a fault of %s: %s %s", f.Accelerator, f.Kind, f.Text)
		}
	}
	if tell.Rule != "ecc-correctable-rate" || tell.Verdict != "cordon" || tell.Value < 1e6 || tell.Value > 1.1e6 || !strings.Contains(tell.Text, "correctable memory errors") {
		t.Fatalf("the storm: %+v", tell)
	}
	r, open, err := w.db.OpenRepair(t.Context(), w.server.ID)
	if err != nil || !open || r.Cure != schema.CureTechnician || r.OldSerial != w.names[2] {
		t.Fatalf("its repair: %+v, %v, %v", r, open, err)
	}
}
