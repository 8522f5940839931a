package agent

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ThisMachine reads the machine that the agent runs on. What can't be read (DMI needs root) is left empty.
func ThisMachine() Machine { return readMachine("/") }

func readMachine(root string) Machine {
	read := func(path string) string {
		b, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	m := Machine{
		BootID: read("proc/sys/kernel/random/boot_id"),
		Serial: read("sys/class/dmi/id/product_serial"),
		UUID:   strings.ToLower(read("sys/class/dmi/id/product_uuid")),
	}
	if m.UUID == "" { // machines with a device tree have no DMI tables
		m.Serial = orElse(m.Serial, strings.TrimRight(read("proc/device-tree/serial-number"), "\x00"))
	}
	m.Hostname = orElse(read("proc/sys/kernel/hostname"), read("etc/hostname"))
	sc := bufio.NewScanner(strings.NewReader(read("proc/cpuinfo")))
	for sc.Scan() {
		if strings.HasPrefix(sc.Text(), "processor") {
			m.CPUs++
		}
	}
	for line := range strings.Lines(read("proc/meminfo")) {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == "MemTotal:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err == nil {
				m.MemoryBytes = kib << 10
			}
		}
	}
	return m
}

func orElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// loadKey is the agent's own key; made on first use, mode 0600, and never leaves the server.
func loadKey(dir string) (ed25519.PrivateKey, error) {
	path := filepath.Join(dir, "agent.key")
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, err
		}
		// On the disk before it is told to anyone: an agent that lost its key can't come back.
		return key, writeFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), true)
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("%s holds no key in PEM: it is damaged; onboard the server again", path)
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	key, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s holds a %T, not an Ed25519 key", path, k)
	}
	return key, nil
}

// writeFile puts content in place whole or not at all; durable says that it must survive a power cut.
func writeFile(path string, content []byte, durable bool) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	if !durable {
		return nil
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// lastLine is the end of b, for words about a program that said too much.
func lastLine(b []byte) string {
	b = bytes.TrimSpace(b)
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
		b = b[i+1:]
	}
	if len(b) > 200 {
		b = b[:200]
	}
	return string(b)
}
