package health

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpupool/activities/health/rules"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// What 10,000 servers of eight devices ask of a pool: each device read every ten seconds, with as many samples as NVIDIA's library
// gives of one.
const (
	fleet         = 10_000
	perServer     = 8
	readEvery     = 10 * time.Second
	samplesOfOne  = 24
	neededSamples = fleet * perServer * samplesOfOne / 10 // a second
)

// figure is one line of `gpupool bench`; see activities/allocator for the same.
type figure struct {
	Group string   `json:"group"`
	Name  string   `json:"name"`
	Value float64  `json:"value"`
	Unit  string   `json:"unit"`
	Goal  *float64 `json:"goal,omitempty"`
	Holds *bool    `json:"holds,omitempty"`
}

// BenchmarkHealth measures, in processor time, so of one core that does nothing else: samples a second through ingest (a heartbeat's JSON decoded, its devices compared with
// the record, its samples gathered by the hour), verdicts a second of the rules with a month of evidence behind them, and how long
// a fault takes from the agent's word to the cordon in the record. `make bench ONLY=health` shows it.
func BenchmarkHealth(b *testing.B) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var out []figure
	add := func(name string, value float64, unit string, goal float64, holds bool) {
		b.ReportMetric(value, strings.ReplaceAll(name, " ", "-")+"-"+unit)
		f := figure{Group: "health", Name: name, Value: value, Unit: unit}
		if goal > 0 {
			f.Goal, f.Holds = &goal, &holds
		}
		out = append(out, f)
	}
	s := storetest.Open(b)
	const servers = 50
	var all []schema.Server
	for n := range servers {
		all = append(all, storetest.Available(b, s, n+1, "nvidia-h100-80gb", perServer))
	}
	for b.Loop() {
		out = nil
		perSecond := ingest(b, s, all)
		add("samples through ingest, one core", perSecond, "1/s", 0, false)
		add("cores for 10,000 servers of 8 devices, ingest", neededSamples/perSecond, "cores", 4, neededSamples/perSecond <= 4)
		add("verdicts of the rules, 200 faults behind each, one core", verdicts(b), "1/s", 0, false)
		p50, p99 := detection(b, s, all)
		add("from the agent's word to the cordon, p50", p50, "ms", 0, false)
		add("from the agent's word to the cordon, p99", p99, "ms", 1000, p99 <= 1000)
	}
	if file := os.Getenv("GPUPOOL_BENCH_FIGURES"); file != "" {
		text, err := json.MarshalIndent(out, "", "  ")
		if err == nil {
			err = os.WriteFile(file, append(text, '\n'), 0o644)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// reading is a heartbeat as an agent sends it, at a beat: its samples change with each.
func reading(b *testing.B, v schema.Server, beat int) []byte {
	list := storetest.Devices(v.Name, v.Model, perServer)
	for i := range list {
		list[i].Samples = map[string]float64{}
		for n := range samplesOfOne {
			list[i].Samples["metric_"+strconv.Itoa(n)] = float64(beat*n + i)
		}
	}
	body, err := json.Marshal(agentproto.Heartbeat{Apart: true, BootID: "boot-1", Devices: list})
	if err != nil {
		b.Fatal(err)
	}
	return body
}

func ingest(b *testing.B, s *store.Store, all []schema.Server) float64 {
	const beats = 20
	var bodies [][]byte
	for beat := range beats {
		for _, v := range all {
			bodies = append(bodies, reading(b, v, beat))
		}
	}
	h := &History{Store: s}
	begin := used(b)
	for i, body := range bodies {
		var beat agentproto.Heartbeat
		if err := json.Unmarshal(body, &beat); err != nil {
			b.Fatal(err)
		}
		v := all[i%len(all)]
		if _, err := s.Heartbeat(b.Context(), v.ID, beat); err != nil {
			b.Fatal(err)
		}
		h.Seen(v.ID, beat.Devices)
	}
	return float64(len(bodies)*perServer*samplesOfOne) / (used(b) - begin).Seconds()
}

func verdicts(b *testing.B) float64 {
	now := schema.Instant(1_700_000_000_000)
	var behind []schema.Fault
	for i := range 200 {
		behind = append(behind, schema.Fault{ID: strconv.Itoa(i), Accelerator: "a" + strconv.Itoa(i%perServer), Kind: "xid", Code: []string{"31", "63", "94", "43"}[i%4], Severity: schema.SeverityWarning, At: now.Add(-time.Duration(i) * time.Hour)})
	}
	const times = 20_000
	begin := used(b)
	for i := range times {
		f := schema.Fault{ID: "f", Accelerator: "a" + strconv.Itoa(i%perServer), Kind: "xid", Code: []string{"79", "94", "31", "999"}[i%4], Severity: schema.SeverityCritical, At: now}
		if v := rules.Decide(rules.Table, f, behind); i%4 == 0 && v.Action != schema.ActionReset {
			b.Fatalf("XID 79 is judged %+v", v)
		}
	}
	return times / (used(b) - begin).Seconds()
}

// used is the processor time that this process has taken: what else runs on the machine is not in it.
func used(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// detection reports one fault a server, of a kind that no limit holds back where it comes on many at once, and looks that each is out of scheduling when its time is taken.
func detection(b *testing.B, s *store.Store, all []schema.Server) (p50, p99 float64) {
	var took []float64
	for i, v := range all {
		devices := storetest.Devices(v.Name, v.Model, perServer)
		begin := time.Now()
		e := agentproto.Evidence{Device: devices[i%perServer].Serial, Kind: "ecc-uncorrectable", Severity: schema.SeverityCritical, Text: "an uncorrectable error", At: s.Now(), ID: fmt.Sprint("b/", b.N, "/", i)}
		if _, err := s.Heartbeat(b.Context(), v.ID, agentproto.Heartbeat{Apart: true, BootID: "boot-1", Devices: devices, Evidence: []agentproto.Evidence{e}}); err != nil {
			b.Fatal(err)
		}
		faults, err := s.Faults(b.Context(), v.ID)
		if err != nil {
			b.Fatal(err)
		}
		if err := Judge(b.Context(), s, faults[0].ID); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begin).Seconds()*1000)
		cordons, err := s.Cordons(b.Context(), v.ID)
		if err != nil || len(cordons) == 0 {
			b.Fatalf("%s is not cordoned: %v, %v", v.Name, err, faults[0])
		}
	}
	slices.Sort(took)
	return took[len(took)/2], took[len(took)*99/100]
}
