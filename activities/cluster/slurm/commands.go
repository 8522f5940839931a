package slurm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gpupool/schema"
)

// commands are Slurm's own, in this process's PATH or in dir. Their times are Unix seconds.
type commands struct{ dir, conf string }

func (c commands) path(name string) string {
	if c.dir != "" {
		return filepath.Join(c.dir, name)
	}
	return name
}

// there checks that they are installed.
func (c commands) there() error {
	for _, name := range []string{"squeue", "sinfo", "scontrol", "scancel", "sbatch"} {
		if _, err := exec.LookPath(c.path(name)); err != nil {
			return &schema.Error{Code: schema.CodeInvalid, Field: "bin_dir", Message: "Slurm's command " + name + " is not there", Hint: "install Slurm's client commands (Debian: slurm-client), of the cluster's version", Err: err}
		}
	}
	return nil
}

func (c commands) run(ctx context.Context, stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.path(name), args...)
	cmd.Env = append(os.Environ(), "TZ=UTC", "SLURM_TIME_FORMAT=%s", "LC_ALL=C")
	if c.conf != "" {
		cmd.Env = append(cmd.Env, "SLURM_CONF="+c.conf)
	}
	cmd.WaitDelay = time.Second
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &said
	err := cmd.Run()
	if err == nil {
		return out.String(), nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	text := oneLine(cmp.Or(said.String(), out.String(), err.Error()))
	return out.String(), &commandError{name, text}
}

// commandError is what a command said as it failed.
type commandError struct{ name, text string }

func (e *commandError) Error() string { return e.name + ": " + e.text }

// says reports whether the command failed with words of text.
func says(err error, text ...string) bool {
	var e *commandError
	if !errors.As(err, &e) {
		return false
	}
	for _, t := range text {
		if strings.Contains(e.text, t) {
			return true
		}
	}
	return false
}

// queue lists the live jobs of everybody. One that is pending is listed too, for what the pool submitted.
func (c commands) queue(ctx context.Context) ([]job, error) {
	// squeue is silent about a slurmctld that doesn't answer only for as long as it tries: a ctx ends that.
	out, err := c.run(ctx, "", "squeue", "--noheader", "--all", "--array", "--states=PD,R,CG,S,CF,ST,SO,SI,RQ,RH,RS,SE",
		"--Format=jobid:20|,state:30|,reason:100|,username:64|,tres-per-node:120|,submittime:20|,starttime:20|,comment:200|,reqnodes:8192|,nodelist:8192|")
	if err != nil {
		return nil, err
	}
	var jobs []job
	for line := range strings.Lines(out) {
		f := strings.Split(line, "|")
		if len(f) < 10 {
			continue
		}
		for i := range f {
			f[i] = strings.TrimSpace(f[i])
		}
		id, err := strconv.ParseUint(f[0], 10, 32)
		if err != nil {
			continue // the line of a comment with a bar in it: not ours
		}
		jobs = append(jobs, job{ID: uint32(id), State: f[1], Reason: f[2], User: f[3], TRES: f[4], Submitted: moment(f[5]), Began: moment(f[6]), Comment: f[7], Asked: hosts(f[8]), Nodes: hosts(f[9])})
	}
	return jobs, nil
}

func moment(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64) // N/A, Unknown
	return n
}

var fields = regexp.MustCompile(`(?:^| )(JobId|UserId|JobState|Reason|Restarts|ExitCode|SubmitTime|StartTime|EndTime|NodeList|ReqNodeList|TresPerNode)=(\S*)`)

var boundTo = regexp.MustCompile(`(?:^| )Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)`)

var comment = regexp.MustCompile(` Comment=(gpupool:\S+)`)

// job asks slurmctld for one; nil where it doesn't know it.
func (c commands) job(ctx context.Context, id uint32) (*job, error) {
	out, err := c.run(ctx, "", "scontrol", "show", "job", "--details", "--oneliner", strconv.FormatUint(uint64(id), 10))
	if err != nil {
		if says(err, "Invalid job id specified") {
			return nil, nil
		}
		return nil, err
	}
	j := &job{Devices: map[string][]int{}}
	seen := map[string]bool{}
	for _, m := range fields.FindAllStringSubmatch(out, -1) {
		if seen[m[1]] {
			continue
		}
		seen[m[1]] = true
		switch v := m[2]; m[1] {
		case "JobId":
			n, err := strconv.ParseUint(v, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("scontrol: JobId=%q is no number", v)
			}
			j.ID = uint32(n)
		case "UserId":
			j.User, _, _ = strings.Cut(v, "(")
		case "JobState":
			j.State = v
		case "Reason":
			j.Reason = v
		case "Restarts":
			j.Restarts, _ = strconv.Atoi(v)
		case "ExitCode":
			j.Exit, j.Signal = exitCode(v)
		case "SubmitTime":
			j.Submitted = moment(v)
		case "StartTime":
			j.Began = moment(v)
		case "EndTime":
			j.Ended = moment(v)
		case "NodeList":
			j.Nodes = hosts(v)
		case "ReqNodeList":
			j.Asked = hosts(v)
		case "TresPerNode":
			j.TRES = v
		}
	}
	if m := comment.FindStringSubmatch(out); m != nil {
		j.Comment = m[1]
	}
	for _, m := range boundTo.FindAllStringSubmatch(out, -1) {
		for _, n := range hosts(m[1]) {
			j.Devices[n] = append(j.Devices[n], gres(m[2])...)
		}
	}
	return j, nil
}

