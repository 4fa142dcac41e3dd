#!/usr/bin/env bash
# Unpacks the peers of `make bench` from Debian's packages into bin/peers: tftpd-hpa, atftpd, nginx, dnsmasq. They are unpacked, not
# installed: the two TFTP servers conflict, and an installed one starts as a service. Libraries that they need are installed.
# Says nothing and returns at once when all is there.
set -euo pipefail
cd "$(dirname "$0")/../.."

peers=(tftpd-hpa atftpd nginx dnsmasq-base)
libraries=(libwrap0 libpcre2-8-0)
into=${1:-bin/peers}
if [ -f "$into/.complete" ]; then exit 0; fi

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
    echo "bench: root is needed to install ${libraries[*]}" >&2; exit 1; fi
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
quiet() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; echo "bench: '$*' did not succeed; the lines above say why" >&2; exit 1; }; }

echo "bench: unpacking ${peers[*]}"
quiet as_root apt-get update -q
quiet as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${libraries[@]}"
mkdir "$work/debs"
chmod 777 "$work/debs"
(cd "$work/debs" && quiet apt-get download -q "${peers[@]}")
rm -rf "$into" && mkdir -p "$into"
for p in "${peers[@]}"; do
  quiet dpkg -x "$work/debs/${p}_"*.deb "$into/$p" # a folder each: two have a program of one name
  dpkg-deb -f "$work/debs/${p}_"*.deb Package Version | awk '{printf "%s%s", $2, NR % 2 ? " " : "\n"}' >>"$into/versions"
done
touch "$into/.complete"
