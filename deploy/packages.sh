#!/bin/sh
# Installs the Debian packages of packages.txt that are missing; with an argument, as in `packages.sh netns`, those of
# packages-netns.txt. As root only: otherwise it says what is missing and goes on, since the tests that need it skip
# with a reason.
set -eu
list=$(dirname "$0")/packages${1:+-$1}.txt

missing=
while read -r package sign; do
	case $package in '' | '#'*) continue ;; esac
	case $sign in
	/*) found=$(ls -d $sign 2>/dev/null | head -n 1) ;;
	*) found=$(command -v "$sign" || true) ;;
	esac
	[ -n "$found" ] || missing="$missing $package"
done <"$list"

[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "missing for some tests, which will be skipped:$missing" >&2
	echo "to install them: sudo apt-get install --no-install-recommends$missing" >&2
	exit 0
fi

# Services must not start: the tests run their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod +x $policy
	trap 'rm -f $policy' EXIT
fi

install() {
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends -o Acquire::Retries=3 $missing >"$log" 2>&1
}
log=$(mktemp)
echo "installing for the tests:$missing"
# Package lists may be absent or old; they are fetched when an install fails without them.
if ! install && ! { apt-get update -qq && install; }; then
	tail -n 20 "$log" >&2
	echo "could not install:$missing; the tests that need them will be skipped" >&2
fi
rm -f "$log"