// exitCode reads "3:0": status and signal.
func exitCode(text string) (exit, signal int) {
	a, b, _ := strings.Cut(text, ":")
	exit, _ = strconv.Atoi(a)
	signal, _ = strconv.Atoi(b)
	return exit, signal
}

// booted is when slurmctld was started: with its state or without.
func (c commands) booted(ctx context.Context) (schema.Instant, error) {
	out, err := c.run(ctx, "", "scontrol", "show", "config")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(line, "="); ok && strings.TrimSpace(name) == "BOOT_TIME" {
			return seconds(moment(strings.TrimSpace(value))), nil
		}
	}
	return 0, nil
}

// accounted asks the accounting for an ended job, by id and moment of submitting; nil where there is none or it does not
// know it.
func (c commands) accounted(ctx context.Context, id uint32, submitted schema.Instant) (*job, error) {
	out, err := c.run(ctx, "", "sacct", "--noheader", "--parsable2", "--allocations", "--duplicates", "--jobs="+strconv.FormatUint(uint64(id), 10),
		"--starttime="+submitted.Time().UTC().Add(-time.Minute).Format("2006-01-02T15:04:05"), "--format=JobIDRaw,Submit,Start,End,State,ExitCode,NodeList,Comment")
	if err != nil {
		if says(err, "accounting storage is disabled", "executable file not found", "no such file") {
			return nil, nil
		}
		return nil, err
	}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) < 8 || seconds(moment(f[1])) != submitted {
			continue
		}
		state, _, _ := strings.Cut(f[4], " ") // CANCELLED by 0
		j := &job{ID: id, Submitted: moment(f[1]), Began: moment(f[2]), Ended: moment(f[3]), State: state, Nodes: hosts(f[6]), Comment: f[7]}
		j.Exit, j.Signal = exitCode(f[5])
		if j.running() || j.pending() {
			return nil, nil // the accounting is behind, and slurmctld doesn't know it: nothing is known
		}
		return j, nil
	}
	return nil, nil
}

func (c commands) submit(ctx context.Context, d description) error {
	args := []string{"--parsable", "--hold", "--no-requeue", "--job-name=" + d.Name, "--comment=" + d.Comment, "--nodelist=" + strings.Join(d.Nodes, ","),
		"--nodes=" + strconv.Itoa(len(d.Nodes)), "--ntasks-per-node=1", "--gres=" + d.Gres, "--output=" + d.Output, "--error=" + d.Output, "--chdir=" + d.WorkDir, "--time=" + d.limit(), "--export=NONE"}
	if d.CPUs > 0 {
		args = append(args, "--cpus-per-task="+strconv.Itoa(d.CPUs))
	}
	if d.MemoryMB > 0 {
		args = append(args, fmt.Sprintf("--mem=%dM", d.MemoryMB))
	}
	if d.Partition != "" {
		args = append(args, "--partition="+d.Partition)
	}
	if d.Account != "" {
		args = append(args, "--account="+d.Account)
	}
	_, err := c.run(ctx, d.Script, "sbatch", args...)
	if says(err, "Invalid", "not available", "denied", "exceed", "unrecognized") && !says(err, "Unable to contact", "timed out", "Connection refused") {
		return &schema.Error{Code: schema.CodeInvalid, Message: err.Error()}
	}
	return err
}

func (c commands) release(ctx context.Context, id string) error {
	_, err := c.run(ctx, "", "scontrol", "release", id)
	return gone(err)
}

func (c commands) cancel(ctx context.Context, id string, args ...string) error {
	_, err := c.run(ctx, "", "scancel", append(args, id)...)
	return gone(err)
}

// gone makes it no error that a job has ended before it was told to.
func gone(err error) error {
	if says(err, "Invalid job id", "already completing or completed", "Job/step already") {
		return nil
	}
	return err
}

func (c commands) nodes(ctx context.Context) ([]node, error) {
	out, err := c.run(ctx, "", "sinfo", "--noheader", "--all", "--Node", "--Format=nodelist:255|,statecomplete:120|,user:64|,reason:1024|")
	if err != nil {
		return nil, err
	}
	var all []node
	seen := map[string]bool{}
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimRight(line, "|\n "), "|", 4)
		if len(f) < 4 {
			continue
		}
		name := strings.TrimSpace(f[0])
		if seen[name] {
			continue // it is in several partitions
		}
		seen[name] = true
		all = append(all, node{Name: name, States: strings.Split(strings.ToLower(strings.TrimSpace(f[1])), "+"), User: strings.TrimSpace(f[2]), Reason: strings.TrimSpace(f[3])})
	}
	return all, nil
}

func (c commands) update(ctx context.Context, node string, set ...string) error {
	_, err := c.run(ctx, "", "scontrol", append([]string{"update", "nodename=" + node}, set...)...)
	return err
}
