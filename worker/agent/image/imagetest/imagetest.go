// Package imagetest gives tests a containerd of their own and small images to put into it: no registry is asked.
package imagetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// Daemon starts a containerd that ends with the test, and returns its socket.
func Daemon(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("containerd needs root")
	}
	bin, err := exec.LookPath("containerd")
	if err != nil {
		t.Skip("containerd is not installed")
	}
	dir, err := os.MkdirTemp("", "containerd") // short: a socket's path is at most 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	config := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(config, []byte("version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "--config", config, "--root", filepath.Join(dir, "root"), "--state", filepath.Join(dir, "state"), "--address", socket)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("a mount of containerd is left: %v", err)
		}
	})
	for end := time.Now().Add(30 * time.Second); ; <-time.After(20 * time.Millisecond) {
		if c, err := net.Dial("unix", socket); err == nil {
			_ = c.Close()
			return socket
		}
		if time.Now().After(end) {
			t.Skipf("containerd does not come up here: %s", log.String())
		}
	}
}

// Shell is a shell of this machine and what it links, as an image's files.
func Shell(t testing.TB) map[string]string {
	t.Helper()
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("ldd", shell).Output()
	if err != nil {
		t.Skipf("what a shell links can't be told: %v", err)
	}
	paths := map[string]string{"bin/sh": shell}
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			paths[word[1:]] = word
		}
	}
	files := map[string]string{}
	for at, from := range paths {
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files[at] = string(b)
	}
	return files
}

type blob struct {
	MediaType string            `json:"mediaType"`
	Digest    string            `json:"digest"`
	Size      int               `json:"size"`
	Notes     map[string]string `json:"annotations,omitempty"`
}

// Archive is an OCI layout in a tar: one image of the files, all of which can be run, in as many layers as there are maps.
func Archive(t testing.TB, name string, env []string, workDir string, layers ...map[string]string) []byte {
	t.Helper()
	blobs := map[string][]byte{}
	add := func(kind string, b []byte) blob {
		h := sha256.Sum256(b)
		d := hex.EncodeToString(h[:])
		blobs["blobs/sha256/"+d] = b
		return blob{MediaType: kind, Digest: "sha256:" + d, Size: len(b)}
	}
	encode := func(v any) []byte {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var parts []blob
	var ids []string
	for _, files := range layers {
		l := add("application/vnd.oci.image.layer.v1.tar", archive(t, files, 0o755))
		parts, ids = append(parts, l), append(ids, l.Digest)
	}
	config := add("application/vnd.oci.image.config.v1+json", encode(map[string]any{"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Env": env, "WorkingDir": workDir}, "rootfs": map[string]any{"type": "layers", "diff_ids": ids}}))
	manifest := add("application/vnd.oci.image.manifest.v1+json", encode(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": parts}))
	manifest.Notes = map[string]string{"io.containerd.image.name": name}
	files := map[string]string{"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": string(encode(map[string]any{"schemaVersion": 2, "manifests": []blob{manifest}}))}
	for path, b := range blobs {
		files[path] = string(b)
	}
	return archive(t, files, 0o644)
}

func archive(t testing.TB, files map[string]string, mode int64) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	paths := make([]string, 0, len(files))
	for p := range files {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		if err := w.WriteHeader(&tar.Header{Name: p, Mode: mode, Size: int64(len(files[p])), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[p])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
