package slurm

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpupool/activities/cluster"
)

// description is a job to be submitted, the same for sbatch and slurmrestd.
type description struct {
	Name, Comment, Partition, Account string
	Nodes                             []string
	Gres                              string // a node
	CPUs                              int    // a node
	MemoryMB                          int64  // a node
	Minutes                           int64  // 0 = no limit
	WorkDir, Output, Script           string
}

func (d description) limit() string {
	if d.Minutes == 0 {
		return "UNLIMITED"
	}
	return strconv.FormatInt(d.Minutes, 10)
}

// limitMargin is how much longer than the pool's own limit and grace Slurm's is: the pool ends jobs, Slurm's limit is
// there for when the pool can't.
const limitMargin = 10 * time.Minute

// searchPath is what the job's environment begins with; the job's own variables come on top.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (s *Slurm) describe(r cluster.Run) description {
	d := description{Name: "gpupool-" + r.Job, Comment: s.mark() + r.Job + ":" + strconv.Itoa(r.Attempt), Partition: s.cfg.Partition, Account: s.cfg.Account,
		Gres: "gpu:" + strconv.Itoa(r.Accelerators), CPUs: r.CPUs, MemoryMB: r.MemoryBytes >> 20, WorkDir: "/", Output: "/dev/null"}
	if r.Limit > 0 {
		d.Minutes = int64((r.Limit + r.Grace + limitMargin + time.Minute - 1) / time.Minute)
	}
	for _, p := range r.Parts {
		d.Nodes = append(d.Nodes, p.Node)
	}
	if stepped(r) {
		d.Comment += steps
	}
	d.Script = s.script(r)
	return d
}

// script runs the job's command once on each node. srun starts it where there are several: all begin together, and one
// that fails takes the others along; its exit code is the job's. TERM reaches the command's whole
// process tree by scancel --full, and where srun started it the process group of each node.
func (s *Slurm) script(r cluster.Run) string {
	var part strings.Builder
	part.WriteString(exports(r.Env)) // what the pool says of the job is not the job's to say
	part.WriteString("case $SLURMD_NODENAME in\n")
	for _, p := range r.Parts {
		part.WriteString(quote(p.Node) + ")\n" + exports(p.Env) + ";;\n")
	}
	part.WriteString("*) echo \"gpupool: $SLURMD_NODENAME is no node of this job\" >&2; exit 125;;\nesac\n")
	if s.cfg.LogDir != "" {
		log := quote(strings.TrimSuffix(s.logFile(r.Key, ""), ".log"))
		part.WriteString("part=" + log + "\"$GPUPOOL_RANK\"\n" + once + "exec >>\"$part.log\" 2>&1 </dev/null\n")
	}
	if r.Image == "" {
		part.WriteString(inside(r.Mounts) + only(r.Mounts))
	}
	// The folder is entered again by the command's own mounts: the one that we stand in is not of them.
	part.WriteString("cd " + quote(cmp.Or(r.WorkDir, "/tmp")) + " || exit 125\nexec")
	if r.Image == "" && slices.ContainsFunc(r.Mounts, func(m cluster.Mount) bool { return m.ReadOnly }) {
		part.WriteString(` "$@" sh -c 'cd "$1" && shift && exec "$@"' sh "$PWD"`)
	}
	for _, a := range r.Command {
		part.WriteString(" " + quote(a))
	}
	part.WriteString("\n")
	head := "#!/bin/bash\nexport PATH=" + searchPath + "\n"
	if !stepped(r) {
		return head + part.String()
	}
	return head + fmt.Sprintf("export SLURM_EXPORT_ENV=ALL\nsaid=$(srun --nodes=%d --ntasks=%d --ntasks-per-node=1 --kill-on-bad-exit=1 --input=none --output=/dev/null --error=/dev/null%s bash -c %s 2>&1)\n%s",
		len(r.Parts), len(r.Parts), s.container(r), quote(part.String()), firstCode)
}

// once makes the output of a part, which is there only if the part was begun before: a slurmctld that is killed comes back with
// what it had written last, and begins again what has run since.
const once = `if ! (set -C; : >"$part.log") 2>/dev/null; then
	[ -e "$part.log" ] && : >"$part.again"
	exit 125
fi
`

