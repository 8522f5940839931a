// Package setups is the catalogue of setup profiles: how a vendor's driver and a container runtime get onto a server that
// has its operating system. A profile is a file of steps for the server's agent, with a version; gpupool brings some, an
// operator's folder adds to them or takes the place of one by its name.
//
// Invariant: what a step brings is not believed: the agent proves it afterwards by reading the devices and running a
// container (worker/agent). Not here: who runs which steps when (workflows), how they are run (worker/agent).
package setups

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

//go:embed builtin
var builtin embed.FS

// Default is the setup of a server for which nothing else was chosen: the image has brought all, and that is proven.
const Default = "image"

// Profile is one setup.
type Profile struct {
	Name    string `yaml:"-"`
	Title   string `yaml:"title"`
	Version int    `yaml:"version"`
	Vendor  string `yaml:"vendor"` // of the servers that it is for; empty = any
	Help    string `yaml:"help"`   // what the server must have, and where the steps are from
	Drivers []Step `yaml:"drivers"`
	Runtime []Step `yaml:"runtime"`
	Source  string `yaml:"-"` // "built in", or the file that it was read from
}

// Step is one command.
type Step struct {
	Name   string        `yaml:"name"`
	Unless string        `yaml:"unless"` // exits with 0 where there is nothing to do
	Run    string        `yaml:"run"`
	Reboot bool          `yaml:"reboot"` // the server restarts after it
	Limit  time.Duration `yaml:"limit"`  // 0 = 15 minutes; at most 2 hours
}

// ID is the name with the version, as it stands in the record: nvidia/1.
func (p *Profile) ID() string { return fmt.Sprintf("%s/%d", p.Name, p.Version) }

// Steps are those of a task, as its agent is given them.
func (p *Profile) Steps(kind schema.TaskKind) []agentproto.SetupStep {
	from := p.Drivers
	if kind == schema.TaskRuntime {
		from = p.Runtime
	}
	var steps []agentproto.SetupStep
	for _, s := range from {
		steps = append(steps, agentproto.SetupStep{Name: s.Name, Unless: s.Unless, Run: s.Run, Reboot: s.Reboot, LimitMS: cmp.Or(s.Limit, 15*time.Minute).Milliseconds()})
	}
	return steps
}

// Catalogue is the setups by name.
type Catalogue map[string]*Profile

// Load reads what gpupool brings, and then the files NAME.yaml in dir ("" = none), which go before it.
func Load(dir string) (Catalogue, error) {
	c := Catalogue{}
	own, err := fs.Sub(builtin, "builtin")
	if err != nil {
		return nil, err
	}
	if err := c.read(own, "built in"); err != nil {
		return nil, err
	}
	if dir == "" {
		return c, nil
	}
	if err := c.read(os.DirFS(dir), dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return c, nil
}

func (c Catalogue) read(from fs.FS, source string) error {
	if _, err := fs.Stat(from, "."); err != nil {
		return err
	}
	files, err := fs.Glob(from, "*.yaml")
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := fs.ReadFile(from, f)
		if err != nil {
			return err
		}
		p := &Profile{Name: strings.TrimSuffix(f, ".yaml"), Source: source}
		if source != "built in" {
			p.Source = filepath.Join(source, f)
		}
		if err := yaml.UnmarshalWithOptions(b, p, yaml.Strict()); err != nil {
			return fmt.Errorf("setup %s (%s): %w", p.Name, source, err)
		}
		if err := p.check(); err != nil {
			return fmt.Errorf("setup %s (%s): %w", p.Name, source, err)
		}
		c[p.Name] = p
	}
	return nil
}

func (p *Profile) check() error {
	if p.Title == "" {
		return errors.New("title: want a line that says what it brings")
	}
	if p.Version < 1 {
		return fmt.Errorf("version: %d: want a number from 1, which rises with every change", p.Version)
	}
	for part, steps := range map[string][]Step{"drivers": p.Drivers, "runtime": p.Runtime} {
		seen := map[string]bool{}
		for i, s := range steps {
			switch {
			case s.Name == "" || seen[s.Name]:
				return fmt.Errorf("%s: step %d: name: %q: want one that no other step has", part, i+1, s.Name)
			case strings.TrimSpace(s.Run) == "":
				return fmt.Errorf("%s: %s: run: want a command", part, s.Name)
			case s.Limit < 0 || s.Limit > 2*time.Hour:
				return fmt.Errorf("%s: %s: limit: %s: want up to 2h", part, s.Name, schema.Setting(s.Limit))
			}
			seen[s.Name] = true
		}
	}
	return nil
}

// Names are the catalogue's, in order.
func (c Catalogue) Names() []string { return slices.Sorted(maps.Keys(c)) }

// Find finds a setup for a vendor's servers; an empty name is the default one.
func (c Catalogue) Find(name, vendor string) (*Profile, error) {
	p, ok := c[cmp.Or(name, Default)]
	if !ok {
		return nil, schema.Invalid("setup", name, "one of "+strings.Join(c.Names(), ", "))
	}
	if p.Vendor != "" && vendor != "" && p.Vendor != vendor {
		return nil, schema.Invalid("setup", name, "one for "+vendor+"; this one is for "+p.Vendor)
	}
	return p, nil
}
