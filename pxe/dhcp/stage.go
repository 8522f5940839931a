package dhcp

import (
	"fmt"
	"strings"
)

// Arch is a client system architecture of IANA's "Processor Architecture Types" registry (RFC 5970, option 93).
// The text of RFC 4578 had 7 and 9 the other way round; firmware follows the registry.
type Arch uint16

const (
	BIOS        Arch = 0
	EFIIA32     Arch = 6
	EFIX64      Arch = 7
	EFIBC       Arch = 9 // EFI byte code; sent by x64 firmware
	EFIArm32    Arch = 10
	EFIArm64    Arch = 11
	HTTPIA32    Arch = 15
	HTTPX64     Arch = 16
	HTTPBC      Arch = 17
	HTTPArm32   Arch = 18
	HTTPArm64   Arch = 19
	HTTPBIOS    Arch = 20
	UBootArm32  Arch = 21
	UBootArm64  Arch = 22
	HTTPUBoot32 Arch = 23
	HTTPUBoot64 Arch = 24
	ArchUnknown Arch = 0xffff
)

const (
	x64Stage   = "snponly.efi"
	arm64Stage = "snponly-arm64.efi"
	arm32Stage = "snponly-arm32.efi"
	ia32Stage  = "snponly-ia32.efi"
)

// Stages is the first program each architecture is given: iPXE on the firmware's own network driver. snponly, not
// ipxe.efi, whose native drivers break some adapters. It is the default of Config.Stages.
var Stages = map[Arch]string{
	BIOS: "undionly.kpxe", HTTPBIOS: "undionly.kpxe",
	EFIIA32: ia32Stage, HTTPIA32: ia32Stage,
	EFIX64: x64Stage, EFIBC: x64Stage, HTTPX64: x64Stage, HTTPBC: x64Stage,
	EFIArm32: arm32Stage, HTTPArm32: arm32Stage, UBootArm32: arm32Stage, HTTPUBoot32: arm32Stage,
	EFIArm64: arm64Stage, HTTPArm64: arm64Stage, UBootArm64: arm64Stage, HTTPUBoot64: arm64Stage,
}

func (a Arch) known() bool { _, ok := Stages[a]; return ok }

// overHTTP reports whether firmware of this architecture number fetches by HTTP.
func (a Arch) overHTTP() bool {
	return a >= HTTPIA32 && a <= HTTPBIOS || a == HTTPUBoot32 || a == HTTPUBoot64
}

// arm reports whether it is ARM's, of 32 or 64 bits.
func (a Arch) arm() bool {
	switch a {
	case EFIArm32, EFIArm64, HTTPArm32, HTTPArm64, UBootArm32, UBootArm64, HTTPUBoot32, HTTPUBoot64:
		return true
	default:
		return false
	}
}

// cpu is the architecture in the inventory's words; empty where it isn't one of those.
func (a Arch) cpu() string {
	switch a {
	case EFIX64, EFIBC, HTTPX64, HTTPBC:
		return "x86_64"
	case EFIArm64, HTTPArm64, UBootArm64, HTTPUBoot64:
		return "arm64"
	default:
		return ""
	}
}

// String names the architecture for evidence.
func (a Arch) String() string {
	switch a {
	case BIOS, HTTPBIOS:
		return "x86 BIOS"
	case EFIIA32, HTTPIA32:
		return "UEFI ia32"
	case EFIX64, EFIBC, HTTPX64, HTTPBC:
		return "UEFI x86_64"
	case EFIArm32, HTTPArm32:
		return "UEFI arm32"
	case EFIArm64, HTTPArm64:
		return "UEFI arm64"
	case UBootArm32, HTTPUBoot32:
		return "U-Boot arm32"
	case UBootArm64, HTTPUBoot64:
		return "U-Boot arm64"
	case ArchUnknown:
		return "unknown architecture"
	}
	return fmt.Sprintf("architecture %d", uint16(a))
}

// Instruction is what a client is told to boot.
type Instruction struct {
	File  string // file name for TFTP, or absolute URL; empty = nothing to boot
	First bool   // a first stage, which will come back with its own DHCP; counted against chain loops
	Why   string // why there is nothing to boot, where firmware asks for something
}

// instruct decides what c boots. A program that is already iPXE always gets the script, never a binary again.
func (c Config) instruct(cl Client, mac string) Instruction {
	if cl.Firmware == IPXE {
		return Instruction{File: c.ScriptURL(mac)}
	}
	if cl.Firmware == OS {
		return Instruction{}
	}
	file := c.Stage(cl.Arch, c.SecureBoot)
	if file == "" {
		return Instruction{Why: "no first stage for " + cl.Arch.String()}
	}
	if cl.Firmware == HTTP || cl.Arch.overHTTP() {
		if _, own := c.Stages[cl.Arch]; !own && Stages[cl.Arch] != file {
			// Debian's GRUB does not find the network that HTTP boot has brought up, and would stop at its prompt.
			// Without an answer the firmware goes on to its next boot option.
			return Instruction{Why: "GRUB can't go on from HTTP boot: boot by PXE, or name a first stage that can"}
		}
		// An absolute URL without a double slash: UEFI's HTTP client follows no redirect.
		file = strings.TrimSuffix(c.FilesURL, "/") + "/" + strings.TrimPrefix(file, "/")
	}
	// U-Boot asks several times in one boot, and isn't itself what it is given.
	return Instruction{File: file, First: cl.Firmware != UBoot}
}

// Stage is the first program of an architecture; empty = none. What the operator chose wins, then the signed one where
// that is asked for, then iPXE. Where iPXE isn't there and GRUB is (Debian has no iPXE for arm64), GRUB is the first.
func (c Config) Stage(a Arch, secure bool) string {
	if f, ok := c.Stages[a]; ok {
		return f
	}
	shim, grub := signed(a)
	if secure && shim != "" {
		return shim
	}
	f := Stages[a]
	if c.Has != nil && grub != "" && !c.Has(f) && c.Has(grub) {
		return grub
	}
	return f
}

// signed are the programs that Secure Boot runs, one after the other: Debian's shim and Debian's GRUB. There are none
// for BIOS and ia32: the plain program's lack of a signature is the firmware's to refuse.
func signed(a Arch) (shim, grub string) {
	switch a.cpu() {
	case "x86_64":
		return "shimx64.efi", "grubx64.efi"
	case "arm64":
		return "shimaa64.efi", "grubaa64.efi"
	}
	return "", ""
}
