#!/usr/bin/env bash
# Runs every fuzz target of the tree for a few seconds each, two at a time, and names those that fail.
# FUZZTIME (Go duration, default 10s) is the time for each. A package's program is built once for all of its targets.
set -euo pipefail
cd "$(dirname "$0")/.."
export FUZZTIME="${FUZZTIME:-10s}" FUZZDIR
FUZZDIR="$(mktemp -d)"
trap 'rm -rf "$FUZZDIR"' EXIT

# fuzz_package DIR TARGET...: the target's inputs that fail are under DIR/testdata/fuzz, as `go test -fuzz` leaves them. Time that is
# up while an input is made smaller is reported as a failure that names no input; that is none.
fuzz_package() {
  local dir=$1 program="$FUZZDIR/${1//\//_}" name
  shift
  go test -c -fuzz=. -o "$program" "./$dir" || { echo "fuzz: $dir does not build" >&2; return 1; }
  for name in "$@"; do
    (cd "$dir" && "$program" -test.run='^$' -test.fuzz="^$name\$" -test.fuzztime="$FUZZTIME" -test.parallel=1 -test.timeout=10m \
      -test.fuzzcachedir="$FUZZDIR/cache/$name") >"$program.log" 2>&1 || time_was_up "$program.log" ||
      { cat "$program.log"; echo "fuzz: $name in $dir failed; its input is under testdata/fuzz there" >&2; return 1; }
    echo "fuzz: $name in $dir ok, $(grep -oE 'execs: [0-9]+' "$program.log" | tail -1)"
  done
  rm -f "$program"
}

time_was_up() {
  grep -q '^ *context deadline exceeded$' "$1" && ! grep -qiE 'failing input|panic|fatal error|_test\.go:' "$1"
}
export -f fuzz_package time_was_up

targets="$(git ls-files -co --exclude-standard '*_test.go' | sort | xargs grep -HoE '^func Fuzz[A-Za-z0-9_]+' | sed -E 's,/[^/:]+:func , ,')"
n="$(wc -l <<<"$targets")"
[ "$n" -gt 1 ] || { echo "fuzz: no targets found" >&2; exit 1; }
# One line a package: its folder, then its targets.
awk '{t[$1]=t[$1] " " $2} END {for (d in t) print d t[d]}' <<<"$targets" | sort |
  xargs -P2 -I{} bash -c 'fuzz_package $0' '{}' || { echo "fuzz: a target failed, see above" >&2; exit 1; }
echo "fuzz: $n targets, $FUZZTIME each"
