package ramdisk

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/u-root/u-root/pkg/cpio"

	"firstlight/gateway-client/gatewaytest"
	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/gpt"
	"firstlight/ramdisk/internal/gpt/gpttest"
	"firstlight/ramdisk/internal/inventory"
	"firstlight/ramdisk/internal/systest"
)

// captureScript takes the place of the agent: it loads the drivers and prints what the agent reads of /sys and /proc.
const captureScript = `#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
/bin/busybox --install -s /bin
export PATH=/bin
for m in crc32c_generic crct10dif_generic crc64_rocksoft_generic; do modprobe -q $m; done
for round in 1 2 3; do
	cat /sys/bus/*/devices/*/modalias 2>/dev/null | sort -u | xargs -r modprobe -q -a 2>/dev/null
	modprobe -q -a sd_mod
	sleep 2
done
echo # the firmware left its last line open
file() { [ -f "$1" ] && [ -r "$1" ] && c=$(head -c 4096 "$1" 2>/dev/null | base64 -w 0) && echo "CAP F ${1#/} $c"; }
for l in /sys/block/* /sys/dev/block/* /sys/class/net/* /sys/class/dmi/* /sys/bus/pci/devices/*; do
	[ -L "$l" ] && echo "CAP L ${l#/} $(readlink "$l")"
done
for d in $(find /sys/devices -name block -type d) $(find /sys/devices -name 'nvme*n*' -type d) $(find /sys/devices -path '*/net/*' -maxdepth 9 -type d -name 'e*'); do
	for e in "$d" "$d"/*; do
		[ -L "$e" ] && continue
		[ -L "$e/device" ] && echo "CAP L ${e#/}/device $(readlink "$e/device")" && e2=$(readlink -f "$e/device") &&
			for l in driver subsystem; do [ -L "$e2/$l" ] && echo "CAP L ${e2#/}/$l $(readlink "$e2/$l")"; done
	done
done
for n in dev size removable ro hidden diskseq serial wwid nguid eui nsid model vendor type address vpd_pg80 partition start \
	logical_block_size physical_block_size rotational discard_max_bytes carrier speed class modalias \
	sys_vendor product_name product_serial product_uuid board_serial chassis_serial bios_vendor bios_version; do
	find /sys/devices -name $n -type f | while read f; do file "$f"; done
done
find /sys/devices -name holders -type d | while read d; do echo "CAP D ${d#/}"; done
for f in /proc/cpuinfo /proc/meminfo /proc/cmdline /proc/sys/kernel/osrelease /proc/sys/kernel/random/boot_id /proc/self/mountinfo; do file $f; done
echo CAPTURED
poweroff -f
`

// TestVMCapture looks at /sys and /proc of a machine with every kind of disk through the agent's eyes. With FIRSTLIGHT_CAPTURE=1 the
// captures of package systest are written anew.
func TestVMCapture(t *testing.T) {
	if os.Getenv("FIRSTLIGHT_VM_TEST") == "" {
		t.Skip("starts a virtual machine: set FIRSTLIGHT_VM_TEST=1 to run it (after make build)")
	}
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skipf("no QEMU here: %v", err)
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skipf("no static busybox here: %v", err)
	}
	v := &vm{t: t, g: gatewaytest.NewGateway(t), dir: t.TempDir()}
	v.buildRAMDisk()
	v.initrd(cpio.Directory("bin", 0o755), cpio.StaticFile("bin/busybox", string(busybox), 0o755), cpio.StaticFile("init", captureScript, 0o755))
	img := gpttest.Image(16<<11, 512, 128, 128, []gpttest.Partition{{Type: gpt.TypeESP, Name: "esp", First: 2048, Last: 4095}, {Type: gpt.TypeESP, Name: "more", First: 4096, Last: 8191}})
	if err := os.WriteFile(v.path("disk.raw"), img, 0o600); err != nil {
		t.Fatal(err)
	}
	v.launch(qemu, "-smbios", "type=1,manufacturer=QEMU,product=Rack Server,serial=To Be Filled By O.E.M.,uuid=03000200-0400-0500-0006-000700080009",
		"-drive", "if=none,id=d0,format=raw,file="+v.path("disk.raw"), "-device", "virtio-blk-pci,drive=d0,serial=S1",
		"-drive", "if=none,id=d1,format=raw,file="+v.extra("a"), "-device", "virtio-blk-pci,drive=d1,serial=S10",
		"-drive", "if=none,id=d2,format=raw,file="+v.extra("b"), "-device", "nvme,drive=d2,serial=NV-4K,logical_block_size=4096,physical_block_size=4096",
		"-drive", "if=none,id=d3,format=raw,file="+v.extra("c"), "-device", "ide-hd,drive=d3,bus=ide.0,serial=TWICE",
		"-drive", "if=none,id=d4,format=raw,file="+v.extra("d"), "-device", "virtio-scsi-pci", "-device", "scsi-hd,drive=d4,serial=TWICE,wwn=0x5000c500a1b2c3d4",
		"-drive", "if=none,id=d5,format=raw,readonly=on,file="+v.extra("e"), "-device", "virtio-blk-pci,drive=d5,serial=READONLY",
		"-drive", "if=none,id=d6,format=raw,file="+v.extra("f"), "-device", "virtio-blk-pci,drive=d6",
		"-device", "qemu-xhci", "-drive", "if=none,id=d7,format=raw,file="+v.extra("g"), "-device", "usb-storage,drive=d7,serial=STICK,removable=on",
		"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0,romfile=,mac=52:54:00:aa:00:01",
		"-netdev", "user,id=n1", "-device", "e1000e,netdev=n1,romfile=,mac=52:54:00:aa:00:02")
	v.wait("the capture", func() bool { return strings.Contains(v.serial(), "CAPTURED") })
	var lines []string
	for _, l := range strings.Split(strings.ReplaceAll(v.serial(), "\r", ""), "\n") {
		if c, ok := strings.CutPrefix(l, "CAP "); ok {
			lines = append(lines, c)
		}
	}
	text := systest.Tidy(lines)
	if os.Getenv("FIRSTLIGHT_CAPTURE") != "" {
		if err := os.WriteFile(filepath.Join("internal/systest/captures", "q35.txt"), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sys, proc, err := systest.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	disks, err := disk.Scan(sys, nil)
	if err != nil {
		t.Fatal(err)
	}
	var seen bytes.Buffer
	for _, d := range disks {
		if d.Kind() {
			seen.WriteString(d.String() + " " + d.Excluded + "\n")
		}
	}
	for _, want := range []string{"serial S1 (", "serial S10 (", "serial NV-4K (", "serial TWICE (QEMU HARDDISK, 8 MiB, ata, at PCI 0000:00:1f.2 ata", "serial TWICE (QEMU HARDDISK, 8 MiB, scsi, at PCI 0000:00:"} {
		if !strings.Contains(seen.String(), want) {
			t.Errorf("the scan does not show %q:\n%s", want, seen.String())
		}
	}
	if macs := inventory.ReadClaims(sys, proc).MACs; len(macs) != 2 {
		t.Errorf("got cards %q, want two", macs)
	}
}
