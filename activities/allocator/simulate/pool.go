package simulate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/goccy/go-yaml"

	"gpupool/activities/allocator/engine"
)

// Pool is the servers a trace is replayed on.
type Pool struct {
	Servers []engine.Server
}

// Accelerators is how many the pool has.
func (p *Pool) Accelerators() int {
	n := 0
	for _, s := range p.Servers {
		n += len(s.Accelerators)
	}
	return n
}

// ErrPool says that a pool file is wrong.
var ErrPool = errors.New("pool")

// Flat is a pool of n accelerators of one model and no topology: every one is a server of its own, so that only
// their number limits what fits.
func Flat(n int, model string) *Pool {
	p := &Pool{}
	for i := range n {
		id := fmt.Sprintf("gpu%06d", i)
		p.Servers = append(p.Servers, engine.Server{
			ID: id, Schedulable: true, CPU: 1 << 40, MemoryBytes: 1 << 60,
			Accelerators: []engine.Accelerator{{ID: id + "-0", Model: model, Schedulable: true}},
		})
	}
	return p
}

// rackYAML is one group of equal servers in a pool file.
type rackYAML struct {
	Count        int    `yaml:"count"`        // servers
	Model        string `yaml:"model"`        // accelerator model
	Accelerators int    `yaml:"accelerators"` // per server
	CPU          int64  `yaml:"cpu"`          // cores per server; 0 = plenty
	MemoryGiB    int64  `yaml:"memory_gib"`   // per server; 0 = plenty
	PerRack      int    `yaml:"per_rack"`     // servers in a rack; 0 = all in one
	NVLinkRack   bool   `yaml:"nvlink_rack"`  // a rack is one NVLink domain
	Site         string `yaml:"site"`
	Region       string `yaml:"region"`
}

// ReadPool reads a pool: YAML (servers: a list of groups of equal servers) or the node list of openb (CSV).
func ReadPool(r io.Reader) (*Pool, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("reading the pool: %w", err)
	}
	first, _, _ := bytes.Cut(text, []byte("\n"))
	if bytes.Contains(first, []byte("cpu_milli")) {
		return openbNodes(text)
	}
	var doc struct {
		Servers []rackYAML `yaml:"servers"`
	}
	if err := yaml.UnmarshalWithOptions(text, &doc, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPool, err)
	}
	p := &Pool{}
	for i, g := range doc.Servers {
		switch {
		case g.Count < 1 || g.Count > maxAccelerators:
			return nil, fmt.Errorf("%w: servers[%d].count: %d: want 1 or more", ErrPool, i, g.Count)
		case g.CPU < 0 || g.CPU > 1<<20:
			return nil, fmt.Errorf("%w: servers[%d].cpu: %d: want cores, 1 to %d, or 0 for plenty", ErrPool, i, g.CPU, 1<<20)
		case g.MemoryGiB < 0 || g.MemoryGiB > 1<<20:
			return nil, fmt.Errorf("%w: servers[%d].memory_gib: %d: want GiB, 1 to %d, or 0 for plenty", ErrPool, i, g.MemoryGiB, 1<<20)
		case g.PerRack < 0:
			return nil, fmt.Errorf("%w: servers[%d].per_rack: %d: want 1 or more servers, or 0 for all in one rack", ErrPool, i, g.PerRack)
		case g.Accelerators < 1 || g.Accelerators > 1024:
			return nil, fmt.Errorf("%w: servers[%d].accelerators: %d: want 1 to 1024", ErrPool, i, g.Accelerators)
		case g.Model == "":
			return nil, fmt.Errorf("%w: servers[%d].model: empty: want an accelerator model", ErrPool, i)
		case len(p.Servers)+g.Count > maxAccelerators || p.Accelerators()+g.Count*g.Accelerators > 4*maxAccelerators:
			return nil, fmt.Errorf("%w: servers[%d].count: %d: want at most %d servers and %d accelerators in all", ErrPool, i, g.Count, maxAccelerators, 4*maxAccelerators)
		}
		for n := range g.Count {
			p.Servers = append(p.Servers, g.server(i, n))
		}
	}
	if len(p.Servers) == 0 {
		return nil, fmt.Errorf("%w: no servers: want a list `servers:`", ErrPool)
	}
	return p, nil
}

func (g rackYAML) server(group, n int) engine.Server {
	s := engine.Server{
		ID: fmt.Sprintf("g%ds%05d", group, n), Site: g.Site, Region: g.Region, Schedulable: true,
		CPU: g.CPU, MemoryBytes: g.MemoryGiB << 30,
	}
	if g.CPU == 0 {
		s.CPU = 1 << 40
	}
	if g.MemoryGiB == 0 {
		s.MemoryBytes = 1 << 60
	}
	rack := 0
	if g.PerRack > 0 {
		rack = n / g.PerRack
	}
	s.Rack = fmt.Sprintf("g%dr%d", group, rack)
	if g.NVLinkRack {
		s.NVLinkDomain = s.Rack
	}
	for k := range g.Accelerators {
		s.Accelerators = append(s.Accelerators, engine.Accelerator{
			ID: s.ID + "-" + strconv.Itoa(k), Model: g.Model, Index: k, Schedulable: true,
		})
	}
	return s
}

func openbNodes(text []byte) (*Pool, error) {
	t, err := readCSV(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	if !t.has("sn", "cpu_milli", "memory_mib", "gpu", "model") {
		return nil, fmt.Errorf("%w: columns %v: want sn,cpu_milli,memory_mib,gpu,model", ErrPool, t.names)
	}
	p, seen := &Pool{}, ids{}
	for i := range t.rows {
		r := row{t: t, line: i}
		s := engine.Server{
			ID: seen.id(&r, "sn", ""), Schedulable: true, CPU: r.count("cpu_milli", 0, 1<<40, 0),
			MemoryBytes: r.count("memory_mib", 0, 1<<40, 0) << 20,
		}
		for k := range r.count("gpu", 0, 1024, 0) {
			s.Accelerators = append(s.Accelerators, engine.Accelerator{
				ID: s.ID + "-" + strconv.FormatInt(k, 10), Model: r.text("model"), Index: int(k), Schedulable: true,
			})
		}
		if r.err != nil {
			return nil, fmt.Errorf("%w: %w", ErrPool, r.err)
		}
		p.Servers = append(p.Servers, s)
	}
	if len(p.Servers) == 0 {
		return nil, fmt.Errorf("%w: no servers: want a line for each", ErrPool)
	}
	return p, nil
}
