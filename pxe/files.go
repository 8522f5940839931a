package pxe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"gpupool/pxe/script"
	"gpupool/pxe/tftp"
)

// folder serves regular files beneath a root, from the kernel's page cache. os.Root refuses every name and symbolic
// link that leads out of it.
type folder struct{ root *os.Root }

func openFolder(path string) (*folder, error) {
	r, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("root: %w (hint: make the folder and put the boot files in it)", err)
	}
	return &folder{r}, nil
}

// OpenFile opens a regular file: fs.ErrNotExist where there is none, fs.ErrPermission for what leaves the root.
func (f *folder) OpenFile(name string) (*os.File, error) {
	// Without O_NONBLOCK a FIFO put there would hold the request for ever.
	file, err := f.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			return nil, fs.ErrNotExist
		}
		return nil, fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	st, err := file.Stat()
	if err != nil || !st.Mode().IsRegular() {
		file.Close()
		return nil, fs.ErrNotExist
	}
	return file, nil
}

// has tells whether there is such a file.
func (f *folder) has(name string) bool {
	st, err := f.root.Stat(name)
	return err == nil && st.Mode().IsRegular()
}

// tftpFiles is the folder, and beside it the scripts of those loaders that fetch theirs by TFTP.
type tftpFiles struct {
	*folder
	scripts *script.Service
	who     script.Locator
}

// Open implements tftp.Files. A file that is there wins over a made script.
func (t *tftpFiles) Open(ctx context.Context, client netip.Addr, name string) (tftp.Content, error) {
	f, err := t.OpenFile(name)
	if err == nil {
		st, err := f.Stat()
		if err != nil {
			f.Close()
			return nil, err
		}
		return onDisk{f, st.Size()}, nil
	}
	kind, mac, ok := scriptName(name)
	if !ok || !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if mac == "" {
		if mac, _, ok, err = t.who.MACAt(ctx, client); err != nil {
			return nil, err
		} else if !ok {
			return nil, fs.ErrNotExist
		}
	}
	b, err := t.scripts.Script(ctx, client, mac, kind)
	if errors.Is(err, script.ErrRefused) {
		return nil, fmt.Errorf("%w: %w", fs.ErrPermission, err)
	}
	if err != nil {
		return nil, err
	}
	return tftp.Bytes(b), nil
}

// scriptName reads the names that GRUB (net_default_mac: grub.cfg-01-aa-bb-..), U-Boot and PXELINUX
// (pxelinux.cfg/01-aa-bb-..) ask for. mac is empty for the plain name, which is then the asking machine's own.
func scriptName(name string) (k script.Kind, mac string, ok bool) {
	file := name[strings.LastIndexByte(name, '/')+1:]
	switch {
	case file == "grub.cfg":
		return script.GRUB, "", true
	case strings.HasPrefix(file, "grub.cfg-01-"):
		mac, ok = script.ParseMAC(strings.TrimPrefix(file, "grub.cfg-"))
		return script.GRUB, mac, ok
	case strings.HasPrefix(name, "pxelinux.cfg/01-"):
		mac, ok = script.ParseMAC(file)
		return script.Extlinux, mac, ok
	}
	return "", "", false
}

type onDisk struct {
	*os.File
	size int64
}

func (o onDisk) Size() int64 { return o.size }
