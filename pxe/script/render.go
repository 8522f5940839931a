package script

import (
	"fmt"
	"strconv"
	"strings"

	"gpupool/pxe/boot"
)

// Kind is a boot loader's language.
type Kind string

const (
	IPXE     Kind = "script.ipxe"
	GRUB     Kind = "grub.cfg"
	Extlinux Kind = "extlinux.conf" // U-Boot and PXELINUX
)

// disk hands over to the disk, the way that each loader can.
//
// iPXE under BIOS boots the first disk itself, since many BIOSes try no further device after a network boot. Under
// UEFI it leaves with an error: a boot option that returns success ends the boot manager's search.
func disk(k Kind, why string) string {
	why = oneLine(why)
	switch k {
	case GRUB:
		return "# boot from disk: " + why + `
set timeout=0
for f in /efi/debian/shimx64.efi /efi/ubuntu/shimx64.efi /efi/redhat/shimx64.efi /efi/boot/bootx64.efi /efi/debian/shimaa64.efi /efi/ubuntu/shimaa64.efi /efi/redhat/shimaa64.efi /efi/boot/bootaa64.efi; do
  if search --no-floppy --set=root --file $f; then
    chainloader ($root)$f
    boot
  fi
done
exit 1
`
	case Extlinux:
		return "# boot from disk: " + why + `
DEFAULT disk
PROMPT 0
TIMEOUT 1
LABEL disk
  LOCALBOOT 0
`
	case IPXE:
	}
	return "#!ipxe\n# boot from disk: " + why + `
echo gpupool: booting from disk
iseq ${platform} efi && exit 1 ||
sanboot --no-describe --drive 0x80 || exit 1
`
}

// vars is what a plan's arguments may refer to.
type vars struct {
	base, files, server, name, mac string
	attempt                        int
}

// install is the script of an armed machine.
func install(k Kind, p boot.Plan, v vars) (string, error) {
	if p.Kernel == "" {
		return "", fmt.Errorf("install profile of %s names no kernel", v.server)
	}
	args := strings.NewReplacer("{{base}}", v.base, "{{files}}", v.files, "{{server}}", v.server, "{{name}}", v.name, "{{mac}}", v.mac, "{{attempt}}", strconv.Itoa(v.attempt)).Replace(p.Args)
	for _, s := range append([]string{p.Kernel, args, v.name, v.server}, p.Initrd...) {
		if s != oneLine(s) {
			return "", fmt.Errorf("install profile of %s: %q has a line break or control character in it: a boot loader would read it as a command", v.server, s)
		}
	}
	title := fmt.Sprintf("gpupool: installing %s, attempt %d", v.name, v.attempt)
	var b strings.Builder
	switch k {
	case GRUB:
		fmt.Fprintf(&b, "set timeout=0\necho '%s'\nlinux %s %s\n", strings.ReplaceAll(title, "'", ""), path(p.Kernel), grubWords.Replace(args))
		if len(p.Initrd) > 0 {
			b.WriteString("initrd")
			for _, i := range p.Initrd {
				b.WriteString(" " + path(i))
			}
			b.WriteString("\n")
		}
		b.WriteString("boot\n")
	case Extlinux:
		fmt.Fprintf(&b, "DEFAULT install\nPROMPT 0\nTIMEOUT 1\nLABEL install\n  KERNEL %s\n", path(p.Kernel))
		for _, i := range p.Initrd {
			fmt.Fprintf(&b, "  INITRD %s\n", path(i))
		}
		fmt.Fprintf(&b, "  APPEND %s\n", args)
	default:
		// iPXE expands ${...} itself; a plan may use it (as in ${net0/mac}).
		fmt.Fprintf(&b, "#!ipxe\necho %s\nkernel %s%s", title, v.files, path(p.Kernel))
		for _, i := range p.Initrd {
			// EFI stub kernels load the initrd by the name it has here.
			fmt.Fprintf(&b, " initrd=%s", base(i))
		}
		fmt.Fprintf(&b, " %s || goto failed\n", args)
		for _, i := range p.Initrd {
			fmt.Fprintf(&b, "initrd --name %s %s%s || goto failed\n", base(i), v.files, path(i))
		}
		b.WriteString("boot || goto failed\n:failed\necho gpupool: a boot file could not be loaded; going on to the disk\nsleep 5\nexit 1\n")
	}
	return b.String(), nil
}

// grubWords keeps GRUB's shell from reading an argument as more than one: ds=nocloud;s=... is one.
var grubWords = strings.NewReplacer(";", `\;`, "&", `\&`, "|", `\|`, "<", `\<`, ">", `\>`, "$", `\$`, "{", `\{`, "}", `\}`, "#", `\#`)

func path(p string) string { return "/" + strings.TrimPrefix(p, "/") }

func base(p string) string { return p[strings.LastIndexByte(p, '/')+1:] }

func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, s)
}
