#!/bin/bash
# Puts an operating system image into FOLDER, a boot service's "image/x86_64" folder, with what the installer needs beside
# it: image.json, the manifest, and overlay.tar.zst with the node agent and its unit. A squashfs is a system that lives in
# memory: it goes into "live/x86_64", with live.json.
#
#   manifest.sh IMAGE.img.zst GPUPOOL-AGENT FOLDER [AUTHORIZED_KEYS]
#   manifest.sh SYSTEM.squashfs GPUPOOL-AGENT FOLDER [AUTHORIZED_KEYS]
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

case $image in
*.squashfs) kind=live name=root.squashfs ;;
*)
	kind=image name=os.img.zst
	zstd -qdc "$image" | tee >(wc -c >"$work/size") | sha256sum | cut -d' ' -f1 >"$work/sum"
	while [ ! -s "$work/size" ]; do sleep 0.05; done # the shell doesn't wait for it
	;;
esac
if [ $kind = live ]; then
	stat -c %s "$image" >"$work/size"
	sha256sum "$image" | cut -d' ' -f1 >"$work/sum"
	what='"filesystem": "root.squashfs",'
else
	what="\"image\": \"os.img.zst\", \"root_partition\": ${ROOT_PARTITION:-0},"
fi
list=
if [ -n "$keys" ]; then
	list=$(sed -e '/^ *#/d' -e '/^ *$/d' -e 's/[\\"]/\\&/g' -e 's/.*/"&"/' "$keys" | paste -sd, -)
fi
cat >"$work/$kind.json" <<J
{
  $what
  "size": $(cat "$work/size"),
  "sha256": "$(cat "$work/sum")",
  "overlay": "overlay.tar.zst",
  "overlay_sha256": "$(sha256sum "$work/overlay.tar.zst" | cut -d' ' -f1)",
  "authorized_keys": [$list]
}
J
chmod 0644 "$work/$kind.json" "$work/overlay.tar.zst"
[ "$image" -ef "$folder/$name" ] || { cp --reflink=auto "$image" "$folder/.$name.new" && mv "$folder/.$name.new" "$folder/$name"; }
mv "$work/overlay.tar.zst" "$work/$kind.json" "$folder/" # the manifest last
echo "$kind: $(cat "$work/size") bytes, sha256 $(cat "$work/sum"), in $folder"
