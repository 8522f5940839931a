// Package ipxe runs iPXE scripts: enough of the language for what boot services send, and honest about the rest.
//
// It decides nothing of the machine's: it fetches through its Machine and returns what the script came to. A command
// that it doesn't know fails, as in iPXE; a command that fails and is not followed by "||" ends the script.
//
// The language is that of https://ipxe.org/scripting and https://ipxe.org/cmd: one command a line, words split at
// white space without quoting, ${name} expanded first, "&&" and "||" between commands.
package ipxe

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Machine is what the script runs on.
type Machine interface {
	// Fetch gets a file; its name is an absolute URL.
	Fetch(ctx context.Context, url string) ([]byte, error)
	// Skip fetches a file and drops it: a kernel, an initrd. It returns the count of bytes.
	Skip(ctx context.Context, url string) (int64, error)
	// DHCP configures the network again and returns the settings that changed.
	DHCP(ctx context.Context) (map[string]string, error)
	// Print is the console.
	Print(line string)
	// Sleep waits; the machine's time may be faster than ours.
	Sleep(ctx context.Context, d time.Duration) error
}

// Action is what a script came to.
type Action string

const (
	Boot     Action = "boot"     // a kernel was loaded and started
	Disk     Action = "disk"     // sanboot of the local disk
	Exit     Action = "exit"     // back to the firmware; Code says how
	Failed   Action = "failed"   // a command failed and nothing caught it: back to the firmware
	Shell    Action = "shell"    // waits for a person
	Reboot   Action = "reboot"   //
	PowerOff Action = "poweroff" //
)

// Image is a file that was loaded.
type Image struct {
	URL   string
	Name  string
	Bytes int64
}

// Result is a script's outcome.
type Result struct {
	Action Action
	Code   int    // of exit
	Why    string // of failed
	Kernel Image
	Args   string // the kernel's command line
	Initrd []Image
}

// ErrEndless says that a script went on for too long.
var ErrEndless = errors.New("ipxe: the script ran 10,000 commands without an end")

const maxSteps = 10_000

// interp is one run. chain pushes a new script in place of the old.
type interp struct {
	m      Machine
	vars   map[string]string
	base   *url.URL
	lines  []string
	labels map[string]int
	pc     int
	kernel *Image
	args   string
	initrd []Image
}

// Run runs the script that was fetched from base. vars are the settings it begins with (mac, ip, platform, ...).
func Run(ctx context.Context, m Machine, base string, script []byte, vars map[string]string) (Result, error) {
	in := &interp{m: m, vars: map[string]string{}}
	for k, v := range vars {
		in.vars[k] = v
	}
	if err := in.load(base, script); err != nil {
		return Result{}, err
	}
	var lastErr error
	for range maxSteps {
		if in.pc >= len(in.lines) {
			return Result{Action: Exit}, nil // the end of a script is exit 0
		}
		line := in.lines[in.pc]
		in.pc++
		res, err := in.line(ctx, line)
		if res != nil {
			return *res, nil
		}
		if ctx.Err() != nil {
			return Result{}, ctx.Err()
		}
		if err != nil {
			lastErr = err
			in.m.Print(fmt.Sprintf("%s: %v", strings.TrimSpace(line), err))
			return Result{Action: Failed, Why: lastErr.Error()}, nil
		}
	}
	return Result{}, ErrEndless
}

func (in *interp) load(base string, script []byte) error {
	u, err := url.Parse(base)
	if err != nil {
		return fmt.Errorf("ipxe: script's URL: %w", err)
	}
	text := strings.ReplaceAll(string(script), "\r\n", "\n")
	text = strings.ReplaceAll(text, "\\\n", "")
	if first, _, _ := strings.Cut(text, "\n"); strings.TrimRight(first, " \t") != "#!ipxe" {
		return fmt.Errorf("ipxe: %s is no script: its first line is %.40q, not \"#!ipxe\"", u.Redacted(), first)
	}
	in.base, in.lines, in.labels, in.pc = u, strings.Split(text, "\n"), map[string]int{}, 0
	for i, l := range in.lines {
		if l = strings.TrimSpace(l); strings.HasPrefix(l, ":") {
			in.labels[strings.TrimSpace(l[1:])] = i
		}
	}
	return nil
}

