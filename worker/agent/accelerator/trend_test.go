package accelerator

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

const noon = schema.Instant(1_699_999_980_000)

// life makes an agent die and read its memory from the disk, as it may between any two readings.
func life(t *testing.T, m *Memory) {
	t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	*m = Memory{}
	if err := json.Unmarshal(b, m); err != nil {
		t.Fatal(err)
	}
}

// tell shows signs as "DEVICE-OR-PART KIND[/CODE]".
func tell(signs []Sign) string {
	var w []string
	for _, s := range signs {
		kind := s.Kind
		if s.Code != "" {
			kind += "/" + s.Code
		}
		w = append(w, s.Device+s.Part+" "+kind)
	}
	return strings.Join(w, ", ")
}

// Case 11 of the cases on health: a counter that was reset is no burst, and what it rose by while the agent was down is
// counted once.
func TestAResetCounterIsNoBurst(t *testing.T) {
	t.Parallel()
	port := func(v float64) []Part {
		return []Part{{Kind: "ib", Name: "mlx5_0/1", Samples: map[string]float64{IBSymbolErrors: v, IBRate: 100e9}, State: PartActive}}
	}
	type look struct {
		after time.Duration
		boot  string
		v     float64
		want  string
	}
	for name, looks := range map[string][]look{
		"the driver was loaded anew":                 {{0, "b", 500, ""}, {time.Hour, "b", 500, ""}, {time.Hour, "b", 0, ""}, {time.Hour, "b", 10, ""}, {time.Hour, "b", 20, ""}},
		"another boot":                               {{0, "b", 500, ""}, {time.Hour, "b", 500, ""}, {time.Hour, "c", 0, ""}, {time.Hour, "c", 20, ""}},
		"another boot, and more than before":         {{0, "b", 500, ""}, {time.Hour, "c", 90_000, ""}, {time.Hour, "c", 90_000, ""}},
		"260 while the agent was down":               {{0, "b", 500, ""}, {time.Hour, "b", 760, "mlx5_0/1 ib/symbol-error"}, {time.Hour, "b", 760, ""}, {time.Hour, "b", 770, ""}},
		"the first sight of 10,000":                  {{0, "b", 10_000, ""}, {time.Hour, "b", 10_000, ""}},
		"nothing is said before a window is full":    {{0, "b", 0, ""}, {10 * time.Minute, "b", 5000, ""}, {40 * time.Minute, "b", 5000, ""}, {10 * time.Minute, "b", 5000, "mlx5_0/1 ib/symbol-error"}},
		"a wrap of 64 bits is a reset":               {{0, "b", 1 << 62, ""}, {time.Hour, "b", 40, ""}, {time.Hour, "b", 80, ""}},
		"the specification's 120 an hour is no sign": {{0, "b", 0, ""}, {time.Hour, "b", 119, ""}, {time.Hour, "b", 238, ""}},
	} {
		var m Memory
		now := noon
		for i, l := range looks {
			life(t, &m)
			now = now.Add(l.after)
			if got := tell(m.StepParts(l.boot, now, port(l.v))); got != l.want {
				t.Errorf("%s: look %d tells %q, want %q", name, i+1, got, l.want)
			}
		}
	}
}

