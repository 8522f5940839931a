#!/bin/bash
# Builds what a server boots to be installed, into FOLDER (pxe.boot_dir's "image/x86_64" or "image/arm64"): vmlinuz, Debian's own kernel, and
# initrd.img, whose init is the program INSTALLER (cmd/gpupool-installer, static) with the kernel modules beside it.
#
#   installer.sh INSTALLER FOLDER
#
# KERNEL names the Debian package (linux-image-cloud-amd64: small, for virtual machines). For real servers say
# KERNEL=linux-image-amd64, which brings the drivers of MODULES that the cloud kernel has not. ARCH=arm64 builds for
# arm64. Needs apt-get, dpkg-deb, kmod, cpio, zstd; not root.
set -euo pipefail
installer=${1:?usage: installer.sh INSTALLER FOLDER} folder=${2:?usage: installer.sh INSTALLER FOLDER}
arch=${ARCH:-amd64}
kernel=${KERNEL:-linux-image-cloud-$arch}
# Network cards and disk controllers of servers; what ext4, NVMe and FAT need beside; and what a system in memory needs.
modules=${MODULES:-virtio_pci virtio_net virtio_blk virtio_scsi virtio_rng nvme ahci sd_mod megaraid_sas mpt3sas smartpqi \
	e1000 e1000e igb igc ixgbe i40e ice bnxt_en mlx4_en mlx5_core tg3 ena gve vmxnet3 af_packet ext4 vfat nls_cp437 nls_ascii efivarfs loop squashfs overlay}

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$here/kernel.sh" "$kernel" "$arch" "$work/kernel"
version=$(ls "$work/kernel/lib/modules")

root=$work/root
mkdir -p "$root"/{modules,proc,sys,dev,run,mnt}
: >"$root/modules/order"
for m in $modules; do # one that the kernel has built in, or has not at all, adds nothing
	{ modprobe -d "$work/kernel" -S "$version" --show-depends "$m" 2>/dev/null || true; } |
		sed -n 's/^insmod \([^ ]*\).*/\1/p' | while read -r file; do
		name=$(basename "$file")
		[ -e "$root/modules/$name" ] || { cp "$file" "$root/modules/$name"; echo "$name" >>"$root/modules/order"; }
	done
done
install -m 0755 "$installer" "$root/init"

export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1735689600}
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
mkdir -p "$folder"
(cd "$root" && find . -print0 | LC_ALL=C sort -z | cpio --null -o -H newc --quiet --reproducible -R 0:0) | zstd -q -10 -f -o "$folder/.initrd.img.new"
install -m 0644 "$work/kernel/boot/vmlinuz-$version" "$folder/.vmlinuz.new"
mv "$folder/.vmlinuz.new" "$folder/vmlinuz"
mv "$folder/.initrd.img.new" "$folder/initrd.img"
echo "installer: kernel $version, $(wc -l <"$root/modules/order") modules, initrd $(($(stat -c %s "$folder/initrd.img") / 1024)) KiB"
