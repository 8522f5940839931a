package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// monitor speaks QMP, qemu's own protocol (docs/interop/qmp-spec): a command at a time, events are passed over.
type monitor struct {
	mu   sync.Mutex
	conn net.Conn
	dec  *json.Decoder
}

// answerWithin bounds a command. qemu answers in milliseconds, but shares the machine with whatever it emulates.
const answerWithin = 30 * time.Second

// dial waits for the socket, which qemu makes as it starts, unless qemu ends.
func dial(socket string, ended <-chan struct{}) (*monitor, error) {
	for end := time.Now().Add(answerWithin); ; {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			m := &monitor{conn: conn, dec: json.NewDecoder(conn)}
			return m, m.do("qmp_capabilities", nil)
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("qemu's monitor: %w", err)
		}
		select {
		case <-ended:
			return nil, errors.New("qemu ended as it started: see qemu.log")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (m *monitor) do(command string, args map[string]any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.conn.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return fmt.Errorf("qemu %s: %w", command, err)
	}
	say := map[string]any{"execute": command}
	if args != nil {
		say["arguments"] = args
	}
	if err := json.NewEncoder(m.conn).Encode(say); err != nil {
		return fmt.Errorf("qemu %s: %w", command, err)
	}
	for {
		var answer struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := m.dec.Decode(&answer); err != nil {
			return fmt.Errorf("qemu %s: %w", command, err)
		}
		switch {
		case answer.Error != nil:
			return fmt.Errorf("qemu %s: %s", command, answer.Error.Desc)
		case answer.Return != nil:
			return nil
		} // a greeting, or an event
	}
}

// dieWithParent ends the process with the one that started it, however that ends.
func dieWithParent(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
