#!/bin/bash
# Puts an operating system image into FOLDER, a boot service's "image" folder, with what the installer needs beside it:
# image.json, the manifest, and overlay.tar.zst with the node agent and its unit.
#
#   manifest.sh IMAGE.img.zst GPUPOOL-AGENT FOLDER [AUTHORIZED_KEYS]
#
# The image is a whole disk: GPT with sectors of 512 bytes, boot loader, and an ext4 root file system in the last
# partition (or in number ROOT_PARTITION), which the installer grows. EXTRA is a folder whose files go over the root
# file system too. Needs zstd and tar; not root.
set -euo pipefail
image=${1:?usage: manifest.sh IMAGE.img.zst GPUPOOL-AGENT FOLDER [AUTHORIZED_KEYS]} agent=${2:?} folder=${3:?} keys=${4:-}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder" "$work/root"
[ -z "${EXTRA:-}" ] || cp -a "$EXTRA/." "$work/root/"
install -D -m 0755 "$agent" "$work/root/usr/bin/gpupool-agent"
install -D -m 0644 "$here/../systemd/gpupool-agent.service" "$work/root/etc/systemd/system/gpupool-agent.service"
mkdir -p "$work/root/etc/systemd/system/multi-user.target.wants"
ln -sf ../gpupool-agent.service "$work/root/etc/systemd/system/multi-user.target.wants/gpupool-agent.service"
tar -C "$work/root" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@1735689600 -cf - . | zstd -q -10 -T0 -f -o "$work/overlay.tar.zst"

zstd -qdc "$image" | tee >(wc -c >"$work/size") | sha256sum | cut -d' ' -f1 >"$work/sum"
while [ ! -s "$work/size" ]; do sleep 0.05; done # the shell doesn't wait for it
list=
if [ -n "$keys" ]; then
	list=$(sed -e '/^ *#/d' -e '/^ *$/d' -e 's/[\\"]/\\&/g' -e 's/.*/"&"/' "$keys" | paste -sd, -)
fi
cat >"$work/image.json" <<J
{
  "image": "os.img.zst",
  "size": $(cat "$work/size"),
  "sha256": "$(cat "$work/sum")",
  "root_partition": ${ROOT_PARTITION:-0},
  "overlay": "overlay.tar.zst",
  "overlay_sha256": "$(sha256sum "$work/overlay.tar.zst" | cut -d' ' -f1)",
  "authorized_keys": [$list]
}
J
chmod 0644 "$work"/image.json "$work"/overlay.tar.zst
[ "$image" -ef "$folder/os.img.zst" ] || { cp --reflink=auto "$image" "$folder/.os.img.zst.new" && mv "$folder/.os.img.zst.new" "$folder/os.img.zst"; }
mv "$work/overlay.tar.zst" "$work/image.json" "$folder/" # the manifest last
echo "image: $(cat "$work/size") bytes, sha256 $(cat "$work/sum"), in $folder"