// turnedAway is the exit code of a part that was not begun; see interrupted.
const turnedAway = 125

// firstCode ends the batch script with the code of the task that failed first. srun's own is the highest of all, and
// the tasks that it then ends for the first one's sake have 143 or 137. What it says of each task, in the order of
// their ends, is the only place that tells them apart.
const firstCode = `code=$?
while [ $code -ne 0 ] && IFS= read -r line; do
	case $line in
	*": task"*": Exited with exit code "*) code=${line##* };;
	*": task"*": Segmentation fault"*) code=139;;
	*": task"*": Aborted"*) code=134;;
	*": task"*": Bus error"*) code=135;;
	*": task"*": Floating point exception"*) code=136;;
	*": task"*": Illegal instruction"*) code=132;;
	*": task"*": Killed"*) code=137;;
	*": task"*": Terminated"*) code=143;;
	*) continue;;
	esac
	break
done <<<"$said"
exit $code
`

// stepped reports whether a run's command is started by srun.
func stepped(r cluster.Run) bool { return len(r.Parts) > 1 || r.Image != "" }

// container is srun's options for the image that a run has: it needs bash in it, and finds the folder of the logs.
func (s *Slurm) container(r cluster.Run) string {
	if r.Image == "" {
		return ""
	}
	options := " " + quote(s.cfg.ContainerFlag+"="+r.Image)
	var mounts []string
	if s.cfg.LogDir != "" {
		mounts = append(mounts, s.cfg.LogDir+":"+s.cfg.LogDir)
	}
	for _, m := range r.Mounts {
		one := source(m) + ":" + m.Target
		if m.ReadOnly {
			one += ":ro"
		}
		mounts = append(mounts, one)
	}
	if len(mounts) > 0 && s.cfg.ContainerFlag == pyxis {
		options += " " + quote("--container-mounts="+strings.Join(mounts, ","))
	}
	return options
}

// source is the folder of the node that a mount shows.
func source(m cluster.Mount) string { return path.Join(m.Volume, m.Folder) }

// inside ends a script where a mount's folder is not there or a link leads out of its volume, on the node that it runs on.
func inside(mounts []cluster.Mount) string {
	var b strings.Builder
	for _, m := range mounts {
		fmt.Fprintf(&b, "lies=$(realpath -e -- %[1]s) && [ -d \"$lies\" ] && of=$(realpath -e -- %[2]s) && case $lies/ in \"$of\"/*) ;; *) false;; esac || { echo gpupool: folder %[1]s is not in volume %[2]s >&2; exit 125; }\n", quote(source(m)), quote(m.Volume))
	}
	return b.String()
}

// only shows those folders read-only to the command that follows, in mounts of its own. Who is not root does that as the root of a
// user namespace, and goes on as itself in another: from there nobody makes them writable again.
func only(mounts []cluster.Mount) string {
	var folders []string
	for _, m := range mounts {
		if m.ReadOnly {
			folders = append(folders, quote(source(m)))
		}
	}
	if folders == nil {
		return ""
	}
	return "readonly=(" + strings.Join(folders, " ") + ")\n" + readOnly
}

const readOnly = `show='n=$1; shift; while [ $n -gt 0 ]; do mount --rbind -- "$1" "$1" && { mount -o remount,bind,ro,nosuid,nodev -- "$1" || mount -o remount,bind,ro,nosuid,nodev,noexec -- "$1"; } || exit 125; shift; n=$((n-1)); done; exec "$@"'
if [ $(id -u) = 0 ]; then
	set -- unshare --mount -- sh -c "$show" sh ${#readonly[@]} "${readonly[@]}"
else
	set -- unshare --user --map-root-user --mount -- sh -c "$show" sh ${#readonly[@]} "${readonly[@]}" unshare --user --map-user=$(id -u) --map-group=$(id -g) --
fi
`

// pyxis is the option of NVIDIA's plugin for containers in Slurm.
const pyxis = "--container-image"

func exports(env map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(env)) {
		b.WriteString("export " + k + "=" + quote(env[k]) + "\n")
	}
	return b.String()
}

// quote makes a word that bash reads as it is.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
