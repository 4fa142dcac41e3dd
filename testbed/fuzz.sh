#!/usr/bin/env bash
# Runs every fuzz target of the tree for a few seconds each, one after the other, and names the one that fails.
# FUZZTIME (Go duration, default 10s) is the time for each.
set -euo pipefail
cd "$(dirname "$0")/.."
n=0
while IFS=: read -r file name; do
  go test -run='^$' -fuzz="^$name\$" -fuzztime="${FUZZTIME:-10s}" -parallel=2 "./$(dirname "$file")" >bin/fuzz.log 2>&1 ||
    { cat bin/fuzz.log; echo "fuzz: $name in $(dirname "$file") failed; its input is under testdata/fuzz there" >&2; exit 1; }
  n=$((n + 1))
  echo "fuzz: $name ok"
done < <(git ls-files -co --exclude-standard '*_test.go' | sort | xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed 's/:func /:/')
echo "fuzz: $n targets, ${FUZZTIME:-10s} each"
