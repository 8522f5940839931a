package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gpupool/worker/agent/burnin"
)

// ContainerProbe runs a container that must see the device nodes, and says what came of it. dir is the agent's own, for the
// container's root file system; runtime as a RuntimeProbe named it.
type ContainerProbe func(ctx context.Context, dir, runtime string, nodes []string) (string, error)

// saysContainer is what the container prints when it has found all.
const saysContainer = "gpupool: a container runs"

// RunContainer runs a container of the server's own programs, read only, so that no image is needed and no registry: a root
// file system of empty folders, into which the runtime mounts the server's own /usr and so on.
func RunContainer(ctx context.Context, dir, runtime string, nodes []string) (string, error) {
	root, err := os.MkdirTemp(dir, "container-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(root)
	if err := os.Chmod(root, 0o755); err != nil {
		return "", err
	}
	mounts, err := skeleton("/", root)
	if err != nil {
		return "", err
	}
	script := "set -e; "
	for _, n := range nodes {
		script += "test -c " + n + "; "
	}
	script += "test $(cat /proc/sys/kernel/pid_max) -gt 0; test $$ -le 2; echo " + saysContainer
	args := container(runtime, root, mounts, nodes, script)
	r := burnin.Program(ctx, 2*time.Minute, args[0], args[1:]...)
	if r.Code != 0 || !strings.Contains(string(r.Output), saysContainer) {
		if r.Err != nil && r.Code < 0 {
			return "", fmt.Errorf("%s: %w", args[0], r.Err)
		}
		return "", fmt.Errorf("%s ended with exit code %d: %s", args[0], r.Code, lastLine(r.Output))
	}
	return fmt.Sprintf("runs a container, which sees %d device nodes", len(nodes)), nil
}

// container is the command that runs it. Docker's containers are containerd's, by the same service.
func container(runtime, root string, mounts, nodes []string, script string) []string {
	name := filepath.Base(root)
	if strings.HasPrefix(runtime, "podman") {
		args := []string{"podman", "run", "--rm", "--name", name, "--network", "none", "--read-only", "--read-only-tmpfs=false"}
		for _, m := range mounts {
			args = append(args, "--volume", m+":"+m+":ro")
		}
		for _, n := range nodes {
			args = append(args, "--device", n)
		}
		return append(args, "--rootfs", root, "/bin/sh", "-c", script)
	}
	args := []string{"ctr", "--namespace", "gpupool", "run", "--rm", "--read-only"}
	for _, m := range mounts {
		args = append(args, "--mount", "type=bind,src="+m+",dst="+m+",options=rbind:ro")
	}
	for _, n := range nodes {
		args = append(args, "--device", n)
	}
	return append(args, "--rootfs", root, name, "/bin/sh", "-c", script)
}

// skeleton makes the folders of a root file system in which the programs of the one at from can run, and lists what is to be
// mounted in it from there.
func skeleton(from, root string) (mounts []string, err error) {
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr"} {
		st, err := os.Lstat(filepath.Join(from, name))
		switch {
		case os.IsNotExist(err):
			continue
		case err != nil:
			return nil, err
		case st.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(filepath.Join(from, name))
			if err != nil {
				return nil, err
			}
			if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
				return nil, err
			}
		default:
			if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
				return nil, err
			}
			mounts = append(mounts, filepath.Join(from, name))
		}
	}
	for _, name := range []string{"proc", "dev", "sys", "run", "tmp", "etc"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			return nil, err
		}
	}
	return mounts, nil
}
