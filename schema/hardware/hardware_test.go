package hardware_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpupool/schema"
	. "gpupool/schema/hardware"
)

const gib = 1 << 30

// ordered is a server's build, and good is one that is as ordered.
var ordered = []Line{
	{Part: NIC, Count: 1, Gbps: 25}, // the smaller stand first: the order of lines is nobody's business
	{Part: NIC, Count: 2, Gbps: 400, Lanes: 16, Firmware: ">=28.43"},
	{Part: NVMe, Count: 2, Bytes: 3_840_000_000_000, Lanes: 4, Firmware: "GDC7302Q"},
	{Part: DIMM, Count: 3, Bytes: 64 * gib},
	{Part: Accelerator, Count: 1, Lanes: 16},
	{Part: BIOS, Count: 1, Firmware: ">=1.6.7"},
	{Part: BMC, Count: 1, Firmware: "24.09-1"},
}

func good() Read {
	return Read{Parts: []Part{
		{Kind: DIMM, Name: "A1", Bytes: 64 * gib}, {Kind: DIMM, Name: "A2", Bytes: 64 * gib}, {Kind: DIMM, Name: "B1", Bytes: 64 * gib}, {Kind: DIMM, Name: "B2"},
		{Kind: NVMe, Name: "nvme0", Bytes: 3_840_755_982_336, Lanes: 4, Firmware: "GDC7302Q"}, {Kind: NVMe, Name: "nvme1", Bytes: 3_840_755_982_336, Lanes: 4, Firmware: "GDC7302Q"},
		{Kind: NVMe, Name: "nvme2", Bytes: 960e9, Lanes: 2},
		{Kind: NIC, Name: "eno1", Gbps: 25, Lanes: 8}, {Kind: NIC, Name: "ib0", Gbps: 400, Lanes: 16, Firmware: "28.43.2026"}, {Kind: NIC, Name: "ib1", Gbps: 400, Lanes: 16, Firmware: "28.100.1"},
		{Kind: Accelerator, Name: "SXM1", Lanes: 16}, {Kind: BIOS, Name: "the system", Firmware: "1.10.0"}, {Kind: BMC, Name: "the BMC", Firmware: "24.09-1"}}}
}

