package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
)

// devices reads all vendors' devices, each in its own time: a driver that hangs starves no other.
//
// mu guards the sources. Callers that come while a vendor is read share that reading. One that doesn't come back is left
// behind in its goroutine, and not begun again before it did: a driver that hangs can't be interrupted.
type devices struct {
	readers []accelerator.Reader
	timeout time.Duration
	now     func() time.Time

	mu      sync.Mutex
	sources []source
}

type source struct {
	flight *flight // the reading that runs
	last   []agentproto.Device
	parts  []accelerator.Part // of its last answer that was fresh
	known  bool               // it answered once
	at     time.Time          // of its last answer or failure
	late   time.Time          // since when no reading has come back in time; zero = the last one did
	state  string             // of the last reading: ok, none (no driver), error
}

// flight is one reading under way. What it brought may be read once done is closed.
type flight struct {
	since time.Time
	done  chan struct{}
	devs  []agentproto.Device
	parts []accelerator.Part
	err   error
}

func newDevices(cfg Config) *devices {
	return &devices{readers: cfg.Readers, timeout: cfg.ReadTimeout, now: cfg.Now, sources: make([]source, len(cfg.Readers))}
}

// begin starts a reading of source i, or joins the one that runs.
func (d *devices) begin(ctx context.Context, i int) *flight {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &d.sources[i]
	if s.flight != nil {
		return s.flight
	}
	f := &flight{since: d.now(), done: make(chan struct{})}
	s.flight = f
	// Not the caller's to cancel: others may have joined.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.timeout)
	go func() {
		defer cancel()
		f.devs, f.err = d.readers[i].Read(ctx)
		if r, ok := d.readers[i].(accelerator.PartReader); ok && f.err == nil {
			f.parts, f.err = r.Parts(ctx)
		}
		for _, dev := range f.devs {
			onlyNumbers(string(d.readers[i].Vendor()), dev.Samples)
		}
		for _, part := range f.parts {
			onlyNumbers(string(d.readers[i].Vendor()), part.Samples)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		switch {
		case f.err == nil || ctx.Err() == nil:
			s.late = time.Time{}
		case s.late.IsZero():
			s.late = f.since // its reader gave up: its driver is as silent as one that never comes back
		}
		s.parts = f.parts
		s.at, s.state = d.now(), "ok"
		switch {
		case errors.Is(f.err, accelerator.ErrNoDriver), errors.Is(f.err, accelerator.ErrNotBuilt):
			s.state = "none"
		case f.err != nil:
			s.state = "error"
		}
		if f.err == nil || errors.Is(f.err, accelerator.ErrNoDriver) || errors.Is(f.err, accelerator.ErrNotBuilt) {
			s.last, s.known, f.err = f.devs, true, nil
		}
		s.flight = nil
		close(f.done)
	}()
	return f
}

// onlyNumbers takes out what is none: JSON has no word for it, and one such sample would keep the whole heartbeat from being sent.
func onlyNumbers(source string, samples map[string]float64) {
	for name, v := range samples {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			delete(samples, name)
			accelerator.Unreadable(source, name+" is not a number")
		}
	}
}

// read lists every device as it is now. Those of a vendor that gives no answer are listed as last seen, with Error and
// without samples. known is false where a vendor never answered: then the list says nothing about what isn't in it.
func (d *devices) read(ctx context.Context) (list []agentproto.Device, known bool) {
	flights := make([]*flight, len(d.readers))
	for i := range d.readers {
		flights[i] = d.begin(ctx, i)
	}
	limit := time.NewTimer(d.timeout)
	defer limit.Stop()
	over := false
	stale := make([]string, len(d.readers)) // why a vendor's answer isn't fresh
	for i, f := range flights {
		if over || d.now().Sub(f.since) > d.timeout {
			select {
			case <-f.done:
			default:
				stale[i] = fmt.Sprintf("the %s driver has not answered for %s", d.readers[i].Vendor(), d.now().Sub(f.since).Round(time.Second))
				continue
			}
		}
		select {
		case <-f.done:
			if f.err != nil {
				stale[i] = f.err.Error()
			}
		case <-limit.C:
			over = true
			stale[i] = fmt.Sprintf("the %s driver did not answer within %s", d.readers[i].Vendor(), d.timeout)
		case <-ctx.Done():
			over = true
			stale[i] = ctx.Err().Error()
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known = true
	list = []agentproto.Device{}
	seen := map[string]bool{}
	for i := range d.readers {
		s := &d.sources[i]
		known = known && s.known
		for _, dev := range s.last {
			// A device that its vendor's reader lists is also listed by its PCI address alone.
			if dev.PCI != "" && seen[dev.PCI] {
				continue
			}
			seen[dev.PCI] = true
			if stale[i] != "" {
				dev.Samples, dev.NotApplicable, dev.Error = nil, nil, stale[i]
			}
			list = append(list, dev)
		}
	}
	return list, known
}

// parts are what the readers' last answers counted of the server's parts. What was not answered is left out.
func (d *devices) parts() (all []accelerator.Part) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.sources {
		if s.flight == nil {
			all = append(all, s.parts...)
		}
	}
	return all
}

// sourceState is how the reading of one vendor's devices goes.
type sourceState struct {
	vendor schema.Vendor
	state  string // ok, none, error, timeout; "" = never read
	age    time.Duration
}

func (d *devices) states() []sourceState {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]sourceState, len(d.readers))
	for i, r := range d.readers {
		s := d.sources[i]
		out[i] = sourceState{r.Vendor(), s.state, d.now().Sub(s.at)}
		if s.flight != nil && d.now().Sub(s.flight.since) > d.timeout {
			out[i].state = "timeout"
		}
	}
	return out
}

// hung lists the vendors whose driver has not come back for so long, or at each reading not in time.
func (d *devices) hung(after time.Duration) []schema.Vendor {
	d.mu.Lock()
	defer d.mu.Unlock()
	var vs []schema.Vendor
	for i, r := range d.readers {
		since := d.sources[i].late
		if f := d.sources[i].flight; f != nil && since.IsZero() {
			since = f.since
		}
		if !since.IsZero() && d.now().Sub(since) > after {
			vs = append(vs, r.Vendor())
		}
	}
	return vs
}

func (d *devices) cached() []agentproto.Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []agentproto.Device
	for _, s := range d.sources {
		all = append(all, s.last...)
	}
	return all
}

// find is the devices of these identities, and all that the server has. It reads anew where one isn't known.
func (d *devices) find(ctx context.Context, ids []string) (found, all []agentproto.Device, err error) {
	all = d.cached()
	for try := 0; ; try++ {
		var missing []string
		found = make([]agentproto.Device, 0, len(ids))
		for _, id := range ids {
			if dev, ok := accelerator.Find(all, id); ok {
				found = append(found, dev)
			} else {
				missing = append(missing, id)
			}
		}
		if len(missing) == 0 {
			return found, all, nil
		}
		if try > 0 {
			have := map[string]bool{}
			for _, dev := range all {
				have[accelerator.Identity(dev)] = true
			}
			return nil, all, fmt.Errorf("this server has no device %s; it has %s", strings.Join(missing, ", "),
				orElse(strings.Join(slices.Sorted(maps.Keys(have)), ", "), "none"))
		}
		all, _ = d.read(ctx)
	}
}
