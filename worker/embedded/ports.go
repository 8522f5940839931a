package embedded

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
)

// loopback is the only address the server binds and announces.
const loopback = "127.0.0.1"

// ports are the TCP ports of the server's four services.
type ports struct{ frontend, history, matching, worker int }

func (p ports) hostPort() string { return address(p.frontend) }

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// reservePorts finds four free ports, all held at once so that they differ. frontend is kept as it
// is where not zero. They are let go before the server binds them: another process can still win
// the race, which Start answers with another try.
func reservePorts(frontend int) (p ports, err error) {
	for i, port := range []*int{&p.frontend, &p.history, &p.matching, &p.worker} {
		want := 0
		if i == 0 {
			want = frontend
		}
		l, err := net.Listen("tcp", address(want))
		if err != nil {
			return ports{}, &portError{port: want, frontend: i == 0 && want != 0, err: err}
		}
		defer l.Close()
		*port = l.Addr().(*net.TCPAddr).Port
	}
	return p, nil
}

// portError is a port the server could not bind.
type portError struct {
	port     int
	frontend bool
	err      error
}

func (e *portError) Error() string {
	if e.frontend {
		return fmt.Sprintf("port %d is taken: %v (hint: stop what listens there, or leave the port 0 for any free one)", e.port, e.err)
	}
	return fmt.Sprintf("port %d: %v", e.port, e.err)
}

func (e *portError) Unwrap() error { return e.err }

// explain turns "address already in use", however deep the server buried it, into a portError.
func (p ports) explain(err error) error {
	if !errors.Is(err, syscall.EADDRINUSE) && !strings.Contains(err.Error(), syscall.EADDRINUSE.Error()) {
		return err
	}
	return &portError{port: p.frontend, frontend: strings.Contains(err.Error(), address(p.frontend)), err: err}
}
