package burnin

import (
	_ "embed"
	"fmt"
	"slices"

	"github.com/goccy/go-yaml"
)

//go:embed floors.yaml
var floorsFile []byte

//go:embed suites.yaml
var suitesFile []byte

// Floor is what a healthy device of a model reaches at least.
type Floor struct {
	Model  string  `yaml:"model"`
	Metric string  `yaml:"metric"`
	Unit   string  `yaml:"unit"`
	Min    float64 `yaml:"min"`
	Sheet  float64 `yaml:"sheet"`  // the data sheet's own figure
	Source string  `yaml:"source"` // of Min
}

type floors []Floor

func (fs floors) of(model, metric string) (Floor, bool) {
	i := slices.IndexFunc(fs, func(f Floor) bool { return f.Model == model && f.Metric == metric })
	if i < 0 {
		return Floor{}, false
	}
	return fs[i], true
}

// Floors are the floors, and FloorsVersion their version.
var Floors, FloorsVersion = mustFloors(floorsFile)

func mustFloors(b []byte) (floors, int) {
	fs, version, err := readFloors(b)
	if err != nil {
		panic(err) // the file is part of the program, and a test reads it
	}
	return fs, version
}

func readFloors(b []byte) (floors, int, error) {
	var doc struct {
		Version int     `yaml:"version"`
		Floors  []Floor `yaml:"floors"`
	}
	if err := yaml.UnmarshalWithOptions(b, &doc, yaml.Strict()); err != nil {
		return nil, 0, fmt.Errorf("floors.yaml: %w", err)
	}
	for i, f := range doc.Floors {
		switch {
		case f.Model == "" || f.Metric == "" || f.Unit == "" || f.Source == "":
			return nil, 0, fmt.Errorf("floors.yaml: floors[%d]: model, metric, unit and source are all needed", i)
		case f.Min > f.Sheet || f.Min < f.Sheet/3:
			return nil, 0, fmt.Errorf("floors.yaml: floors[%d]: %s of %s: min %v is not between a third and the whole of the data sheet's %v: is the unit right?", i, f.Metric, f.Model, f.Min, f.Sheet)
		}
		if _, twice := floors(doc.Floors[:i]).of(f.Model, f.Metric); twice {
			return nil, 0, fmt.Errorf("floors.yaml: floors[%d]: %s of %s is there twice", i, f.Metric, f.Model)
		}
	}
	return doc.Floors, doc.Version, nil
}

// suites is suites.yaml: by name, then by vendor; "any" goes before every vendor's own.
type suites struct {
	Version int                          `yaml:"version"`
	Suites  map[string]map[string][]Test `yaml:"suites"`
}

func readSuites(b []byte) (suites, error) {
	var s suites
	if err := yaml.UnmarshalWithOptions(b, &s, yaml.Strict()); err != nil {
		return s, fmt.Errorf("suites.yaml: %w", err)
	}
	for name, vendors := range s.Suites {
		for vendor, tests := range vendors {
			for _, t := range tests {
				if _, ok := tools[t.Tool]; !ok {
					return s, fmt.Errorf("suites.yaml: %s: %s: there is no tool %q", name, vendor, t.Tool)
				}
				if t.Seconds <= 0 {
					return s, fmt.Errorf("suites.yaml: %s: %s: %s: seconds must be more than 0", name, vendor, t.Tool)
				}
			}
		}
	}
	return s, nil
}

// Suites gives each suite's tests for a vendor, and the version of all.
func Suites() (byName func(vendor string) map[string][]Test, version int) {
	s, err := readSuites(suitesFile)
	if err != nil {
		panic(err) // the file is part of the program, and a test reads it
	}
	return func(vendor string) map[string][]Test {
		out := map[string][]Test{}
		for name, v := range s.Suites {
			if own, ok := v[vendor]; ok {
				out[name] = slices.Concat(v["any"], own)
			}
		}
		return out
	}, s.Version
}