func TestWhatPortsTell(t *testing.T) {
	t.Parallel()
	port := func(state PartState, samples map[string]float64) []Part {
		return []Part{{Kind: "ib", Name: "mlx5_0/1", Samples: samples, State: state}}
	}
	var m Memory
	now := noon
	for i, l := range []struct {
		parts []Part
		want  string
	}{
		{port(PartDown, map[string]float64{IBLinkDowned: 7, IBIntegrity: 3}), ""}, // never active: no cable
		{port(PartDown, map[string]float64{IBLinkDowned: 7, IBIntegrity: 3}), ""},
		{port(PartActive, map[string]float64{IBLinkDowned: 7, IBIntegrity: 3}), ""},
		{port(PartActive, map[string]float64{IBLinkDowned: 8, IBIntegrity: 3}), "mlx5_0/1 ib/link-downed"},
		{port(PartActive, map[string]float64{IBIntegrity: 5}), "mlx5_0/1 ib/local-integrity"},
		{nil, ""}, // not read this time
		{port(PartActive, map[string]float64{IBLinkDowned: 8, IBIntegrity: 5, IBOverrun: 9}), ""},
		{port(PartUnknown, nil), ""},
		{port(PartDown, nil), ""}, // down for two minutes
		{port(PartDown, nil), ""},
		{port(PartDown, nil), "mlx5_0/1 ib/down"},
		{port(PartDown, nil), ""},
		{port(PartActive, nil), ""},
	} {
		life(t, &m)
		now = now.Add(time.Minute)
		if got := tell(m.StepParts("b", now, l.parts)); got != l.want {
			t.Errorf("look %d tells %q, want %q", i+1, got, l.want)
		}
	}
	// PAM4 links have symbol errors as a matter of course.
	m = Memory{}
	for i := range 5 {
		if got := m.StepParts("b", noon.Add(time.Duration(i)*time.Hour), port(PartActive, map[string]float64{IBSymbolErrors: float64(i) * 1e6, IBRate: 400e9})); len(got) > 0 {
			t.Errorf("an NDR port told %v", got)
		}
	}
}

