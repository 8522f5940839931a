// Package hardware is what a server is built of: its order as lines (a build), its parts as somebody read them, and in what the
// two differ.
//
// Invariant: what could not be read is a difference of its own, never a part that is there and never one that is missing. It does
// no I/O. Not here: who reads (worker/agent/parts, activities/bmc), who accepts a difference (schema/store).
package hardware

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gpupool/schema"
)

// Kind of a part.
type Kind string

// The kinds. BIOS and BMC are one each, and have a firmware alone.
const (
	Accelerator Kind = "accelerator"
	DIMM        Kind = "dimm"
	NVMe        Kind = "nvme"
	NIC         Kind = "nic"
	BIOS        Kind = "bios"
	BMC         Kind = "bmc"
)

// Kinds lists them.
var Kinds = []Kind{Accelerator, DIMM, NVMe, NIC, BIOS, BMC}

// Part is one part as it was read. What it doesn't tell is 0 or empty.
type Part struct {
	Kind     Kind    `json:"kind"`
	Name     string  `json:"name"` // where it is: P1-DIMMA1, nvme0, ens1f0 (0000:1b:00.0)
	Model    string  `json:"model,omitempty"`
	Serial   string  `json:"serial,omitempty"`
	Bytes    int64   `json:"bytes,omitempty"`    // of a DIMM or a drive; 0 = a DIMM's socket that is empty
	Gbps     float64 `json:"gbps,omitempty"`     // of a NIC's port, as it is linked now, in Gbit/s; 0 = no link
	Lanes    int     `json:"lanes,omitempty"`    // of its PCIe link, as trained
	Firmware string  `json:"firmware,omitempty"` // version
}

// Read is what one witness read.
type Read struct {
	Parts []Part `json:"parts,omitempty"`
	// Unread are the kinds that could not be read, and why: nothing is known of their parts.
	Unread map[Kind]string `json:"unread,omitempty"`
}

// Line is one line of an order: so many parts of a kind, and what each of them has. What is 0 or empty was not ordered.
type Line struct {
	Part     Kind    `json:"part"`
	Count    int     `json:"count"`
	Bytes    int64   `json:"bytes,omitempty"`    // of each DIMM, exactly; of each drive at least, less 5 % for how makers count
	Gbps     float64 `json:"gbps,omitempty"`     // of each NIC's port at least, in Gbit/s
	Lanes    int     `json:"lanes,omitempty"`    // of each part's PCIe link at least
	Firmware string  `json:"firmware,omitempty"` // version: 1.2.3 exactly, >=1.2.3 that or a later one
}

// Build is what servers of one kind are ordered with, under a name.
type Build struct {
	Name  string         `gorm:"primaryKey" json:"name"`
	Parts []Line         `gorm:"serializer:json" json:"parts"`
	SetBy string         `json:"set_by"`
	SetAt schema.Instant `json:"set_at"`
}

// MaxLines is the most lines that a build has.
const MaxLines = 64

// Check refuses lines that say nothing or can't be meant. Errors name the field: parts[2].bytes.
func Check(lines []Line) error {
	if len(lines) == 0 || len(lines) > MaxLines {
		return schema.Invalid("parts", len(lines), fmt.Sprintf("1 to %d lines", MaxLines))
	}
	for i, l := range lines {
		at := fmt.Sprintf("parts[%d].", i)
		if !slices.Contains(Kinds, l.Part) {
			return schema.Invalid(at+"part", string(l.Part), "accelerator, dimm, nvme, nic, bios or bmc")
		}
		one := l.Part == BIOS || l.Part == BMC
		switch {
		case l.Count < 1 || l.Count > 1024 || one && l.Count != 1:
			return schema.Invalid(at+"count", l.Count, map[bool]string{true: "1: a server has one", false: "1 to 1024"}[one])
		case l.Bytes < 0 || l.Bytes > 0 && l.Part != DIMM && l.Part != NVMe:
			return schema.Invalid(at+"bytes", l.Bytes, "bytes of each dimm or nvme; no other part has a size")
		case l.Gbps < 0 || l.Gbps > 100_000 || l.Gbps > 0 && l.Part != NIC:
			return schema.Invalid(at+"gbps", l.Gbps, "Gbit/s of each nic's port, at most 100000; no other part has a speed")
		case l.Lanes < 0 || l.Lanes > 32 || l.Lanes > 0 && l.Part != Accelerator && l.Part != NVMe && l.Part != NIC:
			return schema.Invalid(at+"lanes", l.Lanes, "PCIe lanes of each accelerator, nvme or nic, at most 32")
		case l.Firmware != "" && (l.Part == DIMM || strings.TrimPrefix(l.Firmware, atLeast) == "" || strings.TrimSpace(l.Firmware) != l.Firmware):
			return schema.Invalid(at+"firmware", l.Firmware, "a version like 1.2.3, or >=1.2.3 for that or a later one; a dimm has none")
		case one && l.Firmware == "":
			return schema.Invalid(at+"firmware", "", "the version of the "+string(l.Part)+": nothing else of it is ordered")
		}
	}
	return nil
}

