#!/usr/bin/env bash
# Does what the README tells a new user, where nothing of this machine helps: in a bare Debian 12 root (minbase, and only
# ca-certificates, git, make) with a new clone of HEAD. Of tools it borrows the Go tree alone, read-only; of settings, those
# that say where packages come from. If that built anything it builds once more, which must be quick; then it looks at what
# stayed behind.
#
#   FRESH_COMMANDS  what to run in the clone, one command a line; "exit=1 CMD" for a command that must end with 1
#   FRESH_DIR       where the root is made (default /var/tmp); 10 GB free
#   FRESH_KEEP=1    keep the root when something fails
#   FRESH_TIMEOUT   the longest that one command may take (default 2h)
#
# Everything runs in its own mount and process namespace: when the script ends, however it ends, so do its mounts and its
# processes, and one folder is left to remove. Logs stay in bin/fresh; so does the bare root, for a week.
set -euo pipefail

readonly default_commands=$'DEMO_EXIT=1 make demo\nmake test'
readonly packages=ca-certificates,git,make
readonly base_days=7        # how long the bare root may be used again
readonly space_kb=10000000  # clone, Debian packages, module and build cache
readonly again_s=120        # the most that make build may take when all is built

say() { printf 'fresh: %s  %s\n' "$(date +%T)" "$*"; }
die() { printf 'fresh: %s\n' "$*" >&2; exit 1; }

# ---- outside: checks, the folder, the namespaces, removal ----

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$tree/bin/fresh
base=$out/base.tar

