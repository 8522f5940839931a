#!/bin/bash
# Builds the operating system image of the virtual machine, from Debian packages alone, into FOLDER: os.img.zst, and the
# same as a system that lives in memory, root.squashfs. One disk for BIOS, UEFI and Secure Boot: GPT, an EFI system partition
# with Debian's signed shim and GRUB, SYSLINUX for BIOS, and the kernel; a root file system that the installer grows. The shim
# has a second signature, of the test key in Debian's package ovmf: for firmware that trusts nobody but its owner.
#
#   image.sh FOLDER FAKE_NVML.c
#
# The second file is compiled to the libnvidia-ml.so.1 that the image has in a driver's place. Nothing is built where
# FOLDER has the image of the same inputs. SOURCE_DATE_EPOCH and fixed identifiers keep builds of the same packages
# alike. Root, for mmdebstrap; no loop device. About half a minute, on a machine that is idle.
set -euo pipefail
folder=${1:?usage: image.sh FOLDER FAKE_NVML.c} fake=$(realpath "${2:?usage: image.sh FOLDER FAKE_NVML.c}")
here=$(cd "$(dirname "$0")" && pwd)
kernel=$here/../image/kernel.sh
packages=systemd-sysv,udev,iproute2,kmod,dbus,ca-certificates,containerd,runc
export SOURCE_DATE_EPOCH=1735689600 LC_ALL=C TZ=UTC

newest=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: //p' | head -n 1)
inputs=$( (cat "$0" "$kernel" "$here/sign.sh" "$fake"; echo "$newest $(apt-cache policy "$newest" ${packages//,/ } | grep Candidate)") | sha256sum | cut -d' ' -f1)
if [ "$(cat "$folder/inputs" 2>/dev/null)" = "$inputs" ] && [ -s "$folder/os.img.zst" ] && [ -s "$folder/root.squashfs" ]; then exit 0; fi
if [ "$(id -u)" != 0 ]; then echo "image.sh: mmdebstrap needs root" >&2 && exit 1; fi

mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d "$folder/.build-XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root esp=$work/esp.fat
"$kernel" linux-image-cloud-amd64 amd64 "$work/kernel"
version=$(ls "$work/kernel/lib/modules")

# The same sources as this machine's, without what would be of no use in a machine that nobody looks at.
sources=()
for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list; do [ -s "$f" ] && sources+=("$f"); done
mmdebstrap --quiet --mode=root --variant=essential --include="$packages" \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
	--dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/bin/containerd-stress' --dpkgopt='path-exclude=/usr/bin/containerd-shim' \
	--dpkgopt='path-exclude=/usr/bin/containerd-shim-runc-v1' --aptopt='Acquire::Languages "none"' \
	"$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root" "${sources[@]}"

# Modules that the machine needs once its root file system is there; ext4 and NVMe are in the kernel.
from=$work/kernel/lib/modules/$version to=$root/lib/modules/$version
mkdir -p "$to"
for m in virtio_pci virtio_net virtio_rng af_packet vfat nls_cp437 nls_ascii button evdev overlay efivarfs dmi_sysfs; do
	{ modprobe -d "$work/kernel" -S "$version" --show-depends "$m" 2>/dev/null || true; } | sed -n 's/^insmod \([^ ]*\).*/\1/p' |
		while read -r file; do install -D -m 0644 "$file" "$to/${file#"$from"/}"; done
done
cp "$from"/modules.{builtin,builtin.modinfo,order} "$to/"
depmod -b "$root" "$version"
[ -s "$to/modules.dep" ] || { echo "image.sh: the image has no kernel modules" >&2 && exit 1; }