// Differ compares lines of these kinds with what was read, kind by kind in Kinds' order, and names each way in which they differ. Parts beyond the
// order are none. Several lines of a kind take their parts in turn, the greatest first.
func Differ(lines []Line, r Read, kinds ...Kind) []schema.Difference {
	var all []schema.Difference
	for _, k := range Kinds {
		mine := slices.DeleteFunc(slices.Clone(lines), func(l Line) bool { return l.Part != k })
		if len(mine) == 0 || !slices.Contains(kinds, k) {
			continue
		}
		if why, unread := r.Unread[k]; unread {
			all = append(all, schema.Difference{Item: string(k), Ordered: words(mine), Found: "could not be read",
				Words: fmt.Sprintf("what it has of %s could not be read: %s", words(mine), why)})
			continue
		}
		var there []Part
		var empty []string
		for _, p := range r.Parts {
			switch {
			case p.Kind == DIMM && k == DIMM && p.Bytes == 0:
				empty = append(empty, p.Name)
			case p.Kind == k:
				there = append(there, p)
			}
		}
		slices.SortStableFunc(mine, func(a, b Line) int {
			if c := cmp.Compare(b.Bytes, a.Bytes); c != 0 {
				return c
			}
			return cmp.Compare(b.Gbps, a.Gbps)
		})
		all = append(all, differ(mine, there, empty)...)
	}
	return all
}

// differ gives each line its parts: the smallest that are as great as ordered, then the greatest of what is left, then none.
func differ(lines []Line, there []Part, empty []string) []schema.Difference {
	slices.SortStableFunc(there, func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Gbps, b.Gbps), strings.Compare(a.Name, b.Name))
	})
	given := make([][]Part, len(lines))
	give := func(fits func(Line, Part) bool) {
		for i, l := range lines {
			there = slices.DeleteFunc(there, func(p Part) bool {
				if len(given[i]) == l.Count || !fits(l, p) {
					return false
				}
				given[i] = append(given[i], p)
				return true
			})
		}
	}
	give(Line.fits)
	slices.Reverse(there)
	give(func(Line, Part) bool { return true })
	for _, g := range given { // what is told of them is always told alike
		slices.SortFunc(g, func(a, b Part) int { return strings.Compare(a.Name, b.Name) })
	}
	var all []schema.Difference
	for i, l := range lines {
		if n := len(given[i]); n < l.Count {
			found := fmt.Sprint(n)
			if len(empty) > 0 && len(empty) <= 8 {
				found += "; empty: " + strings.Join(empty, ", ")
			}
			all = append(all, schema.Difference{Item: string(l.Part), Ordered: words([]Line{l}), Found: found,
				Words: fmt.Sprintf("%d of the %s ordered are there%s", n, words([]Line{l}), strings.TrimPrefix(found, fmt.Sprint(n)))})
		}
		for _, f := range features {
			ordered, ok := f.ordered(l)
			if !ok {
				continue
			}
			var bad []string
			for _, p := range given[i] {
				if !f.good(l, p) {
					bad = append(bad, f.found(p)+" at "+p.Name)
				}
			}
			if bad != nil {
				found := strings.Join(bad, ", ")
				all = append(all, schema.Difference{Item: string(l.Part) + " " + f.name, Ordered: ordered, Found: found,
					Words: fmt.Sprintf("%s %s: ordered %s, found %s", l.Part, f.name, ordered, found)})
			}
		}
	}
	return all
}

// fits reports whether a part is as great as a line's.
func (l Line) fits(p Part) bool { return features[0].good(l, p) && features[1].good(l, p) }

// feature is one thing in which a part can differ from its line: what was ordered of it, whether a part has it, what a part has.
type feature struct {
	name    string
	ordered func(Line) (string, bool)
	good    func(Line, Part) bool
	found   func(Part) string
}

var features = []feature{
	{"size", func(l Line) (string, bool) { return size(l.Bytes), l.Bytes > 0 },
		func(l Line, p Part) bool {
			if l.Part == DIMM {
				return l.Bytes == 0 || p.Bytes == l.Bytes
			}
			return float64(p.Bytes) >= 0.95*float64(l.Bytes)
		},
		func(p Part) string { return size(p.Bytes) }},
	{"speed", func(l Line) (string, bool) { return fmt.Sprintf("%g Gbit/s", l.Gbps), l.Gbps > 0 },
		func(l Line, p Part) bool { return p.Gbps >= l.Gbps },
		func(p Part) string {
			if p.Gbps == 0 {
				return "no link"
			}
			return fmt.Sprintf("%g Gbit/s", p.Gbps)
		}},
	{"link width", func(l Line) (string, bool) { return fmt.Sprintf("x%d", l.Lanes), l.Lanes > 0 },
		func(l Line, p Part) bool { return p.Lanes >= l.Lanes },
		func(p Part) string {
			if p.Lanes == 0 {
				return "no width told"
			}
			return fmt.Sprintf("x%d", p.Lanes)
		}},
	{"firmware", func(l Line) (string, bool) { return l.Firmware, l.Firmware != "" },
		func(l Line, p Part) bool { return satisfies(p.Firmware, l.Firmware) },
		func(p Part) string {
			if p.Firmware == "" {
				return "no version told"
			}
			return p.Firmware
		}},
}

// words say lines as an order has them: 8 nvme of 3.84 TB, 2 nvme of 960 GB.
func words(lines []Line) string {
	var out []string
	for _, l := range lines {
		w := fmt.Sprintf("%d %s", l.Count, l.Part)
		switch {
		case l.Bytes > 0:
			w += " of " + size(l.Bytes)
		case l.Gbps > 0:
			w += fmt.Sprintf(" of %g Gbit/s", l.Gbps)
		}
		out = append(out, w)
	}
	return strings.Join(out, ", ")
}

// size is a DIMM's in GiB, a drive's in decimal units, as each is sold.
func size(n int64) string {
	switch {
	case n > 0 && n%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 1e12:
		return fmt.Sprintf("%.2f TB", float64(n)/1e12)
	}
	return fmt.Sprintf("%.2f GB", float64(n)/1e9)
}
