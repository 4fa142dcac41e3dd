# Functions of the demo system's scripts, for its initial RAM disk and its root. SYS, DEV and PROC are where the kernel's file
# systems are; a test sets them.
SYS=${SYS:-/sys}
DEV=${DEV:-/dev}
PROC=${PROC:-/proc}

# drivers loads what the devices ask for that are visible now; a bus driver makes more of them visible.
drivers() {
	cat "$SYS"/bus/*/devices/*/modalias 2>/dev/null | sort -u | xargs -r modprobe -q -a 2>/dev/null
}

# guid_bytes prints a GUID's 16 bytes in the order of the disk (UEFI specification, appendix A: the first three groups swapped).
guid_bytes() {
	echo "$1" | tr 'A-F' 'a-f' | sed 's/\(..\)\(..\)\(..\)\(..\)-\(..\)\(..\)-\(..\)\(..\)-/\4\3\2\1\6\5\8\7/; s/-//g'
}

# partuuid_bytes prints the 16 bytes of the GPT entry of partition $1 (its directory in /sys). The table is at its usual place:
# entries of 128 bytes from LBA 2, which is how the image was written.
partuuid_bytes() {
	disk=${1%/*}
	block=$(cat "$disk/queue/logical_block_size") || return
	number=$(cat "$1/partition") || return
	dd if="$DEV/${disk##*/}" bs=16 count=1 skip=$(((2 * block + (number - 1) * 128 + 16) / 16)) 2>/dev/null |
		hexdump -v -e '1/1 "%02x"'
}

# find_root prints the names of all partitions whose unique GUID is $1.
find_root() {
	want=$(guid_bytes "$1")
	for p in "$SYS"/block/*/*/partition; do
		[ -e "$p" ] || continue
		p=${p%/partition}
		[ "$(partuuid_bytes "$p")" = "$want" ] && echo "${p##*/}"
	done
}

# root_disk prints the directory in /sys of the disk that holds the root file system.
root_disk() {
	numbers=$(awk '$5 == "/" && $3 !~ /^0:/ { n = $3 } END { print n }' "$PROC/self/mountinfo")
	part=$(readlink -f "$SYS/dev/block/$numbers")
	if [ -e "$part/partition" ]; then
		echo "${part%/*}"
	else
		echo "$part"
	fi
}

# serial prints the serial number of the disk $1: virtio has it at the disk, NVMe at its controller, SCSI and SATA in VPD page 0x80
# (a 4-byte header, then text).
serial() {
	for f in "$1/serial" "$1/device/serial"; do
		[ -r "$f" ] && cat "$f" && return
	done
	[ -r "$1/device/vpd_pg80" ] && tail -c +5 "$1/device/vpd_pg80"
}