// line runs one line: commands joined by && and ||, from the left.
func (in *interp) line(ctx context.Context, line string) (*Result, error) {
	line = strings.TrimSpace(line)
	if line == "" || line[0] == '#' || line[0] == ':' {
		return nil, nil
	}
	words := strings.Fields(in.expand(line))
	var err error
	run := true
	for len(words) > 0 {
		n := 0
		for n < len(words) && words[n] != "&&" && words[n] != "||" {
			n++
		}
		cmd := words[:n]
		op := ""
		if n < len(words) {
			op, words = words[n], words[n+1:]
		} else {
			words = nil
		}
		if run {
			err = nil // an empty command succeeds: that is what "cmd ||" is for
			if len(cmd) > 0 {
				var res *Result
				if res, err = in.command(ctx, cmd); res != nil {
					return res, nil
				}
			}
		}
		switch op {
		case "&&":
			run = err == nil
		case "||":
			run = err != nil
			if run && len(words) == 0 {
				err = nil
			}
		}
	}
	return nil, err
}

// expand replaces ${name} and ${name:type} by the setting's value; one that isn't set is empty.
func (in *interp) expand(s string) string {
	for range 100 { // settings may refer to settings
		end := strings.Index(s, "}")
		if end < 0 {
			return s
		}
		start := strings.LastIndex(s[:end], "${")
		if start < 0 {
			return s
		}
		name, kind, _ := strings.Cut(s[start+2:end], ":")
		v := in.setting(name)
		switch kind {
		case "hexhyp":
			v = strings.ReplaceAll(v, ":", "-")
		case "hexraw":
			v = strings.ReplaceAll(v, ":", "")
		case "uristring":
			v = url.QueryEscape(v)
		}
		s = s[:start] + v + s[end+1:]
	}
	return s
}

func (in *interp) setting(name string) string {
	if v, ok := in.vars[name]; ok {
		return v
	}
	// net0/mac and mac are the same here: there is one interface.
	if _, short, ok := strings.Cut(name, "/"); ok {
		return in.vars[short]
	}
	return ""
}

func (in *interp) resolve(ref string) (string, error) {
	u, err := in.base.Parse(ref)
	if err != nil {
		return "", fmt.Errorf("URI %q: %w", ref, err)
	}
	return u.String(), nil
}

