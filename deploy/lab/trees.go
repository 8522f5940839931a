package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"gpupool/deploy/lab/bmc"
)

// captures are the archives of captured Redfish trees, by the profile that each is the real thing of. Only those with
// as many accelerators as the profile shows.
var captures = map[string]string{bmc.DGXH100: "nvidia_viking.tar.xz", bmc.SupermicroHGX: "supermicro.tar.xz"}

// WithTrees returns the servers, those of a profile whose captured tree is in the folder from serving that tree instead
// of the generated one. Archives are unpacked into the folder to, once: a lab that is started again finds them there.
//
// A server whose tree can't be had keeps its profile, and the error says why; the servers are right to use either way.
func WithTrees(servers []ServerConfig, from, to string) ([]ServerConfig, error) {
	out := append([]ServerConfig(nil), servers...)
	trees, failed := map[string]string{}, map[string]error{}
	var errs []error
	for i, s := range out {
		name := captures[s.Profile]
		if name == "" || s.Tree != "" || failed[name] != nil {
			continue
		}
		if trees[name] == "" {
			dir, err := unpack(filepath.Join(from, name), to)
			if err != nil {
				failed[name] = err
				errs = append(errs, fmt.Errorf("captured tree %s, so that the generated %s is served: %w", name, s.Profile, err))
				continue
			}
			trees[name] = dir
		}
		out[i].Tree = trees[name]
	}
	return out, errors.Join(errs...)
}

// unpack unpacks a .tar.xz into a folder of its name below to, unless it is there. The folder appears whole or not at
// all, whenever the process is killed.
func unpack(archive, to string) (string, error) {
	dir := filepath.Join(to, strings.TrimSuffix(filepath.Base(archive), ".tar.xz"))
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	if _, err := os.Stat(archive); err != nil {
		return "", err
	}
	for _, program := range []string{"tar", "xz"} { // no Go package for xz is worth one more dependency here
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("unpacking needs the programs tar and xz: %w", err)
		}
	}
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil { // left by a killed process
		return "", err
	}
	if err := os.MkdirAll(part, 0o700); err != nil {
		return "", err
	}
	defer os.RemoveAll(part)
	if out, err := exec.Command("tar", "--no-same-owner", "-xJf", archive, "-C", part).CombinedOutput(); err != nil {
		return "", fmt.Errorf("tar: %w: %s", err, bytes.TrimSpace(out))
	}
	if _, err := bmc.OpenTree(part); err != nil {
		return "", err
	}
	return dir, os.Rename(part, dir)
}
