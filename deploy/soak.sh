#!/bin/bash
# Runs every fuzz target and property test for its share of the given seconds: soak.sh 300. What a
# fuzz target finds is kept by go in its package's testdata: commit it with the fix.
set -euo pipefail
seconds=${1:?how many seconds}

# "folder FuzzName" for each target; the folders with rapid's property tests.
mapfile -t targets < <(grep -rHoE '^func Fuzz[A-Za-z0-9_]+' --include='*_test.go' . | sed -E 's|/[^/]*:func | |' | sort -u)
mapfile -t properties < <(grep -rlE 'rapid\.(Check|MakeCheck)' --include='*_test.go' . | xargs -r -n1 dirname | sort -u)

parts=$((${#targets[@]} + ${#properties[@]}))
[ "$parts" -gt 0 ] || { echo "no fuzz target and no property test found" >&2; exit 1; }
mkdir -p build
share=$((seconds / parts > 0 ? seconds / parts : 1))
echo "${#targets[@]} fuzz targets and ${#properties[@]} packages with property tests, ${share}s each"

failed=0
for target in "${targets[@]}"; do
	read -r folder name <<<"$target"
	go test "$folder" -run '^$' -fuzz "^$name\$" -fuzztime "${share}s" || failed=1
done
for folder in "${properties[@]}"; do
	# Fresh seeds in every round: rapid's default is one per run.
	end=$((SECONDS + share)) rounds=0
	go test -c -o build/soak.test "$folder" || { failed=1; continue; }
	while [ "$rounds" -eq 0 ] || [ "$SECONDS" -lt "$end" ]; do
		(cd "$folder" && timeout 600 "$OLDPWD/build/soak.test" -rapid.checks 500 >"$OLDPWD/build/soak.log" 2>&1) || {
			cat build/soak.log
			failed=1
			break
		}
		rounds=$((rounds + 1))
	done
	echo "$folder: $rounds rounds of property tests"
done
exit $failed