// TestRatesAndStates reads one device every ten seconds and says what is told, and when.
func TestRatesAndStates(t *testing.T) {
	t.Parallel()
	link := map[string]float64{PCIeGen: 5, PCIeWidth: 16, PCIeGenMax: 5, PCIeWidthMax: 16}
	for name, c := range map[string]struct {
		at   func(minute float64) map[string]float64
		want string // MINUTE KIND, ...
	}{
		"correctable errors, 90 a minute":   {func(m float64) map[string]float64 { return map[string]float64{ECCCorrected: 90 * m} }, ""},
		"correctable errors, 110 a minute":  {func(m float64) map[string]float64 { return map[string]float64{ECCCorrected: 5e10 + 110*m} }, "5 ecc-correctable 110, 65 ecc-correctable 110, 125 ecc-correctable 110"},
		"correctable errors, more and more": {func(m float64) map[string]float64 { return map[string]float64{ECCCorrected: 110*m + max(0, m-20)*1e6} }, "5 ecc-correctable 110, 25 ecc-correctable 1000110, 85 ecc-correctable 1000110, 145 ecc-correctable 1000110"},
		"a burst of correctable errors": {func(m float64) map[string]float64 {
			return map[string]float64{ECCCorrected: 10_000 * min(1, max(0, m-7))}
		}, "10 ecc-correctable 2000"},
		"30 replays a minute of 16 lanes": {func(m float64) map[string]float64 {
			return map[string]float64{PCIeReplays: 30 * m, PCIeGen: 5, PCIeWidth: 16}
		}, ""},
		"62 replays a minute of 16 lanes": {func(m float64) map[string]float64 {
			return map[string]float64{PCIeReplays: 62 * m, PCIeGen: 5, PCIeWidth: 16}
		}, "3 pcie/replay 62, 63 pcie/replay 62, 123 pcie/replay 62"},
		"replays of a link that isn't known": {func(m float64) map[string]float64 { return map[string]float64{PCIeReplays: 1e6 * m} }, ""},
		"four link errors a minute":          {func(m float64) map[string]float64 { return map[string]float64{LinkErrors: 4 * m} }, ""},
		"two hundred CRC errors a second":    {func(m float64) map[string]float64 { return map[string]float64{LinkErrors: 12_000 * min(2, m)} }, "1 link/errors critical 12000"},
		"a remap that waits":                 {func(m float64) map[string]float64 { return map[string]float64{RemapPending: one(m > 3)} }, "3.2 remap-pending"},
		"no spare row, from the first sight": {func(float64) map[string]float64 { return map[string]float64{RemapFailed: 1} }, "0 remap-failed critical"},
		"the SRAM limit":                     {func(m float64) map[string]float64 { return map[string]float64{SRAMThreshold: one(m >= 1)} }, "1 sram-threshold critical"},
		"a link that goes down": {func(m float64) map[string]float64 {
			return map[string]float64{LinksTotal: 18, LinksUp: 18 - one(m >= 1)}
		}, "1.2 link/down critical"},
		"a model with fewer links":             {func(float64) map[string]float64 { return map[string]float64{LinksTotal: 18, LinksUp: 0} }, ""},
		"an idle link is slow":                 {func(float64) map[string]float64 { return with(link, PCIeGen, 1) }, ""},
		"a working link is slow":               {func(m float64) map[string]float64 { return with(with(link, PCIeGen, 3), Utilization, one(m >= 1)) }, "1.2 pcie-narrow"},
		"a working link at its best":           {func(float64) map[string]float64 { return with(link, Utilization, 1) }, ""},
		"slowed down in every other minute":    {func(m float64) map[string]float64 { return map[string]float64{Throttled: one(int(m)%2 == 0)} }, ""},
		"slowed down most of the time":         {func(m float64) map[string]float64 { return map[string]float64{Throttled: one(int(m)%3 > 0)} }, "8 hw-slowdown"},
		"a device that says nothing is silent": {func(float64) map[string]float64 { return nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var m Memory
			var got []string
			for i := range 3*60*6 - 1 {
				if i%100 == 0 {
					life(t, &m)
				}
				at := noon.Add(time.Duration(i) * 10 * time.Second)
				minute := float64(i) / 6
				for _, s := range m.Step("b", at, []agentproto.Device{dev("a", c.at(minute))}) {
					w := fmt.Sprintf("%.2g %s", minute, strings.TrimPrefix(tell([]Sign{s}), "a "))
					if minute >= 100 {
						w = fmt.Sprintf("%.0f %s", minute, strings.TrimPrefix(tell([]Sign{s}), "a "))
					}
					if s.Severity == schema.SeverityCritical {
						w += " critical"
					}
					if s.Value > 0 {
						w += fmt.Sprintf(" %.0f", s.Value)
					}
					got = append(got, w)
				}
			}
			if g := strings.Join(got, ", "); g != c.want {
				t.Errorf("told %q, want %q", g, c.want)
			}
		})
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func with(m map[string]float64, k string, v float64) map[string]float64 {
	out := map[string]float64{k: v}
	for key, x := range m {
		if key != k {
			out[key] = x
		}
	}
	return out
}

// A state that lasts is told again: what came back from a repair with it is not well.
func TestAStateThatLastsIsToldAgain(t *testing.T) {
	t.Parallel()
	var m Memory
	n := 0
	for i := range 25 {
		n += len(m.Step("b", noon.Add(time.Duration(i)*time.Hour), []agentproto.Device{dev("a", map[string]float64{RemapFailed: 1})}))
	}
	if n != 5 {
		t.Errorf("it was told %d times in a day, want every six hours", n)
	}
}

func FuzzStep(f *testing.F) {
	f.Add(1.0, 2.0, 3.0, int64(1), int64(2))
	f.Fuzz(func(t *testing.T, a, b, c float64, t1, t2 int64) {
		var m Memory
		for _, x := range []struct {
			v  float64
			at int64
		}{{a, t1}, {b, t2}, {c, t1 + t2}} {
			samples := map[string]float64{}
			for _, k := range Metrics {
				samples[k.Name] = x.v
			}
			for _, s := range m.Step("b", schema.Instant(x.at), []agentproto.Device{dev("a", samples)}) {
				if s.Kind == "" || s.Severity == "" || s.Value < 0 || s.Value != s.Value {
					t.Errorf("%+v", s)
				}
			}
		}
	})
}

// BenchmarkStep is one reading of eight devices with every metric of the schema, through every rule of the agent.
func BenchmarkStep(b *testing.B) {
	var list []agentproto.Device
	for i := range 8 {
		samples := map[string]float64{}
		for _, m := range Metrics {
			samples[m.Name] = 1
		}
		list = append(list, dev(fmt.Sprint("S", i), samples))
	}
	var m Memory
	at := noon
	for b.Loop() {
		at = at.Add(10 * time.Second)
		m.Step("b", at, list)
	}
	b.ReportMetric(float64(8*len(Metrics))*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
}
