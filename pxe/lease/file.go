package lease

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"gpupool/schema"
)

// File is a durable Store in one append-only file: each commit is one write and one fsync, whatever the batch's
// size. It serves one process (the file is locked); an active and a standby server need a database.
//
// A line is a CRC-32 in hex, a space, and a lease as JSON. A torn last line (the process was killed in the write,
// so nothing had been promised) is dropped on load; a bad line before the end is corruption and refuses to load.
type File struct {
	*Memory
	path string
	mu   sync.Mutex // held over a commit: order in the file is order in memory
	f    *os.File
	rows int // lines in the file, to know when it is worth rewriting
	err  error
}

// OpenFile loads or creates the lease file at path.
func OpenFile(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lease file: %w", err)
	}
	s := &File{Memory: NewMemory(), path: path, f: f}
	if err := s.open(path); err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

func (s *File) open(path string) error {
	if err := syscall.Flock(int(s.f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("lease file %s is in use by another process: %w", path, err)
	}
	whole, err := s.load(path)
	if err != nil {
		return err
	}
	if err := s.f.Truncate(whole); err != nil {
		return fmt.Errorf("lease file %s: drop its torn last line: %w", path, err)
	}
	if _, err := s.f.Seek(whole, io.SeekStart); err != nil {
		return fmt.Errorf("lease file %s: %w", path, err)
	}
	// The name itself must survive a power cut, not only the content.
	return syncDir(filepath.Dir(path))
}

// load reads the file's whole lines and returns their length in bytes.
func (s *File) load(path string) (int64, error) {
	r := bufio.NewReader(s.f)
	var whole int64
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return whole, nil // line holds a torn write, or nothing
		}
		if err != nil {
			return 0, fmt.Errorf("lease file %s: %w", path, err)
		}
		l, err := parseLine(line)
		if err != nil {
			return 0, fmt.Errorf("lease file %s, byte %d: %w (hint: restore it from a backup, or move it away: addresses in use are then found by probing)", path, whole, err)
		}
		s.put(l)
		s.rows++
		whole += int64(len(line))
	}
}

func parseLine(line []byte) (schema.Lease, error) {
	var l schema.Lease
	sum, body, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if !ok || err != nil || uint32(want) != crc32.ChecksumIEEE(body) {
		return l, errors.New("checksum does not fit the line")
	}
	return l, json.Unmarshal(body, &l)
}

func appendLine(b []byte, l schema.Lease) ([]byte, error) {
	body, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	b = fmt.Appendf(b, "%08x ", crc32.ChecksumIEEE(body))
	return append(append(b, body...), '\n'), nil
}

// Commit implements Store. Readers may see a lease a moment before it is durable, which promises nobody anything;
// when the write fails the store is done for, since its memory can't be believed any more.
func (s *File) Commit(_ context.Context, now time.Time, batch []schema.Lease) ([]error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	s.Memory.mu.Lock()
	errs := s.apply(now, batch)
	live := len(s.byIP)
	s.Memory.mu.Unlock()
	var lines []byte
	for i, l := range batch {
		if errs[i] != nil {
			continue
		}
		var err error
		if lines, err = appendLine(lines, l); err != nil {
			s.err = fmt.Errorf("lease file: %w", err)
			return nil, s.err
		}
		s.rows++
	}
	if len(lines) == 0 {
		return errs, nil
	}
	if err := s.write(lines); err != nil {
		return nil, err
	}
	if s.rows > 1024 && s.rows > 8*live {
		return errs, s.compact()
	}
	return errs, nil
}

func (s *File) write(lines []byte) error {
	if _, err := s.f.Write(lines); err != nil {
		s.err = fmt.Errorf("lease file: %w", err) // the file's end is unknown now: no more promises from it
		return s.err
	}
	if err := s.f.Sync(); err != nil {
		s.err = fmt.Errorf("lease file: %w", err)
		return s.err
	}
	return nil
}

// compact rewrites the file with one line for each address. It writes beside it and renames, so a kill leaves the
// old file or the new one.
func (s *File) compact() error {
	path := s.path
	tmp, err := os.OpenFile(path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("lease file: compact: %w", err)
	}
	var b []byte
	s.Memory.mu.RLock()
	rows := len(s.byIP)
	for _, l := range s.byIP {
		if b, err = appendLine(b, l); err != nil {
			break
		}
	}
	s.Memory.mu.RUnlock()
	if err == nil {
		_, err = tmp.Write(b)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err == nil {
		err = syscall.Flock(int(tmp.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		tmp.Close()
		return fmt.Errorf("lease file: compact: %w", err)
	}
	s.f.Close()
	s.f, s.rows = tmp, rows // tmp holds the lock; the name it was opened by is gone
	return nil
}

// Close releases the file.
func (s *File) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.New("lease file is closed")
	return s.f.Close()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("lease file: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("lease file: %w", err)
	}
	return nil
}