func TestEachWayInWhichAServerDiffersIsNamed(t *testing.T) {
	t.Parallel()
	at := func(name string, change func(*Part)) func(*Read) {
		return func(r *Read) {
			for i := range r.Parts {
				if r.Parts[i].Name == name {
					change(&r.Parts[i])
					return
				}
			}
			t.Errorf("no part %s", name)
		}
	}
	gone := func(name string) func(*Read) { return at(name, func(p *Part) { p.Kind = "gone" }) }
	for name, c := range map[string]struct {
		change func(*Read)
		want   []string // item: ordered / found
	}{
		"as ordered, and more": {func(*Read) {}, nil},
		"a socket is empty":    {at("A2", func(p *Part) { p.Bytes = 0 }), []string{"dimm: 3 dimm of 64 GiB / 2; empty: A2, B2"}},
		"a smaller DIMM":       {at("B1", func(p *Part) { p.Bytes = 32 * gib }), []string{"dimm size: 64 GiB / 32 GiB at B1"}},
		"a greater DIMM":       {at("B1", func(p *Part) { p.Bytes = 96 * gib }), []string{"dimm size: 64 GiB / 96 GiB at B1"}},
		"a drive is missing, a smaller one is in its place": {gone("nvme1"), []string{"nvme size: 3.84 TB / 960.00 GB at nvme2", "nvme link width: x4 / x2 at nvme2", "nvme firmware: GDC7302Q / no version told at nvme2"}},
		"two drives are missing":                            {func(r *Read) { gone("nvme1")(r); gone("nvme2")(r) }, []string{"nvme: 2 nvme of 3.84 TB / 1"}},
		"a drive at half its lanes":                         {at("nvme0", func(p *Part) { p.Lanes = 2 }), []string{"nvme link width: x4 / x2 at nvme0"}},
		"a drive with other firmware, later or not":         {at("nvme0", func(p *Part) { p.Firmware = "GDC7402Q" }), []string{"nvme firmware: GDC7302Q / GDC7402Q at nvme0"}},
		"a port without a link":                             {at("ib0", func(p *Part) { p.Gbps = 0 }), []string{"nic speed: 400 Gbit/s / no link at ib0"}},
		"a port at a lower speed":                           {at("ib1", func(p *Part) { p.Gbps = 100 }), []string{"nic speed: 400 Gbit/s / 100 Gbit/s at ib1"}},
		"two ports are slow, and one could pass for a smaller": {func(r *Read) {
			at("ib1", func(p *Part) { p.Gbps = 100 })(r)
			at("ib0", func(p *Part) { p.Gbps = 0 })(r)
		}, []string{"nic speed: 400 Gbit/s / no link at ib0, 100 Gbit/s at ib1"}},
		"a port with old firmware":         {at("ib1", func(p *Part) { p.Firmware = "28.9.9" }), []string{"nic firmware: >=28.43 / 28.9.9 at ib1"}},
		"an accelerator at half its lanes": {at("SXM1", func(p *Part) { p.Lanes = 8 }), []string{"accelerator link width: x16 / x8 at SXM1"}},
		"lanes that nobody tells":          {at("SXM1", func(p *Part) { p.Lanes = 0 }), []string{"accelerator link width: x16 / no width told at SXM1"}},
		"an old BIOS":                      {at("the system", func(p *Part) { p.Firmware = "1.6.6" }), []string{"bios firmware: >=1.6.7 / 1.6.6 at the system"}},
		"another BMC":                      {at("the BMC", func(p *Part) { p.Firmware = "24.09-2" }), []string{"bmc firmware: 24.09-1 / 24.09-2 at the BMC"}},
		"unread is not missing": {func(r *Read) {
			r.Unread = map[Kind]string{DIMM: "permission denied"}
			r.Parts = r.Parts[4:]
		}, []string{"dimm: 3 dimm of 64 GiB / could not be read"}},
		"two at once": {func(r *Read) { gone("ib0")(r); at("A1", func(p *Part) { p.Bytes = 0 })(r) },
			[]string{"dimm: 3 dimm of 64 GiB / 2; empty: A1, B2", "nic: 2 nic of 400 Gbit/s / 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := good()
			c.change(&r)
			var got []string
			for _, d := range Differ(ordered, r, Kinds...) {
				got = append(got, d.Item+": "+d.Ordered+" / "+d.Found)
				if !strings.Contains(d.Words, d.Ordered) || d.Found != "could not be read" && !strings.Contains(d.Words, strings.TrimLeft(d.Found, "0123456789; ")) {
					t.Errorf("%q doesn't say %q and %q", d.Words, d.Ordered, d.Found)
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestOnlyTheKindsThatAreAskedForAreCompared(t *testing.T) {
	t.Parallel()
	if d := Differ(ordered, Read{}, BMC); len(d) != 1 || d[0].Item != "bmc" {
		t.Errorf("they are %+v", d)
	}
}

func TestAnOrderThatCantBeMeantIsRefusedByItsField(t *testing.T) {
	t.Parallel()
	if err := Check(ordered); err != nil {
		t.Fatal(err)
	}
	for field, l := range map[string]Line{
		"parts[0].part":     {Part: "gpu", Count: 1},
		"parts[0].count":    {Part: DIMM},
		"parts[0].bytes":    {Part: NIC, Count: 1, Bytes: 5},
		"parts[0].gbps":     {Part: NVMe, Count: 1, Gbps: 5},
		"parts[0].lanes":    {Part: DIMM, Count: 1, Lanes: 4},
		"parts[0].firmware": {Part: BMC, Count: 1},
	} {
		if err := Check([]Line{l}); !schema.Is(err, schema.CodeInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: %v, want it to name %s", l, err, field)
		}
	}
	for _, l := range []Line{{Part: BIOS, Count: 2, Firmware: "1"}, {Part: NIC, Count: 1, Firmware: ">="}, {Part: DIMM, Count: 1, Firmware: "1"}, {Part: NVMe, Count: 1, Lanes: 64}, {Part: DIMM, Count: -1}} {
		if err := Check([]Line{l}); err == nil {
			t.Errorf("%+v is taken", l)
		}
	}
	if Check(nil) == nil || Check(make([]Line, MaxLines+1)) == nil {
		t.Error("no line, or too many, are taken")
	}
}

func TestVersionsAreComparedAsMakersCount(t *testing.T) {
	t.Parallel()
	for _, rising := range [][]string{{"1.6.7", "1.6.10", "1.10"}, {"96.00.89.00.01", "96.00.89.00.02", "96.01"}, {"GDC5302Q", "GDC7302Q", "GDC7302R"}, {"1.2", "1.2a", "1.2b"}, {"fb01", "FB02"}, {"0009", "10"}} {
		for i, v := range rising {
			for j, least := range rising {
				d := Differ([]Line{{Part: BIOS, Count: 1, Firmware: ">=" + least}}, Read{Parts: []Part{{Kind: BIOS, Firmware: v}}}, BIOS)
				if (len(d) == 0) != (i >= j) {
					t.Errorf("%s >= %s: %+v", v, least, d)
				}
			}
		}
	}
}

func FuzzVersions(f *testing.F) {
	f.Add("1.2.3", "1.2.4")
	f.Fuzz(func(t *testing.T, a, b string) {
		if a == "" || b == "" {
			return
		}
		less := func(x, y string) bool {
			return len(Differ([]Line{{Part: BIOS, Count: 1, Firmware: ">=" + y}}, Read{Parts: []Part{{Kind: BIOS, Firmware: x}}}, BIOS)) > 0
		}
		if less(a, a) || less(a, b) && less(b, a) {
			t.Errorf("%q and %q have no order", a, b)
		}
	})
}
