#!/bin/sh
# Signs an EFI program with the test key of Debian's package ovmf, beside what signatures it has: sign.sh PROGRAM OUT. It is
# what an owner does with a key of his own, once its certificate is in his servers' firmware. The key is everyone's: for
# tests only.
set -eu
key=/usr/share/ovmf/PkKek-1-snakeoil
plain=$(mktemp)
trap 'rm -f "$plain"' EXIT
openssl rsa -in $key.key -passin pass:snakeoil -out "$plain" 2>/dev/null
sbsign --key "$plain" --cert $key.pem --output "$2.new" "$1" 2>/dev/null
mv "$2.new" "$2"
