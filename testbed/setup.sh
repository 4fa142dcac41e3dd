#!/usr/bin/env bash
# Installs what Firstlight needs on Debian 12: packages, and the kernel that guests boot (unpacked, not installed).
# Says nothing and returns at once when all is there. Go 1.26.7 is the one prerequisite that it does not install.
set -euo pipefail
cd "$(dirname "$0")/.."

have_go=$( (command -v go >/dev/null && GOTOOLCHAIN=local go env GOVERSION) 2>/dev/null | sed 's/^go//' || true)
if [ -z "$have_go" ] || [ "$(printf '%s\n1.26.7\n' "$have_go" | sort -V | head -n 1)" != 1.26.7 ]; then
  echo "setup: Go 1.26.7 or newer is needed and PATH has ${have_go:-none}: install it from https://go.dev/dl/ and run this again" >&2
  exit 1
fi

packages=(
  gcc libc6-dev                                 # gpu-probe (cgo)
  protobuf-compiler libprotobuf-dev             # make generate
  qemu-system-x86 qemu-utils ovmf ipxe          # guests and their boot programs
  dnsmasq-base iproute2                         # the segment: a site's own DHCP server, namespaces
  e2fsprogs dosfstools mtools gdisk zstd        # the demo image, and independent readers of it
  systemd-boot-efi busybox-static               # boot loader and user land of the demo image
  grub-common grub-pc-bin                       # its boot loader where the firmware is a BIOS
  openssl python3-cryptography                  # independent test vectors
  chromium fonts-dejavu-core                    # the page is tested in a real browser
)
missing=()
for p in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${Status}' "$p" 2>/dev/null)" = "install ok installed" ] || missing+=("$p")
done

kernel=bin/inputs/kernel
if [ ${#missing[@]} -eq 0 ] && [ -f "$kernel/.complete" ]; then exit 0; fi

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
    echo "setup: root is needed to install: ${missing[*]}" >&2; exit 1; fi
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quiet() { "$@" >"$log" 2>&1 || { cat "$log" >&2; echo "setup: '$*' did not succeed; the lines above say why" >&2; exit 1; }; }

quiet as_root apt-get update -q
if [ ${#missing[@]} -gt 0 ]; then
  echo "setup: installing ${missing[*]}"
  quiet as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
fi
if [ ! -f "$kernel/.complete" ]; then
  # The metapackage names the newest kernel; its modules are not signed for another one, so both come from one package.
  image=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/{print $2; exit}')
  [ -n "$image" ] || { echo "setup: linux-image-amd64 names no kernel package: check the apt sources for Debian 12" >&2; exit 1; }
  echo "setup: fetching $image (70 MB)"
  rm -rf "$kernel" && mkdir -p "$kernel"
  work=$(mktemp -d)
  chmod 755 "$work"
  (cd "$work" && quiet apt-get download -q "$image")
  quiet dpkg -x "$work"/*.deb "$kernel"
  rm -rf "$work"
  touch "$kernel/.complete"
fi
