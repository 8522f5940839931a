package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"gpupool/cmd/gpupool/cli"
	"gpupool/cmd/gpupool/serve"
)

// Environment of the test binary inside its namespace: where the built files are, or why the tests can't run.
const (
	filesVar = "GPUPOOL_E2E_FILES"
	skipVar  = "GPUPOOL_E2E_SKIP"
	allVar   = "GPUPOOL_E2E" // all = what takes minutes, too
)

// TestMain is gpupool itself where the test starts it as a process; else it builds what a machine is installed with, and
// starts the tests again in a network namespace of their own.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "up", "worker":
			root := &cobra.Command{Use: "gpupool"}
			root.AddCommand(serve.Commands()...)
			os.Exit(cli.Execute(context.Background(), root))
		}
	}
	if os.Getenv(filesVar) != "" || os.Getenv(skipVar) != "" {
		os.Exit(m.Run())
	}
	flag.Parse()
	if !testing.Short() {
		enter()
	}
	os.Exit(m.Run())
}

// enter starts this program anew in the namespace, where that can be; where not, the tests are told why.
func enter() {
	files, err := prepare()
	if err != nil {
		os.Setenv(skipVar, err.Error())
		return
	}
	unshare, err := exec.LookPath("unshare")
	if err == nil {
		err = syscall.Exec(unshare, append([]string{"unshare", "--net", "--"}, os.Args...), append(os.Environ(), filesVar+"="+files))
	}
	os.Setenv(skipVar, fmt.Sprintf("a network namespace can't be made: %v", err))
}

// needs are the files and commands that show a Debian package to be there; `make e2e` installs them.
var needs = map[string]string{
	"qemu-system-x86_64": "qemu-system-x86", "ip": "iproute2", "mmdebstrap": "mmdebstrap", "mcopy": "mtools", "mkfs.vfat": "dosfstools", "mke2fs": "e2fsprogs", "sfdisk": "fdisk",
	"depmod": "kmod", "cpio": "cpio", "zstd": "zstd", "syslinux": "syslinux", "cc": "gcc", "apt-get": "apt", "mksquashfs": "squashfs-tools", "sbsign": "sbsigntool", "openssl": "openssl",
	"qemu-system-aarch64": "qemu-system-arm", "/usr/share/AAVMF/AAVMF_CODE.fd": "qemu-efi-aarch64",
	"/usr/share/OVMF/OVMF_CODE_4M.fd": "ovmf", "/usr/lib/ipxe/undionly.kpxe": "ipxe", "/usr/lib/syslinux/mbr/gptmbr.bin": "syslinux-common",
	"/usr/lib/shim/shimx64.efi.signed": "shim-signed", "/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed": "grub-efi-amd64-signed",
}

// prepare builds the boot files into build/e2e of the repository, as far as they are not there, and returns the folder.
func prepare() (string, error) {
	if os.Geteuid() != 0 {
		return "", errors.New("it needs root: a bridge, a network namespace, and an image of Debian's packages are made")
	}
	var missing []string
	for sign, pkg := range needs {
		var err error
		if filepath.IsAbs(sign) {
			_, err = os.Stat(sign)
		} else {
			_, err = exec.LookPath(sign)
		}
		if err != nil {
			missing = append(missing, pkg)
		}
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("Debian packages are missing: %s (deploy/packages.sh e2e installs them)", strings.Join(missing, " "))
	}
	root, err := filepath.Abs("../../..")
	if err != nil {
		return "", err
	}
	files := filepath.Join(root, "build", "e2e")
	cmd := exec.Command(filepath.Join(root, "deploy/qemu/files.sh"), files, os.Getenv(allVar))
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("deploy/qemu/files.sh: %w: %s", err, strings.TrimSpace(string(out[max(0, len(out)-500):])))
	}
	return files, nil
}
