package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"gpupool/deploy/lab/bmc"
)

// BMCFault is how a server's BMC is to misbehave from now on. Requests that match Method and Path do as the rest says; a
// limit that is given stands for all requests. The zero value of a field changes nothing.
type BMCFault struct {
	Method  string          `json:"method,omitempty"`  // "" any
	Path    string          `json:"path,omitempty"`    // a glob: * within a segment, ** over any; "" every path
	Status  int             `json:"status,omitempty"`  // 100 to 599
	Latency time.Duration   `json:"latency,omitempty"` // before the answer
	Replace string          `json:"replace,omitempty"` // the body, verbatim
	Merge   json.RawMessage `json:"merge,omitempty"`   // a JSON object, merged into the resource's
	Message string          `json:"message,omitempty"` // MessageId of the error body, with Status
	Count   int             `json:"count,omitempty"`   // for so many requests; 0 = until cleared
	Hang    bool            `json:"hang,omitempty"`    // never answer
	Drop    bool            `json:"drop,omitempty"`    // close the connection without an answer

	Sessions int           `json:"sessions,omitempty"` // at most so many sessions at once
	Lockout  int           `json:"lockout,omitempty"`  // the account locks after so many wrong passwords, for ten minutes
	Clock    time.Duration `json:"clock,omitempty"`    // how far the BMC's clock is off
}

// BMCFault makes a server's BMC misbehave, beside the rules before.
func (l *Lab) BMCFault(server string, f BMCFault) error {
	m, err := l.machine(server)
	if err != nil {
		return err
	}
	rule := bmc.Fault{Method: strings.ToUpper(f.Method), Path: f.Path, Status: f.Status, Latency: f.Latency, Message: f.Message, Count: f.Count, Hang: f.Hang, Drop: f.Drop}
	if f.Status != 0 && (f.Status < 100 || f.Status > 599) {
		return fmt.Errorf("status %d: want 100 to 599", f.Status)
	}
	if f.Latency < 0 || f.Count < 0 || f.Sessions < 0 || f.Lockout < 0 {
		return fmt.Errorf("latency %s, count %d, sessions %d, lockout %d: want none below 0", f.Latency, f.Count, f.Sessions, f.Lockout)
	}
	if f.Replace != "" {
		rule.Replace = []byte(f.Replace)
	}
	if len(f.Merge) > 0 {
		if err := json.Unmarshal(f.Merge, &rule.Merge); err != nil || rule.Merge == nil {
			return fmt.Errorf("merge %s: want a JSON object", f.Merge)
		}
	}
	acts := f.Status != 0 || f.Latency != 0 || f.Replace != "" || rule.Merge != nil || f.Hang || f.Drop
	limits := f.Sessions != 0 || f.Lockout != 0 || f.Clock != 0
	if !acts && !limits {
		return fmt.Errorf("the rule does nothing: give a status, latency, replace, merge, hang, drop, sessions, lockout or clock")
	}
	if acts {
		m.bmc.AddFault(rule)
	}
	m.bmc.Limit(f.Sessions, f.Lockout, f.Clock)
	return nil
}

// ClearBMC ends every rule of a server's BMC; its limits are as its profile has them again.
func (l *Lab) ClearBMC(server string) error {
	m, err := l.machine(server)
	if err != nil {
		return err
	}
	m.bmc.ClearFaults()
	m.bmc.Unlimit()
	return nil
}

// bmcOrder is what the control is asked.
type bmcOrder struct {
	Server string   `json:"server"`
	Fault  BMCFault `json:"fault"`
}

// serveBMC answers the control's routes about BMCs.
func (c *control) serveBMC(mux *http.ServeMux) {
	answer := func(f func(bmcOrder) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var o bmcOrder
			err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&o)
			if err == nil {
				err = f(o)
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			w.WriteHeader(http.StatusNoContent)
		}
	}
	mux.HandleFunc("POST /bmc/fault", answer(func(o bmcOrder) error { return c.lab.BMCFault(o.Server, o.Fault) }))
	mux.HandleFunc("POST /bmc/clear", answer(func(o bmcOrder) error { return c.lab.ClearBMC(o.Server) }))
}

// BMCFault is Lab.BMCFault.
func (c *Client) BMCFault(ctx context.Context, server string, f BMCFault) error {
	return c.call(ctx, "POST", "/bmc/fault", bmcOrder{Server: server, Fault: f}, nil)
}

// ClearBMC is Lab.ClearBMC.
func (c *Client) ClearBMC(ctx context.Context, server string) error {
	return c.call(ctx, "POST", "/bmc/clear", bmcOrder{Server: server}, nil)
}
