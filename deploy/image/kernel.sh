#!/bin/bash
# Downloads a Debian kernel package and unpacks it, with its table of modules: kernel.sh PACKAGE ARCH FOLDER. A package
# that only depends on the newest kernel (linux-image-cloud-amd64) stands for that one. Nothing is installed here.
set -euo pipefail
package=$1 arch=$2
mkdir -p "$3"
cd "$3"
folder=$PWD
if [ "$(dpkg --print-architecture)" != "$arch" ]; then package=$package:$arch; fi
newest=$(apt-cache depends "$package" | sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
package=${newest:-$package}
download() { apt-get -qq -o APT::Sandbox::User=root download "$package"; }
download || { apt-get -qq update && download; }
dpkg-deb -x ./*.deb .
rm -f ./*.deb
[ -e lib ] || { [ -d usr/lib/modules ] && ln -s usr/lib lib; }
depmod -b "$folder" "$(ls lib/modules)"
