package rules

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gpupool/schema"
)

// JobEnd is how one node's part of a job's attempt ended.
type JobEnd struct {
	Job, Owner string
	Image      string // what was run: jobs of the same are compared
	Server     string
	Devices    []JobDevice
	At         schema.Instant // of its end
	Took       time.Duration  // from its allocation to its end
	OK         bool
	// Infra says that it failed as failing hardware makes jobs fail, and not by the program's own choice.
	Infra bool
	// Refused says that the server's agent did not begin it: for what it asked for, or for what the server lacks.
	Refused bool
	Text    string // what it said, for words
}

// JobDevice is an accelerator that it held.
type JobDevice struct{ ID, Slot string }

// Blame is what failing jobs say of hardware. Kind is job-failures (of a device), slot-failures or black-hole (of a server).
type Blame struct {
	Kind, Server, Device, Slot string
	Jobs, Owners               int
	At                         schema.Instant // of the last of them
	Text                       string
}

// The counts are proposals; the signals are Meta's lemon signals.
const (
	deviceJobs   = 3
	deviceOwners = 2
	deviceWithin = day
	holeJobs     = 5
	holeStart    = time.Minute      // a start that fails sooner was swallowed
	holeWithin   = 10 * time.Minute // of each other
	imageServers = 3                // an image that fails on so many servers is to blame itself
	imageShare   = 0.05             // where it fails more often than this
)

// BlameJobs finds the hardware that failing jobs have in common, of those that ended within a day of now. A job that failed often
// counts once; an image that fails on many servers blames none of them, nor does what a server refuses to one owner alone.
func BlameJobs(ends []JobEnd, now schema.Instant) []Blame {
	var recent []JobEnd
	for _, e := range ends {
		if d := now.Sub(e.At); d >= 0 && d <= deviceWithin {
			recent = append(recent, e)
		}
	}
	slices.SortFunc(recent, func(a, b JobEnd) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Job, b.Job)) })
	bad := badImages(recent)
	devices, slots, starts := map[string]*suspects{}, map[string]*suspects{}, map[string][]JobEnd{}
	for _, e := range recent {
		if e.OK || bad[e.Image] {
			continue
		}
		if e.Took < holeStart {
			starts[e.Server] = append(starts[e.Server], e)
		}
		if !e.Infra {
			continue
		}
		for _, d := range e.Devices {
			add(devices, d.ID, e, d)
			if d.Slot != "" {
				add(slots, e.Server+"\x00"+d.Slot, e, d)
			}
		}
	}
	var out []Blame
	slotted := map[string]bool{} // servers and slots that are blamed: their devices are not
	for _, s := range slots {
		if len(s.jobs) >= deviceJobs && len(s.devices) >= 2 {
			slotted[s.last.Server+"\x00"+s.device.Slot] = true
			out = append(out, s.blame("slot-failures", fmt.Sprintf("%d jobs of %d owners failed in slot %s, with %d different cards in it", len(s.jobs), len(s.owners), s.device.Slot, len(s.devices))))
		}
	}
	for _, s := range devices {
		if len(s.jobs) >= deviceJobs && len(s.owners) >= deviceOwners && !slotted[s.last.Server+"\x00"+s.device.Slot] {
			b := s.blame("job-failures", fmt.Sprintf("%d jobs of %d owners failed on it within a day", len(s.jobs), len(s.owners)))
			b.Device = s.device.ID
			out = append(out, b)
		}
	}
	for server, list := range starts {
		if b, ok := hole(server, heard(list)); ok {
			out = append(out, b)
		}
	}
	slices.SortFunc(out, func(a, b Blame) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Server, b.Server), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Slot, b.Slot))
	})
	return out
}

// suspects are the failed jobs that had one device or slot.
type suspects struct {
	jobs, owners, devices map[string]bool
	last                  JobEnd
	device                JobDevice
}

func add(m map[string]*suspects, key string, e JobEnd, d JobDevice) {
	s := m[key]
	if s == nil {
		s = &suspects{jobs: map[string]bool{}, owners: map[string]bool{}, devices: map[string]bool{}}
		m[key] = s
	}
	s.jobs[e.Job], s.owners[e.Owner], s.devices[d.ID] = true, true, true
	s.last, s.device = e, d
}

func (s *suspects) blame(kind, text string) Blame {
	if s.last.Text != "" {
		text += "; the last said: " + s.last.Text
	}
	return Blame{Kind: kind, Server: s.last.Server, Slot: s.device.Slot, Jobs: len(s.jobs), Owners: len(s.owners), At: s.last.At, Text: text}
}

// heard leaves out what was refused to one owner only: that owner may have asked for what no server gives.
func heard(starts []JobEnd) []JobEnd {
	owners := map[string]bool{}
	for _, e := range starts {
		if e.Refused {
			owners[e.Owner] = true
		}
	}
	if len(owners) >= deviceOwners {
		return starts
	}
	return slices.DeleteFunc(slices.Clone(starts), func(e JobEnd) bool { return e.Refused })
}

// hole finds a server that swallows starts: so many different jobs that failed at once, one after another.
func hole(server string, list []JobEnd) (Blame, bool) {
	for i := range list {
		jobs := map[string]bool{}
		for _, e := range list[i:] {
			if e.At.Sub(list[i].At) > holeWithin {
				break
			}
			jobs[e.Job] = true
			if len(jobs) >= holeJobs {
				text := fmt.Sprintf("%d jobs failed within a minute of their start, one after another", len(jobs))
				if e.Text != "" {
					text += "; the last said: " + e.Text
				}
				return Blame{Kind: "black-hole", Server: server, Jobs: len(jobs), At: e.At, Text: text}, true
			}
		}
	}
	return Blame{}, false
}

// badImages are those that fail on many servers, and often.
func badImages(ends []JobEnd) map[string]bool {
	type tally struct {
		ends, failed int
		servers      map[string]bool
	}
	by := map[string]*tally{}
	for _, e := range ends {
		t := by[e.Image]
		if t == nil {
			t = &tally{servers: map[string]bool{}}
			by[e.Image] = t
		}
		t.ends++
		if !e.OK {
			t.failed++
			t.servers[e.Server] = true
		}
	}
	out := map[string]bool{}
	for image, t := range by {
		if len(t.servers) >= imageServers && float64(t.failed) > imageShare*float64(t.ends) {
			out[image] = true
		}
	}
	return out
}
