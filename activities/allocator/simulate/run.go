package simulate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Options are what `gpupool simulate` is asked.
type Options struct {
	Trace    string   // a CSV file
	Pool     string   // a YAML file or openb's node list; or
	GPUs     int      // so many accelerators without topology
	Policies []string // YAML files, compared side by side; none = the default policy
	Fill     float64  // > 0: fill the pool to this share of demand with tasks that never end
	Seed     uint64   // the order of Fill; 0 = 1
	Picture  string   // write an SVG of queue and utilization here; "" = none
	Report   string   // write the reports as JSON here; "" = none
	JSON     bool     // print JSON instead of the table
	Progress io.Writer
}

// ErrOptions says that the options don't go together.
var ErrOptions = errors.New("options")

// Run replays a trace as asked and prints what it found to out.
func Run(o Options, out io.Writer) error {
	if o.Trace == "" {
		return fmt.Errorf("%w: trace: empty: want a CSV file", ErrOptions)
	}
	if (o.Pool == "") == (o.GPUs == 0) {
		return fmt.Errorf("%w: pool=%q gpus=%d: want exactly one of them", ErrOptions, o.Pool, o.GPUs)
	}
	if o.GPUs < 0 || o.GPUs > maxAccelerators {
		return fmt.Errorf("%w: gpus=%d: want 1 to %d", ErrOptions, o.GPUs, maxAccelerators)
	}
	if !(o.Fill >= 0 && o.Fill <= 100) { // nor NaN
		return fmt.Errorf("%w: fill=%g: want a share of the pool, such as 1 or 1.3", ErrOptions, o.Fill)
	}
	tr, err := open(o.Trace, ReadTrace)
	if err != nil {
		return err
	}
	pool := Flat(o.GPUs, "gpu")
	if o.Pool != "" {
		if pool, err = open(o.Pool, ReadPool); err != nil {
			return err
		}
	} else {
		tr.flatten()
	}
	policies, err := o.policies()
	if err != nil {
		return err
	}
	var reports []*Report
	for _, p := range policies {
		r, err := o.one(tr, pool, p)
		if err != nil {
			return err
		}
		reports = append(reports, r)
	}
	return o.write(out, reports)
}

// flatten makes every job of a trace one of single accelerators of one model: a pool without topology has no other.
func (tr *Trace) flatten() {
	specs := map[string]int{}
	for i, sp := range tr.Specs {
		specs[sp.Name] = sp.Accelerators
		sp.Model, sp.OtherModels, sp.Accelerators = "gpu", nil, min(sp.Accelerators, 1)
		tr.Specs[i] = sp
	}
	for i := range tr.Jobs {
		tr.Jobs[i].Nodes *= max(specs[tr.Jobs[i].Spec], 1)
	}
}

func (o *Options) policies() ([]Policy, error) {
	if len(o.Policies) == 0 {
		return []Policy{{Name: "default"}}, nil
	}
	var list []Policy
	for _, file := range o.Policies {
		p, err := open(file, ReadPolicy)
		if err != nil {
			return nil, err
		}
		if p.Name == "" {
			p.Name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		}
		list = append(list, p)
	}
	return list, nil
}

func (o *Options) one(tr *Trace, pool *Pool, p Policy) (*Report, error) {
	if o.Fill > 0 {
		return Fill(tr, pool, p, o.Fill, max(o.Seed, 1))
	}
	var progress Progress
	if o.Progress != nil {
		progress = func(done, all int, now time.Time) {
			fmt.Fprintf(o.Progress, "%s: %d of %d jobs over, at %s\n", p.Name, done, all, now.Format("2006-01-02 15:04"))
		}
	}
	return Replay(tr, pool, p, progress)
}

func (o *Options) write(out io.Writer, reports []*Report) error {
	if o.Picture != "" {
		if err := create(o.Picture, func(w io.Writer) error { return Draw(w, reports...) }); err != nil {
			return err
		}
	}
	if o.Report != "" {
		if err := create(o.Report, func(w io.Writer) error { return writeJSON(w, reports) }); err != nil {
			return err
		}
	}
	if o.JSON {
		for _, r := range reports {
			r.Series = nil // the figures only; Report writes all
		}
		return writeJSON(out, reports)
	}
	return Print(out, reports...)
}

// writeJSON writes one report as an object, several as a list.
func writeJSON(w io.Writer, reports []*Report) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if len(reports) == 1 {
		return enc.Encode(reports[0])
	}
	return enc.Encode(reports)
}

func open[T any](name string, read func(io.Reader) (T, error)) (T, error) {
	var zero T
	f, err := os.Open(name)
	if err != nil {
		return zero, err
	}
	defer f.Close()
	v, err := read(f)
	if err != nil {
		return zero, fmt.Errorf("%s: %w", name, err)
	}
	return v, nil
}

func create(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return fmt.Errorf("%s: %w", name, err)
	}
	return f.Close()
}
