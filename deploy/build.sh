#!/bin/sh
# Builds a program of ./cmd into build/, showing that it moves: build.sh NAME. The first build of
# gpupool compiles the embedded Temporal server, which takes minutes; a warm one takes seconds.
set -eu
name=$1
mkdir -p build

stale=$(go list -deps -f '{{if .Stale}}x{{end}}' "./cmd/$name" 2>/dev/null | grep -c x || true)
if [ "$stale" -gt 200 ]; then
	echo "First build of $name: $stale packages, the Temporal server among them. It takes 2 to 9 minutes on two cores, and only once."
fi

# go build -v names each package as it is compiled; everything else it says is an error.
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
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
