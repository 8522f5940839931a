#!/bin/sh
# Fills a folder with the boot files that the boot service gives to firmware, from Debian's own packages, and says
# what it took from where. Nothing is installed on this machine; packages are downloaded and unpacked beside.
#
#   boot-files.sh FOLDER
#
# Needs apt-get and dpkg-deb, and no root. An architecture that this machine's apt doesn't know (arm64 on amd64, amd64 on
# arm64) has package lists of its own beside, which are thrown away at the end.
# Files that are in the folder already and not ours are left alone; ours are replaced when the package is newer.
set -eu
folder=${1:?usage: boot-files.sh FOLDER}
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
manifest=$folder/SOURCES

# foreign ARCHITECTURE: lets apt download packages of it.
options=
foreign() {
	arch=$1
	{ dpkg --print-architecture; dpkg --print-foreign-architectures; } | grep -qx "$arch" && return 0
	mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
	options="-o APT::Architectures::=$(dpkg --print-architecture) -o APT::Architectures::=$arch -o Dir::State::lists=$work/lists -o Dir::Cache=$work/cache -o Acquire::Languages=none -o Acquire::Retries=3"
	echo "reading the package lists of $arch"
	if ! apt-get -qq $options update 2>"$work/error"; then
		echo "missing  what $arch boots: its package lists can't be had: $(head -n 1 "$work/error")" >&2
		options=
		return 1
	fi
}
: >"$work/manifest"

# take PACKAGE NAME PATH...: the first of the paths that the package has, under that name.
take() {
	package=$1 name=$2
	shift 2
	dir=$work/$package
	if [ ! -d "$dir" ]; then
		mkdir -p "$dir" "$work/deb"
		if ! (cd "$work/deb" && apt-get -qq $options download "$package" 2>"$work/error"); then
			echo "missing  $name: package $package can't be had: $(head -n 1 "$work/error")" >&2
			rmdir "$dir"
			return 0
		fi
		dpkg-deb -x "$work/deb/$(basename "${package%%:*}")"_*.deb "$dir"
		mv "$work/deb/"*.deb "$dir/.deb"
	fi
	for path in "$@"; do
		if [ -f "$dir/$path" ]; then
			install -m 0644 "$dir/$path" "$folder/.$name.new"
			mv "$folder/.$name.new" "$folder/$name"
			version=$(dpkg-deb -f "$dir/.deb" Version)
			sum=$(sha256sum "$folder/$name" | cut -d' ' -f1)
			echo "$name  $package $version  /$path  sha256:$sum" >>"$work/manifest"
			echo "fetched  $name  from $package $version (/$path)"
			return 0
		fi
	done
	echo "missing  $name: not in package $package" >&2
}

# iPXE on the firmware's own network driver: its native drivers break some adapters.
take ipxe undionly.kpxe usr/lib/ipxe/undionly.kpxe
take ipxe snponly.efi usr/lib/ipxe/snponly.efi
take ipxe snponly-arm64.efi usr/lib/ipxe/snponly-arm64.efi usr/lib/ipxe/arm64-efi/snponly.efi usr/lib/ipxe/ipxe-arm64.efi
# Secure Boot: Microsoft signs Debian's shim, Debian signs GRUB. Without Secure Boot GRUB is what arm64 begins with where
# Debian has no iPXE for it.
if foreign amd64; then
	take shim-signed:amd64 shimx64.efi usr/lib/shim/shimx64.efi.signed
	take grub-efi-amd64-signed:amd64 grubx64.efi usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed
fi
if foreign arm64; then
	take shim-signed:arm64 shimaa64.efi usr/lib/shim/shimaa64.efi.signed
	take grub-efi-arm64-signed:arm64 grubaa64.efi usr/lib/grub/arm64-efi-signed/grubnetaa64.efi.signed
fi
mv "$work/manifest" "$manifest"
echo "what is where from: $manifest"
