#!/bin/bash
# Builds kubeup, a Kubernetes control plane for tests, from the Go module proxy into the user's cache, and prints its path.
# It is a module of its own: Kubernetes pins its libraries, and ours are others. The first build takes ten minutes of
# processor time or more; the next finds it there.
set -euo pipefail
VERSION=v1.37.2
HERE=$(cd "$(dirname "$0")" && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/gpupool
OUT=$CACHE/kubeup-$VERSION-$(cat "$HERE/main.go.txt" "$HERE/build.sh" | sha256sum | cut -c1-12)
if [ "${1:-}" = --path ]; then echo "$OUT"; exit 0; fi
if [ -x "$OUT" ]; then echo "$OUT"; exit 0; fi

echo "building a Kubernetes $VERSION control plane for the tests, once; this takes long" >&2
mkdir -p "$CACHE"
WORK=$(mktemp -d "$CACHE/kubeup-XXXXXX")
trap 'rm -rf "$WORK"' EXIT
cd "$WORK"
export GOFLAGS= GOWORK=off
printf 'module kubeup\n' >go.mod
go mod download k8s.io/kubernetes@$VERSION
MOD=$(go env GOMODCACHE)/cache/download/k8s.io/kubernetes/@v/$VERSION.mod
{ # Kubernetes' own requirements as they are, with its staging modules at their published versions: v1.37.2 is v0.37.2 there
	printf 'module kubeup\n\n%s\n\n' "$(grep -E '^go ' "$MOD")"
	grep -E '^godebug' "$MOD" || true
	printf 'require k8s.io/kubernetes %s\n' $VERSION
	sed -n '/^require (/,/^)/p' "$MOD" | sed -E "s/^(\tk8s.io\/[a-z-]+) v0\.0\.0( .*)?$/\1 v0${VERSION#v1}\2/"
	printf '\nreplace (\n'
	sed -n '/^replace (/,/^)/p' "$MOD" | sed -nE "s#^\t(k8s.io/[a-z-]+) => \./staging.*#\t\1 => \1 v0${VERSION#v1}#p"
	printf ')\n'
} >go.mod
cp "$HERE/main.go.txt" main.go
go mod tidy >/dev/null 2>tidy.log || { cat tidy.log >&2; exit 1; }
P=k8s.io/component-base/version
MINOR=${VERSION#v1.}
nice go build -trimpath -ldflags "-s -w -X $P.gitVersion=$VERSION -X $P.gitMajor=1 -X $P.gitMinor=${MINOR%.*} -X $P.gitTreeState=clean -X $P.gitCommit=0000000 -X $P.buildDate=2026-01-01T00:00:00Z" -o kubeup .
mv kubeup "$OUT"
echo "$OUT"
