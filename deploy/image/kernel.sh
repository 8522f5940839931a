#!/bin/bash
# Downloads a Debian kernel package and unpacks it, with its table of modules: kernel.sh PACKAGE ARCH FOLDER. A package
# that only depends on the newest kernel (linux-image-cloud-amd64) stands for that one. Nothing is installed here; an
# architecture that this machine's apt doesn't know has package lists of its own, which are thrown away.
set -euo pipefail
package=$1 arch=$2
mkdir -p "$3"
cd "$3"
folder=$PWD
options=()
if ! { dpkg --print-architecture; dpkg --print-foreign-architectures; } | grep -qx "$arch"; then
	lists=$(mktemp -d)
	trap 'rm -rf "$lists"' EXIT
	mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial"
	options=(-o "APT::Architectures::=$(dpkg --print-architecture)" -o "APT::Architectures::=$arch" -o "Dir::State::lists=$lists/lists" -o "Dir::Cache=$lists/cache" -o Acquire::Languages=none)
	apt-get -qq "${options[@]}" update
fi
if [ "$(dpkg --print-architecture)" != "$arch" ]; then package=$package:$arch; fi
newest=$(apt-cache "${options[@]}" depends "$package" | sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
package=${newest:-$package}
download() { apt-get -qq "${options[@]}" -o APT::Sandbox::User=root download "$package"; }
download || { apt-get -qq "${options[@]}" update && download; }
dpkg-deb -x ./*.deb .
rm -f ./*.deb
[ -e lib ] || { [ -d usr/lib/modules ] && ln -s usr/lib lib; }
depmod -b "$folder" "$(ls lib/modules)"
