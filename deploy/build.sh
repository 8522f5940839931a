#!/bin/sh
# Builds a program of ./cmd into build/, showing that it moves, on a terminal and in a file: build.sh NAME. The first build
# of gpupool compiles the embedded Temporal server, which takes minutes; a warm one takes seconds.
set -eu
name=$1
mkdir -p build
began=$(date +%s)
echo "Building build/$name"

stale=$(go list -deps -f '{{if .Stale}}x{{end}}' "./cmd/$name" 2>/dev/null | grep -c x || true)
if [ "$stale" -gt 200 ]; then
	echo "  It is the first build: $stale packages, with the Temporal server where it is gpupool. That takes 2 to 9 minutes on two cores, and only once."
fi

errors=$(mktemp)
beats=''
trap 'rm -f "$errors"; [ -z "$beats" ] || kill "$beats" 2>/dev/null || true' EXIT
# Between two packages, and while the program is linked, nothing else would be said.
if ! [ -t 1 ]; then
	(while sleep 15 >/dev/null 2>&1; do echo "  still building after $(($(date +%s) - began)) s"; done) &
	beats=$!
fi

# go build -v names each package as it is compiled; everything else it says is an error.
{
	go build -v -o "build/$name" "./cmd/$name" 2>&1 && echo BUILT
} | awk -v total="$stale" -v errors="$errors" -v tty="$(test -t 1 && echo 1 || true)" '
	$0 == "BUILT" { built = 1; next }
	/^#/ || /[: ]/ { print > errors; next }
	{
		n++
		if (tty) printf "\r  compiled %d of %d", n, total
		else if (n % 100 == 0) printf "  compiled %d of %d\n", n, total
		fflush()
	}
	END { if (tty && n) print ""; exit !built }
' || {
	cat "$errors" >&2
	exit 1
}
echo "  built in $(($(date +%s) - began)) s"