cc -O1 -shared -fPIC -DHEALTHY -Wl,-soname,libnvidia-ml.so.1 -o "$root/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1" "$fake"
echo 'LABEL=root / ext4 defaults 0 1' >"$root/etc/fstab"
echo localhost >"$root/etc/hostname"
: >"$root/etc/machine-id" # made at the first boot
printf '[Match]\nType=ether\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n' >"$root/etc/systemd/network/10-all.network"
systemctl --root "$root" --quiet enable systemd-networkd
systemctl --root "$root" --quiet mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer \
	e2scrub_all.timer systemd-networkd-wait-online.service getty@tty1.service
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/boot/* "$root"/etc/ssh/ssh_host_* "$root"/tmp/*
find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

# The root file system, as small as it can be: the installer grows it.
size=$(($(du -sm --apparent-size "$root" | cut -f1) * 112 / 100 + 40))
uuid=5b4a9f2e-6d0e-4b7f-9a51-67706f6f6c01 part=5b4a9f2e-6d0e-4b7f-9a51-67706f6f6c02
E2FSPROGS_FAKE_TIME=$SOURCE_DATE_EPOCH mke2fs -q -t ext4 -L root -U "$uuid" -E "hash_seed=$uuid,root_owner=0:0" -m 0 -d "$root" "$work/root.ext4" "${size}M"

mksquashfs "$root" "$work/root.squashfs" -quiet -no-progress -noappend -comp zstd -Xcompression-level 6 -all-root >/dev/null

# The EFI system partition, and SYSLINUX in it. Both boot loaders read the kernel from there.
truncate -s 48M "$esp"
mkfs.vfat --invariant -i 67706f6c -n ESP "$esp" >/dev/null
# no_timer_check: under emulation on a busy machine the kernel's test of its timer fails, and it panics.
cmdline="root=PARTUUID=$part rw console=ttyS0,115200 quiet mitigations=off net.ifnames=0 no_timer_check panic=10"
printf 'set timeout=0\nsearch --file --set=root /vmlinuz\nlinux /vmlinuz %s\nboot\n' "$cmdline" >"$work/grub.cfg"
printf 'default l\nprompt 0\nlabel l\nkernel /vmlinuz\nappend %s\n' "$cmdline" >"$work/syslinux.cfg"
cp "$work/kernel/boot/vmlinuz-$version" "$work/vmlinuz"
"$here/sign.sh" /usr/lib/shim/shimx64.efi.signed "$work/BOOTX64.EFI"
cp /usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed "$work/grubx64.efi"
touch -d "@$SOURCE_DATE_EPOCH" "$work"/{grub.cfg,syslinux.cfg,vmlinuz,BOOTX64.EFI,grubx64.efi}
mmd -i "$esp" ::/EFI ::/EFI/BOOT ::/EFI/debian
mcopy -m -i "$esp" "$work/BOOTX64.EFI" "$work/grubx64.efi" ::/EFI/BOOT/
mcopy -m -i "$esp" "$work/grub.cfg" ::/EFI/debian/
mcopy -m -i "$esp" "$work/vmlinuz" "$work/syslinux.cfg" ::/
syslinux --install "$esp"

disk=$work/disk.img
truncate -s $((size + 48 + 3))M "$disk"
sfdisk -q "$disk" <<S
label: gpt
label-id: 5b4a9f2e-6d0e-4b7f-9a51-67706f6f6c00
start=1MiB, size=48MiB, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, uuid=5b4a9f2e-6d0e-4b7f-9a51-67706f6f6c03, attrs=LegacyBIOSBootable
start=49MiB, size=${size}MiB, type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709, uuid=$part
S
dd if="$esp" of="$disk" bs=1M seek=1 conv=notrunc,sparse status=none
dd if="$work/root.ext4" of="$disk" bs=1M seek=49 conv=notrunc,sparse status=none
dd if=/usr/lib/syslinux/mbr/gptmbr.bin of="$disk" bs=440 count=1 conv=notrunc status=none

zstd -q -6 -T0 -f "$disk" -o "$work/os.img.zst"
mv "$work/os.img.zst" "$work/root.squashfs" "$folder/"
echo "$inputs" >"$folder/inputs"
echo "os image: $(($(stat -c %s "$disk") >> 20)) MiB, $(($(stat -c %s "$folder/os.img.zst") >> 20)) MiB compressed, kernel $version"
