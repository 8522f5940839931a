#!/bin/bash
# Builds into FOLDER all that the boot service needs to install the virtual machine: iPXE, the installer, the image with
# the agent; with "all" also what arm64 boots, and iPXE signed with an owner's key. What is there already and has not
# changed is not built again. Root.
set -euo pipefail
folder=${1:?usage: files.sh FOLDER [all]} all=${2:-}
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
mkdir -p "$folder/cache"
exec 9>"$folder/cache/lock"
flock 9 # one at a time

install -D -m 0644 /usr/lib/ipxe/undionly.kpxe "$folder/boot/undionly.kpxe"
install -D -m 0644 /usr/lib/ipxe/snponly.efi "$folder/boot/snponly.efi"
install -D -m 0644 /usr/lib/shim/shimx64.efi.signed "$folder/boot/shimx64.efi"
install -D -m 0644 /usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed "$folder/boot/grubx64.efi"

# changed NAME FILE...: whether one of the files is not what it was when `built NAME` was last said.
changed() { name=$1 && shift && sha256sum "$@" >"$folder/cache/$name.new" && ! cmp -s "$folder/cache/$name.new" "$folder/cache/$name"; }
built() { mv "$folder/cache/$1.new" "$folder/cache/$1"; }

CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$folder/cache/gpupool-installer" ./cmd/gpupool-installer
if changed installer "$folder/cache/gpupool-installer" deploy/image/installer.sh deploy/image/kernel.sh deploy/qemu/sign.sh; then
	deploy/image/installer.sh "$folder/cache/gpupool-installer" "$folder/boot/image/x86_64"
	deploy/qemu/sign.sh "$folder/boot/image/x86_64/vmlinuz" "$folder/boot/image/x86_64/vmlinuz"
	built installer
fi
if [ "$all" = all ]; then
	mkdir -p "$folder/boot/own"
	deploy/qemu/sign.sh "$folder/boot/snponly.efi" "$folder/boot/own/snponly.efi"
	[ -e "$folder/boot/grubaa64.efi" ] || deploy/pxe/boot-files.sh "$folder/boot"
	CGO_ENABLED=0 GOARCH=arm64 go build -trimpath -ldflags "-s -w" -o "$folder/cache/gpupool-installer-arm64" ./cmd/gpupool-installer
	if changed installer-arm64 "$folder/cache/gpupool-installer-arm64" deploy/image/installer.sh deploy/image/kernel.sh; then
		ARCH=arm64 deploy/image/installer.sh "$folder/cache/gpupool-installer-arm64" "$folder/boot/image/arm64"
		built installer-arm64
	fi
fi
deploy/qemu/image.sh "$folder/cache/image" worker/agent/accelerator/nvidia/testdata/fakenvml.c
go build -trimpath -ldflags "-s -w" -o "$folder/cache/gpupool-agent" ./cmd/gpupool-agent
if changed manifest "$folder/cache/gpupool-agent" "$folder/cache/image/inputs" deploy/image/manifest.sh deploy/systemd/gpupool-agent.service deploy/qemu/burn-in.sh deploy/qemu/driver.sh deploy/qemu/driver.service; then
	extra=$folder/cache/extra
	rm -rf "$extra"
	install -D -m 0755 deploy/qemu/driver.sh "$extra/usr/lib/gpupool/driver"
	install -D -m 0644 deploy/qemu/driver.service "$extra/etc/systemd/system/driver.service"
	mkdir -p "$extra/etc/systemd/system/multi-user.target.wants"
	ln -sf ../driver.service "$extra/etc/systemd/system/multi-user.target.wants/driver.service"
	for program in dcgmi nvbandwidth stress-ng; do
		install -D -m 0755 deploy/qemu/burn-in.sh "$extra/usr/local/bin/$program"
	done
	EXTRA=$extra deploy/image/manifest.sh "$folder/cache/image/os.img.zst" "$folder/cache/gpupool-agent" "$folder/boot/image/x86_64"
	EXTRA=$extra deploy/image/manifest.sh "$folder/cache/image/root.squashfs" "$folder/cache/gpupool-agent" "$folder/boot/live/x86_64"
	built manifest
fi