read_commands() { # fills wanted[] and commands[]
  wanted=() commands=()
  local line
  while IFS= read -r line; do
    [ -n "${line// /}" ] || continue
    if [[ $line =~ ^exit=([0-9]+)\ +(.*)$ ]]; then
      wanted+=("${BASH_REMATCH[1]}") commands+=("${BASH_REMATCH[2]}")
    else
      wanted+=(0) commands+=("$line")
    fi
  done <<<"${FRESH_COMMANDS:-$default_commands}"
  [ ${#commands[@]} -gt 0 ] || die "FRESH_COMMANDS names no command"
}

check_targets() { # a target that HEAD lacks is better known now than in ten minutes
  local c makefile
  makefile=$(git -C "$tree" show HEAD:Makefile)
  for c in "${commands[@]}"; do
    if [[ $c =~ (^|[ ;&])make\ +([a-z][a-z-]*) ]] && ! grep -q "^${BASH_REMATCH[2]}:" <<<"$makefile"; then
      die "'$c': the Makefile of HEAD has no target ${BASH_REMATCH[2]}; commit it, or name other commands in FRESH_COMMANDS"
    fi
  done
}

check_host() {
  [ "$(id -u)" = 0 ] || die "root is needed (namespaces, mounts, chroot): run it as root"
  command -v go >/dev/null || die "PATH has no go: its tree is the one tool that the fresh root borrows"
  git -C "$tree" rev-parse -q --verify HEAD >/dev/null || die "$tree has no commit to clone"
  local free
  free=$(df --output=avail -k "$1" | tail -n 1)
  [ "$free" -ge "$space_kb" ] || die "$1 has $((free / 1000000)) GB free and about $((space_kb / 1000000)) are needed: name another folder with FRESH_DIR"
}

install_debootstrap() {
  command -v debootstrap >/dev/null && return
  command -v apt-get >/dev/null || die "debootstrap is missing and so is apt-get: install debootstrap"
  say "installing debootstrap"
  { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends debootstrap debian-archive-keyring; } \
    >"$out/debootstrap.log" 2>&1 || { cat "$out/debootstrap.log" >&2; die "debootstrap could not be installed; the lines above say why"; }
}

# A return in a trap must say its status: without one it would be that of the command before the trap.
# shellcheck disable=SC2317  # called from a trap
remove_work() { # <status>
  if [ "$1" != 0 ] && [ "${FRESH_KEEP:-}" = 1 ]; then say "kept $work (FRESH_KEEP=1)"; return 0; fi
  if grep -qF " $work/" /proc/self/mountinfo; then
    printf 'fresh: %s stays: something is mounted under it, see /proc/self/mountinfo\n' "$work" >&2
    return 1
  fi
  local try
  for try in 1 2 3 4 5; do # processes of a namespace that was killed may still be going
    rm -rf --one-file-system "$work" 2>"$out/rm.log" && { rm -f "$out/rm.log"; return 0; }
    sleep "$try"
  done
  cat "$out/rm.log" >&2
  return 1
}

# shellcheck disable=SC2317  # called from a trap
finish() {
  local status=$?
  trap '' INT TERM HUP
  remove_work "$status" || status=1
  exit "$status"
}

outside() {
  local parent=${FRESH_DIR:-/var/tmp} status=0
  check_host "$parent"
  read_commands
  check_targets
  mkdir -p "$out"
  rm -f "$out"/*.log
  install_debootstrap
  [ -z "$(git -C "$tree" status --porcelain)" ] || say "what is not committed is left out"
  work=$(mktemp -d "$(realpath "$parent")/firstlight-fresh.XXXXXX")
  trap finish EXIT
  # unshare holds back INT and TERM; killed, it takes the whole process namespace with it.
  setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
    bash "${BASH_SOURCE[0]}" --inside "$work" </dev/null &
  child=$!
  trap 'kill -KILL "$child"; wait "$child" 2>/dev/null || true; exit 130' INT TERM HUP
  wait "$child" || status=$?
  exit "$status"
}

# ---- inside the namespaces: the root ----

sources() { # this machine's sources of Debian 12, as lines of sources.list
  # shellcheck disable=SC2016  # apt fills these in
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null |
    grep -E ' bookworm(-[a-z]+)? ' | sort -u || true
}

make_base() {
  local mirror proxy=
  mirror=$(sources | awk '$3 == "bookworm" { print $2; exit }')
  if [ -z "${http_proxy:-}" ]; then
    eval "$(apt-config shell proxy Acquire::http::Proxy)"
    [ -z "$proxy" ] || export http_proxy=$proxy
  fi
  say "making the bare root (debootstrap, minbase and $packages)"
  debootstrap --variant=minbase --include="$packages" bookworm "$root" "${mirror:-http://deb.debian.org/debian}" \
    >"$out/debootstrap.log" 2>&1 || { tail -n 20 "$out/debootstrap.log" >&2; die "debootstrap did not succeed; the lines above and bin/fresh/debootstrap.log say why"; }
  chroot "$root" apt-get clean
  tar --one-file-system --numeric-owner -C "$root" -cf "$base.part" .
  mv "$base.part" "$base"
}

make_root() {
  mkdir "$root"
  # A root that was made by another version of this script may hold other packages.
  if [ "$base" -nt "${BASH_SOURCE[0]}" ] && [ -n "$(find "$base" -mtime -"$base_days")" ]; then
    say "unpacking the bare root made $(date -r "$base" +'%F %T')"
    tar --numeric-owner -C "$root" -xpf "$base"
  else
    make_base
  fi
}

copy_settings() { # where packages come from and whom to believe; nothing else of this machine
  local list ca=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt} name v
  list=$(sources)
  [ -z "$list" ] || echo "$list" >"$root/etc/apt/sources.list"
  apt-config dump | grep -E '^Acquire::(https?|Retries|ForceIPv[46]|Check-Valid-Until|Check-Date)\b' >"$root/etc/apt/apt.conf.d/90host" || true
  [ ! -f "$ca" ] || cp -L "$ca" "$root/etc/ssl/certs/ca-certificates.crt"
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  settings=()
  for v in GOPROXY GOSUMDB GONOSUMDB GONOPROXY GOPRIVATE GOINSECURE GOTOOLCHAIN; do settings+=("$v=$(go env "$v")"); done
  for v in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do [ -z "${!v:-}" ] || settings+=("$v=${!v}"); done
  if command -v npm >/dev/null; then
    name=$(npm config get registry 2>/dev/null) || name=
    case $name in http*) settings+=("npm_config_registry=$name") ;; esac
  fi
}

mount_all() {
  mount --rbind "$root" "$root" # so that "/" is a mount point in there: ip netns exec needs it
  mkdir -p "$root/usr/local/go"
  mount --bind "$(go env GOROOT)" "$root/usr/local/go"
  mount -o remount,bind,ro "$root/usr/local/go"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mkdir "$root/run/lock"
}

enter() { # <shell command>, as root of the fresh machine, in its home
  timeout -k 60 "${FRESH_TIMEOUT:-2h}" chroot "$root" /usr/bin/env -i -C /root HOME=/root USER=root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${settings[@]}" bash -c "$1"
}

clone() {
  git -C "$tree" bundle create -q "$root/tmp/firstlight.bundle" HEAD
  enter 'git clone -q /tmp/firstlight.bundle firstlight' 2>"$out/clone.log" || { cat "$out/clone.log" >&2; die "the clone did not succeed; the lines above say why"; }
  rm "$root/tmp/firstlight.bundle"
  say "cloned $(enter 'git -C firstlight log -1 --format="%h %s"')"
}

# ---- inside: the commands ----

run_one() { # <wanted status> <command>; sets seconds and adds a line to summary
  local status=0 pid start=$SECONDS log verdict=ok
  number=$((number + 1))
  log=$out/$number.log
  say "\$ $2"
  enter "cd firstlight && $2" >"$log" 2>&1 </dev/null &
  pid=$!
  # Not a pipe: a process that a command leaves behind would hold its end, and this would wait for it.
  tail -n +1 -s 0.5 -f --pid="$pid" "$log" &
  wait "$pid" || status=$?
  wait $!
  seconds=$((SECONDS - start))
  [ "$status" = "$1" ] || { verdict="WRONG, wanted $1"; failed=1; }
  [ "$status" != 124 ] || verdict="$verdict (stopped after ${FRESH_TIMEOUT:-2h})"
  say "$2: exit $status after $seconds s, log in bin/fresh/$number.log"
  summary+=("$(printf '%6d s  exit %-3s %s  (%s)' "$seconds" "$status" "$2" "$verdict")")
}

run_all() {
  local i
  for i in "${!commands[@]}"; do
    if [ "$failed" != 0 ]; then summary+=("     -    not run  ${commands[i]}"); continue; fi
    run_one "${wanted[i]}" "${commands[i]}"
  done
  [ "$failed" = 0 ] && [[ ${commands[*]} =~ make\ +(build|demo|test) ]] || return 0
  say "once more, with everything built"
  run_one 0 "make build"
  [ "$seconds" -le "$again_s" ] || { summary+=("          make build took $seconds s with everything built; at most $again_s are right"); failed=1; }
}

links() { ip -o link | awk -F': ' '{ sub(/@.*/, "", $2); print $2 }' | sort; }

processes() { # of this process namespace, but for this shell, which is its first, and the subshell that asks
  local p line
  for p in /proc/[0-9]*; do
    case $p in /proc/1 | "/proc/$BASHPID") continue ;; esac
    line=$(tr '\0' ' ' <"$p/cmdline") || continue # gone by now
    [ -z "$line" ] || echo "process ${p##*/}: $line"
  done 2>/dev/null
}

leftovers() { # what the commands should have taken away: namespaces, links, processes
  local found=() name try
  for try in 1 2 3 4 5 6 7 8 9 10; do # a process may be on its way out
    [ -n "$(processes)" ] || break
    sleep 1
  done
  mapfile -t found < <(processes)
  for name in "$root"/run/netns/*; do [ ! -e "$name" ] || found+=("network namespace ${name##*/}"); done
  for name in $(comm -13 <(echo "$links_before") <(links)); do found+=("network link $name"); done
  for name in "${found[@]}"; do summary+=("          left behind: $name"); failed=1; done
  [ ${#found[@]} -gt 0 ] || summary+=("          nothing left behind: no network namespace, link or process")
}

inside() {
  work=$1 root=$1/root failed=0 number=0 summary=()
  local line
  read_commands
  make_root
  copy_settings
  mount_all
  clone
  links_before=$(links)
  run_all
  leftovers
  say "summary, $SECONDS s in all"
  for line in "${summary[@]}"; do echo "fresh: $line"; done
  exit "$failed"
}

if [ "${1:-}" = --inside ]; then inside "$2"; else outside; fi
