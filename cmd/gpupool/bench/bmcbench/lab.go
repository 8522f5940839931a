package bmcbench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	lab "gpupool/deploy/lab/bmc"
)

// machine is one lab BMC as its watcher has to know it.
type machine struct{ Address, User, Password string }

// state is what the lab's BMCs have of us.
type state struct {
	Sessions int // open
	Requests int // answered or not, since the start
	Failed   int // refused logins
}

// The lab's commands, one a line; each is answered with the state. hang takes how many BMCs stop answering, spread over all.
const (
	cmdState = "state"
	cmdHang  = "hang"
)

// Lab is the other side: n BMCs of every built-in profile, in a process of its own so that the watcher's costs are its own.
// It writes where they are as one line of JSON, obeys the commands that it reads, and ends when there are no more.
func Lab(ctx context.Context, n int, in io.Reader, out io.Writer) (err error) {
	profiles := lab.ProfileNames()
	servers := make([]*lab.Server, 0, n)
	defer func() {
		for _, s := range servers {
			err = errors.Join(err, s.Close())
		}
	}()
	machines := make([]machine, n)
	for i := range n {
		p, err := lab.ByName(profiles[i%len(profiles)])
		if err != nil {
			return err
		}
		s := lab.New(p, lab.Hooks{}, lab.WithLogCap(10), lab.WithIdentity(lab.Identity{Serial: fmt.Sprintf("SRV%05d", i)}))
		if err := s.Start(); err != nil {
			return err
		}
		servers = append(servers, s)
		user, password := s.Credential()
		machines[i] = machine{s.URL(), user, password}
	}
	enc := json.NewEncoder(out)
	if err := enc.Encode(machines); err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan() && ctx.Err() == nil; {
		var hung int
		switch line := lines.Text(); {
		case line == cmdState:
		default:
			if _, err := fmt.Sscanf(line, cmdHang+" %d", &hung); err != nil {
				return fmt.Errorf("command %q: want %s, or %s and a number", line, cmdState, cmdHang)
			}
			for i, s := range servers {
				s.ClearFaults()
				if isHung(i, n, hung) {
					s.AddFault(lab.Fault{Hang: true})
				}
			}
		}
		var st state
		for _, s := range servers {
			st.Sessions += s.OpenSessions()
			st.Requests += s.Served()
			st.Failed += s.FailedLogins()
		}
		if err := enc.Encode(st); err != nil {
			return err
		}
	}
	return nil
}

// isHung spreads hung of n evenly.
func isHung(i, n, hung int) bool { return hung > 0 && i%(n/hung) == 0 && i/(n/hung) < hung }
