package qemu

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func full() Config {
	return Config{
		Name: "m0", Dir: "/lab/m0", Firmware: "uefi", Tap: "tap0", MAC: "52:54:00:77:00:01",
		UUID: "11111111-2222-3333-4444-555555555555", RTCBase: "2000-01-01T00:00:00",
		Disks: []Disk{
			{Path: "/lab/m0/a,b.raw", Serial: "FL-0001", Driver: "virtio-blk"},
			{Path: "/lab/m0/c.raw", Serial: "FL-0002", Driver: "nvme"},
			{Path: "/lab/m0/d.raw", Serial: "FL-0003", Driver: "scsi", ReadOnly: true},
			{Path: "/lab/m0/e.raw", Serial: "FL-0004", Driver: "ahci"},
		},
		BootFirst: "pxe", Accel: "tcg",
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	args, err := arguments(full())
	if err != nil {
		t.Fatal(err)
	}
	line := " " + strings.Join(args, " ") + " "
	for _, want := range []string{
		" -machine q35,graphics=off ", " -accel tcg -cpu max -smp 1 -m 1024 ", " -rtc base=2000-01-01T00:00:00 ",
		" -smbios type=1,manufacturer=Firstlight,product=Testbed,serial=m0 ",
		" -uuid 11111111-2222-3333-4444-555555555555 ",
		" -chardev file,id=serial,append=on,path=/lab/m0/serial.log ",
		" -drive if=pflash,unit=1,format=raw,file=/lab/m0/VARS.fd ",
		" -fw_cfg name=opt/org.tianocore/IPv6PXESupport,string=no ",
		" -device virtio-net-pci,netdev=net0,mac=52:54:00:77:00:01,bootindex=1,romfile= ",
		" -drive if=none,id=disk0,format=raw,cache=writeback,discard=unmap,file=/lab/m0/a,,b.raw ",
		" -device virtio-blk-pci,drive=disk0,serial=FL-0001,bootindex=2 ",
		" -device nvme,drive=disk1,serial=FL-0002,bootindex=3 ",
		" file=/lab/m0/d.raw,readonly=on ",
		" -device virtio-scsi-pci,id=scsi2 -device scsi-hd,bus=scsi2.0,drive=disk2,serial=FL-0003,bootindex=4 ",
		" -device ide-hd,bus=ide.3,drive=disk3,serial=FL-0004,bootindex=5 ",
	} {
		if !strings.Contains(line, strings.TrimPrefix(want, " file")) {
			t.Errorf("command line has no %q:\n%s", want, line)
		}
	}
	if strings.Contains(line, "snapshot") {
		t.Errorf("command line has a snapshot, which never writes the file:\n%s", line)
	}
}

func TestArgumentsBootOrderAndFirmware(t *testing.T) {
	t.Parallel()
	cfg := full()
	cfg.BootFirst, cfg.Firmware, cfg.RTCBase = "disk", "bios", ""
	args, err := arguments(cfg)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Join(args, " ")
	for _, want := range []string{"drive=disk0,serial=FL-0001,bootindex=1", "mac=52:54:00:77:00:01,bootindex=5", "-rtc base=utc"} {
		if !strings.Contains(line, want) {
			t.Errorf("command line has no %q:\n%s", want, line)
		}
	}
	for _, not := range []string{"pflash", "romfile"} {
		if strings.Contains(line, not) {
			t.Errorf("command line of a BIOS machine has %q:\n%s", not, line)
		}
	}
}

func TestArgumentsRefuse(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*Config){
		"no folder":      func(c *Config) { c.Dir = "" },
		"firmware":       func(c *Config) { c.Firmware = "coreboot" },
		"boot device":    func(c *Config) { c.BootFirst = "floppy" },
		"clock":          func(c *Config) { c.RTCBase = "yesterday,clock=vm" },
		"driver":         func(c *Config) { c.Disks[0].Driver = "mfm" },
		"no serial":      func(c *Config) { c.Disks[0].Serial = "" },
		"long serial":    func(c *Config) { c.Disks[0].Serial = strings.Repeat("S", maxSerial+1) },
		"comma":          func(c *Config) { c.Disks[0].Serial = "A,readonly=on" },
		"read-only ahci": func(c *Config) { c.Disks[3].ReadOnly = true },
	} {
		cfg := full()
		spoil(&cfg)
		if args, err := arguments(cfg); err == nil {
			t.Errorf("%s: got %v, want an error", name, args)
		}
	}
}