func (in *interp) command(ctx context.Context, w []string) (*Result, error) {
	name, args := w[0], w[1:]
	switch name {
	case "echo":
		in.m.Print(strings.Join(dropFlags(args, "-n"), " "))
	case "set":
		if len(args) == 0 {
			return nil, errors.New("set: want a name and a value")
		}
		in.vars[args[0]] = strings.Join(args[1:], " ")
	case "clear":
		if len(args) != 1 {
			return nil, errors.New("clear: want a name")
		}
		delete(in.vars, args[0])
	case "isset":
		if len(args) == 0 {
			return nil, errors.New("not set")
		}
	case "iseq":
		if len(args) != 2 || args[0] != args[1] {
			return nil, fmt.Errorf("iseq: %q are not two equal words", args)
		}
	case "goto":
		if len(args) != 1 {
			return nil, errors.New("goto: want a label")
		}
		at, ok := in.labels[args[0]]
		if !ok {
			return nil, fmt.Errorf("goto: no label %q", args[0])
		}
		in.pc = at
	case "dhcp", "ifconf":
		set, err := in.m.DHCP(ctx)
		if err != nil {
			return nil, err
		}
		for k, v := range set {
			in.vars[k] = v
		}
	case "ifopen", "ifclose", "route", "ifstat", "imgstat", "colour", "cpair", "console", "prompt", "cpuid":
	case "sleep":
		n, err := strconv.Atoi(strings.Join(args, ""))
		if err != nil {
			return nil, fmt.Errorf("sleep: %q is no number of seconds", args)
		}
		return nil, in.m.Sleep(ctx, time.Duration(n)*time.Second)
	case "kernel":
		img, rest, err := in.image(ctx, args)
		if err != nil {
			return nil, err
		}
		in.kernel, in.args = img, strings.Join(rest, " ")
	case "initrd", "module", "imgfetch":
		img, _, err := in.image(ctx, args)
		if err != nil {
			return nil, err
		}
		in.initrd = append(in.initrd, *img)
	case "imgargs":
		if in.kernel == nil || len(args) == 0 {
			return nil, errors.New("imgargs: no kernel was loaded")
		}
		in.args = strings.Join(args[1:], " ")
	case "imgfree":
		in.kernel, in.args, in.initrd = nil, "", nil
	case "boot":
		if len(dropFlags(args)) > 0 {
			img, rest, err := in.image(ctx, args)
			if err != nil {
				return nil, err
			}
			in.kernel, in.args = img, strings.Join(rest, " ")
		}
		if in.kernel == nil {
			return nil, errors.New("boot: no kernel was loaded")
		}
		return &Result{Action: Boot, Kernel: *in.kernel, Args: in.args, Initrd: in.initrd}, nil
	case "chain":
		return nil, in.chain(ctx, args)
	case "sanboot":
		if _, uri := flags(args); len(uri) > 0 && !strings.HasPrefix(uri[0], "0x") {
			return nil, fmt.Errorf("sanboot: there is no SAN to boot %q from", uri[0])
		}
		return &Result{Action: Disk}, nil
	case "exit":
		code := 0
		if len(args) > 0 {
			var err error
			if code, err = strconv.Atoi(args[0]); err != nil {
				return nil, fmt.Errorf("exit: %q is no number", args[0])
			}
		}
		return &Result{Action: Exit, Code: code}, nil
	case "shell":
		return &Result{Action: Shell}, nil
	case "reboot":
		return &Result{Action: Reboot}, nil
	case "poweroff":
		return &Result{Action: PowerOff}, nil
	default:
		return nil, errors.New("command not found")
	}
	return nil, nil
}

// image loads a file and returns it with the words that follow it.
func (in *interp) image(ctx context.Context, args []string) (*Image, []string, error) {
	opt, rest := flags(args)
	if len(rest) == 0 {
		return nil, nil, errors.New("want a URI")
	}
	u, err := in.resolve(rest[0])
	if err != nil {
		return nil, nil, err
	}
	n, err := in.m.Skip(ctx, u)
	if err != nil {
		return nil, nil, err
	}
	name := opt["--name"]
	if name == "" {
		name = u[strings.LastIndexByte(u, '/')+1:]
	}
	return &Image{URL: u, Name: name, Bytes: n}, rest[1:], nil
}

func (in *interp) chain(ctx context.Context, args []string) error {
	_, rest := flags(args)
	if len(rest) == 0 {
		return errors.New("chain: want a URI")
	}
	u, err := in.resolve(rest[0])
	if err != nil {
		return err
	}
	b, err := in.m.Fetch(ctx, u)
	if err != nil {
		return err
	}
	return in.load(u, b)
}

// flags splits the options before the first word that is none. Those that take a value are few.
func flags(args []string) (opt map[string]string, rest []string) {
	opt = map[string]string{}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, v, has := strings.Cut(args[0], "=")
		args = args[1:]
		switch name {
		case "--name", "-n", "--timeout", "-t", "--drive", "-d", "--filename", "-f":
			if !has && len(args) > 0 {
				v, args = args[0], args[1:]
			}
			if name == "-n" {
				name = "--name"
			}
		}
		opt[name] = v
	}
	return opt, args
}

func dropFlags(args []string, names ...string) []string {
	for len(args) > 0 {
		known := len(names) == 0 && strings.HasPrefix(args[0], "-")
		for _, n := range names {
			known = known || args[0] == n
		}
		if !known {
			return args
		}
		args = args[1:]
	}
	return args
}
