package sandbox

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of one job on one server; 0 = none. A limit holds for all its processes together.
type Limits struct {
	CPUs        int   `json:"cpus,omitempty"`         // cores' worth of time in each tenth of a second
	MemoryBytes int64 `json:"memory_bytes,omitempty"` // with its tmpfs files; none of it is swapped
	PIDs        int   `json:"pids,omitempty"`         // processes and threads
}

// tree is one mounted hierarchy of control groups, and the folder in it that jobs' groups are made in.
type tree struct {
	base        string
	v2          bool
	controllers []string // of memory, pids, cpu: those it has
}

// controllers are what jobs are kept apart by: without one of them a job could take all of it.
var controllers = []string{"memory", "pids", "cpu"}

// groupsName is the folder of all jobs' groups. With version 2 it is at the top, since systemd keeps a service's own group
// free of groups with processes beside it; so do other node agents that run without systemd's help.
const groupsName = "gpupool"

// findTrees reads where control groups are mounted, of version 2, version 1, or both beside each other (proc(5), cgroups(7)).
func findTrees(mountinfo, self []byte) []tree {
	own := map[string]string{} // controllers of a version 1 hierarchy, as the kernel lists them -> our group
	for line := range strings.Lines(string(self)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			own[f[1]] = f[2]
		}
	}
	var trees []tree
	for sc := bufio.NewScanner(bytes.NewReader(mountinfo)); sc.Scan(); {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 3 {
			continue
		}
		root, point := left[3], left[4]
		switch right[0] {
		case "cgroup2":
			trees = append(trees, tree{base: filepath.Join(point, groupsName), v2: true})
		case "cgroup":
			options := strings.Split(right[2], ",")
			t := tree{}
			for _, c := range controllers {
				if slices.Contains(options, c) {
					t.controllers = append(t.controllers, c)
				}
			}
			if len(t.controllers) == 0 {
				continue
			}
			for names, path := range own {
				if slices.Contains(strings.Split(names, ","), t.controllers[0]) {
					rel, err := filepath.Rel(root, path)
					if err != nil || strings.HasPrefix(rel, "..") {
						rel = "."
					}
					t.base = filepath.Join(point, rel, groupsName)
				}
			}
			if t.base != "" && !slices.ContainsFunc(trees, func(o tree) bool { return o.base == t.base }) {
				trees = append(trees, t)
			}
		}
	}
	return trees
}

// openTrees makes the folders of jobs' groups and has the controllers reach them.
func openTrees() ([]tree, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	trees := findTrees(mounts, self)
	var have []string
	for i := range trees {
		t := &trees[i]
		if err := os.MkdirAll(t.base, 0o755); err != nil {
			return nil, fmt.Errorf("control groups: %w", err)
		}
		if t.v2 {
			if err := t.delegate(); err != nil {
				return nil, err
			}
		}
		have = append(have, t.controllers...)
	}
	for _, c := range controllers {
		if !slices.Contains(have, c) {
			return nil, fmt.Errorf("this server has no control group of %s: mount them, or boot with it enabled", c)
		}
	}
	return trees, nil
}

// delegate has version 2's controllers reach the jobs' groups: each level passes them on to the next.
func (t *tree) delegate() error {
	for _, dir := range []string{filepath.Dir(t.base), t.base} {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if err != nil {
			return fmt.Errorf("control groups: %w", err)
		}
		there := strings.Fields(string(b))
		t.controllers = nil
		for _, c := range controllers {
			if !slices.Contains(there, c) {
				continue
			}
			if err := write(dir, "cgroup.subtree_control", "+"+c); err != nil {
				return fmt.Errorf("control groups: %s can't be passed on: %w", c, err)
			}
			t.controllers = append(t.controllers, c)
		}
	}
	return nil
}

// group is one job's control group: one folder in each tree.
type group struct {
	trees []tree
	name  string
}

func (g group) dirs() []string {
	dirs := make([]string, len(g.trees))
	for i, t := range g.trees {
		dirs[i] = filepath.Join(t.base, g.name)
	}
	return dirs
}

// create makes the group, empty, with its limits.
func (g group) create(l Limits) error {
	for i, dir := range g.dirs() {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := g.trees[i].limit(dir, l); err != nil {
			return err
		}
	}
	return nil
}

// period is the time over which CPU time is counted, in microseconds: the kernel's default.
const period = 100_000

func (t tree) limit(dir string, l Limits) error {
	set := func(controller string, want bool, file, value string, optional bool) error {
		if !want || !slices.Contains(t.controllers, controller) {
			return nil
		}
		err := write(dir, file, value)
		if optional && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP)) {
			return nil // the kernel accounts no swap
		}
		return err
	}
	memory, pids, quota := strconv.FormatInt(l.MemoryBytes, 10), strconv.Itoa(l.PIDs), strconv.Itoa(l.CPUs*period)
	if t.v2 {
		return errors.Join(
			set("memory", l.MemoryBytes > 0, "memory.max", memory, false),
			set("memory", l.MemoryBytes > 0, "memory.swap.max", "0", true),
			set("pids", l.PIDs > 0, "pids.max", pids, false),
			set("cpu", l.CPUs > 0, "cpu.max", quota+" "+strconv.Itoa(period), false))
	}
	return errors.Join(
		set("memory", l.MemoryBytes > 0, "memory.limit_in_bytes", memory, false),
		set("memory", l.MemoryBytes > 0, "memory.memsw.limit_in_bytes", memory, true),
		set("pids", l.PIDs > 0, "pids.max", pids, false),
		set("cpu", l.CPUs > 0, "cpu.cfs_period_us", strconv.Itoa(period), false),
		set("cpu", l.CPUs > 0, "cpu.cfs_quota_us", quota, false))
}

// processes are the pids in the group, by the namespace of who asks.
func (g group) processes() ([]int, error) {
	var pids []int
	for _, dir := range g.dirs() {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for f := range strings.FieldsSeq(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// kill ends every process of the group, those that are being forked too where the kernel can do it at once (Linux 5.14).
func (g group) kill() {
	for i, dir := range g.dirs() {
		if g.trees[i].v2 && write(dir, "cgroup.kill", "1") == nil {
			return
		}
	}
	pids, _ := g.processes() // the caller looks again
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// remove removes the group; the kernel refuses while a process is in it.
func (g group) remove() error {
	for _, dir := range g.dirs() {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// oomKills is how many of the group's processes were ended because its memory was used up.
func (g group) oomKills() int {
	for i, dir := range g.dirs() {
		if !slices.Contains(g.trees[i].controllers, "memory") {
			continue
		}
		file := "memory.oom_control"
		if g.trees[i].v2 {
			file = "memory.events"
		}
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return 0
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == "oom_kill" {
				n, _ := strconv.Atoi(f[1]) // the kernel writes a number
				return n
			}
		}
	}
	return 0
}

func write(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