func TestParseBlockStats(t *testing.T) {
	t.Parallel()
	answer := []byte(`[{"device":"pflash0","stats":{"wr_bytes":9}},{"device":"disk0","qdev":"/x","stats":{"rd_bytes":512,"wr_bytes":4096,"rd_operations":1,"wr_operations":2,"flush_operations":3,"unmap_bytes":8192,"unmap_operations":4,"wr_highest_offset":1048576}}]`)
	got, err := parseBlockStats(answer, []Disk{{Serial: "S"}})
	want := BlockStat{Serial: "S", ReadBytes: 512, WriteBytes: 4096, ReadOps: 1, WriteOps: 2, FlushOps: 3, UnmapBytes: 8192, UnmapOps: 4, HighestWrite: 1 << 20}
	if err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if got, err := parseBlockStats(answer, []Disk{{Serial: "S"}, {Serial: "T"}}); err == nil {
		t.Errorf("a disk without counters: got %+v, want an error", got)
	}
}

func TestWaitSerial(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	path := filepath.Join(t.TempDir(), SerialLog)
	re := regexp.MustCompile(`boot-id=([0-9]+)\r?\n`)
	type answer struct {
		match []string
		end   int64
		err   error
	}
	got := make(chan answer)
	go func() {
		match, end, err := WaitSerial(ctx, path, re, 0)
		got <- answer{match, end, err}
	}()
	write := func(s string) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	write("first\r\nboot-id=")
	write("17\r\nmore boot-id=18\r\n")
	a := <-got
	if a.err != nil || len(a.match) != 2 || a.match[1] != "17" {
		t.Fatalf("first: got %q, %v; want 17", a.match, a.err)
	}
	match, end, err := WaitSerial(ctx, path, re, a.end)
	if err != nil || match[1] != "18" || end <= a.end {
		t.Errorf("from there on: got %q, %d, %v; want 18", match, end, err)
	}
	write("stuck here\r\n")
	short, cancel := context.WithTimeout(ctx, 120*time.Millisecond)
	defer cancel()
	if _, _, err := WaitSerial(short, path, re, end); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `last line: "stuck here"`) {
		t.Errorf("no match: got %v, want %v with the last line", err, context.DeadlineExceeded)
	}
}

// TestProbeGuestRuns proves that the probe can succeed: under software
// emulation, which works everywhere.
func TestProbeGuestRuns(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("reason: -short; the probe starts QEMU")
	}
	if _, err := exec.LookPath(binary); err != nil {
		t.Skipf("reason: %s is not installed", binary)
	}
	if !probe(t.Context(), "tcg") {
		t.Error("the probe guest did not run under tcg")
	}
	if probe(t.Context(), "no-such-accelerator") {
		t.Error("the probe believes in an accelerator that does not exist")
	}
	start := time.Now()
	first := Accel(t.Context())
	if took := time.Since(start); took > probeLimit+time.Second {
		t.Errorf("Accel took %s, want at most %s", took, probeLimit)
	}
	if second := Accel(t.Context()); first != second || (first != "tcg" && first != "kvm") {
		t.Errorf("Accel: got %q, then %q", first, second)
	}
}

func TestProbeDiskIsABootSector(t *testing.T) {
	t.Parallel()
	d := probeDisk()
	if len(d) != 1<<20 || d[510] != 0x55 || d[511] != 0xaa || !strings.Contains(string(d[:510]), probeText+"\x00") {
		t.Errorf("probe disk: %d bytes, signature %x", len(d), d[510:512])
	}
}
