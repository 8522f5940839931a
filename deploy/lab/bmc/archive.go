package bmc

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"strings"
)

// The ends of names of what is read as an archive: trees that others captured, and what `gpupool bmc capture` writes.
const xzSuffix, gzipSuffix = ".tar.xz", ".tar.gz"

func isArchive(path string) bool {
	return strings.HasSuffix(path, xzSuffix) || strings.HasSuffix(path, gzipSuffix)
}

// unpackXZ has the program xz do it, so that a compression only the lab needs is no dependency.
func unpackXZ(file string) (all map[string][]byte, err error) {
	cmd := exec.Command("xz", "-dc", "--", file)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("the program xz is needed (Debian: xz-utils): %w", err)
	}
	if err != nil {
		return nil, err
	}
	all, readErr := readTar(out)
	_ = out.Close() // where the tar ended early, xz would wait to be read
	if err := cmd.Wait(); err != nil && said.Len() > 0 {
		return nil, fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return all, readErr
}

func unpackGzip(file string) (map[string][]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return readTar(in)
}

// openArchive reads an archive into memory. A tree is thousands of small files in as many folders: to unpack them takes
// seconds, to read them a tenth of one.
func openArchive(file string) (Tree, error) {
	unpack := unpackXZ
	if strings.HasSuffix(file, gzipSuffix) {
		unpack = unpackGzip
	}
	all, err := unpack(file)
	if err != nil {
		return nil, fmt.Errorf("open redfish tree %s: %w", file, err)
	}
	const rootDoc = "/redfish/v1"
	root, found := "", false
	for p := range all {
		if r, ok := strings.CutSuffix(p, rootDoc); ok && (!found || len(r) < len(root)) {
			root, found = r, true
		}
	}
	if !found {
		return nil, fmt.Errorf("open redfish tree %s: no redfish/v1/index.json in it", file)
	}
	t := mapTree{}
	for p, b := range all {
		if rel, ok := strings.CutPrefix(p, root+"/"); ok {
			t["/"+rel] = b
		}
	}
	return t, nil
}

// readTar returns every index.json, by the folder that it is in ("/dell/redfish/v1").
func readTar(in io.Reader) (map[string][]byte, error) {
	all := map[string][]byte{}
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, in) // the padding, so that xz can end, and gzip's checksum is looked at
			return all, err
		}
		if err != nil {
			return nil, err
		}
		dir, name := path.Split(path.Clean("/" + h.Name))
		if h.Typeflag != tar.TypeReg || name != "index.json" {
			continue
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		all[strings.TrimSuffix(dir, "/")] = b
	}
}
