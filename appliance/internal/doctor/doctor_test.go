package doctor

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"firstlight/appliance/internal/config"
	"firstlight/appliance/internal/store"
)

type clock struct {
	now  time.Time
	sync bool
	err  error
}

func (c clock) Now() time.Time                             { return c.now }
func (c clock) Synchronised() (bool, time.Duration, error) { return c.sync, time.Millisecond, c.err }

type disk struct {
	space Space
	sync  time.Duration
	err   error
}

func (d disk) Space(string) (Space, error)        { return d.space, d.err }
func (d disk) Sync(string) (time.Duration, error) { return d.sync, d.err }

type network struct {
	i     Interface
	err   error
	route string
}

func (n network) Interface(string) (Interface, error) { return n.i, n.err }
func (n network) Route(netip.Addr) (string, error)    { return n.route, nil }

// one returns the check whose name begins so.
func one(t *testing.T, checks []Check, name string) Check {
	t.Helper()
	i := slices.IndexFunc(checks, func(c Check) bool { return strings.HasPrefix(c.Name, name) })
	if i < 0 {
		t.Fatalf("no check %q in %+v", name, checks)
	}
	return checks[i]
}

// holds compares a check with what it must say; a check that is not well says why and what to do.
func holds(t *testing.T, c Check, want State, word string) {
	t.Helper()
	if c.State != want || !strings.Contains(c.What+"|"+c.Why, word) {
		t.Errorf("%s: got %s %q %q, want %s with %q", c.Name, c.State, c.What, c.Why, want, word)
	}
	if c.State == OK && (c.Why != "" || c.Next != "" || c.What == "") || (c.State == Warn || c.State == Fail) && (c.Why == "" || c.Next == "") || c.State == Skipped && c.Why == "" {
		t.Errorf("%s: got %+v: not whole", c.Name, c)
	}
}

func TestClock(t *testing.T) {
	t.Parallel()
	day := time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name  string
		clock clock
		built time.Time
		check string
		want  State
		word  string
	}{
		{"right", clock{now: day, sync: true}, day.Add(-time.Hour), "clock: plausible", OK, "2030-01-02"},
		{"in the past", clock{now: day}, day.Add(time.Hour), "clock: plausible", Fail, "built later"},
		{"unknown build", clock{now: day}, time.Time{}, "clock: plausible", Skipped, "built"},
		{"kept", clock{now: day, sync: true}, day, "clock: synchronised", OK, "1ms"},
		{"not kept", clock{now: day}, day, "clock: synchronised", Warn, "nobody"},
		{"no word", clock{now: day, err: unix.EPERM}, day, "clock: synchronised", Skipped, "not permitted"},
	} {
		checks := Config{Clock: c.clock, Built: c.built}.clockChecks()
		t.Run(c.name, func(t *testing.T) { holds(t, one(t, checks, c.check), c.want, c.word) })
	}
}

func TestDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	full := Space{Free: 100 << 30, Size: 200 << 30, FreeFiles: 900, Files: 1000}
	for _, c := range []struct {
		name, dir string
		disk      disk
		check     string
		want      State
		word      string
	}{
		{"room", dir, disk{space: full}, "disk: space", OK, "100.0 GiB of 200.0 GiB"},
		{"little room", dir, disk{space: Space{Free: 5 << 30, Size: 200 << 30}}, "disk: space", Warn, "next image"},
		{"no room", dir, disk{space: Space{Free: 1 << 20, Size: 200 << 30}}, "disk: space", Fail, "refuse writes"},
		{"unknown room", dir, disk{err: errors.New("gone")}, "disk: space", Skipped, "gone"},
		{"files", dir, disk{space: full}, "disk: files", OK, "900 of 1000"},
		{"few files", dir, disk{space: Space{Free: 1 << 40, FreeFiles: 10, Files: 1000}}, "disk: files", Warn, "many files"},
		{"no limit", dir, disk{space: Space{Free: 1 << 40}}, "disk: files", OK, "no limit"},
		{"closed", dir, disk{space: full}, "disk: permissions", OK, dir},
		{"open", open, disk{space: full}, "disk: permissions", Fail, "others"},
		{"not there", filepath.Join(dir, "a", "b"), disk{space: full}, "disk: permissions", Skipped, "first start"},
		{"fast", dir, disk{space: full, sync: time.Millisecond}, "disk: speed", OK, "after 1ms"},
		{"slow", dir, disk{space: full, sync: 80 * time.Millisecond}, "disk: speed", Warn, "80ms"},
		{"dead", dir, disk{space: full, sync: 2 * time.Second}, "disk: speed", Fail, "give up"},
		{"broken", dir, disk{space: full, err: errors.New("input/output error")}, "disk: speed", Fail, "input/output"},
	} {
		checks := Config{File: &config.Config{DataDir: c.dir}, Disk: c.disk}.diskChecks()
		t.Run(c.name, func(t *testing.T) { holds(t, one(t, checks, c.check), c.want, c.word) })
	}
}

// The host's own disk: a real write, and nothing left of it.
func TestHostDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := hostDisk{}.Space(dir)
	if err != nil || s.Size == 0 || s.Free > s.Size {
		t.Errorf("got %+v, %v", s, err)
	}
	if d, err := (hostDisk{}).Sync(dir); err != nil || d <= 0 {
		t.Errorf("got %s, %v", d, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left %v behind", left)
	}
	if _, err := (hostDisk{}).Sync(filepath.Join(dir, "no")); err == nil {
		t.Error("got no error for a directory that is not there")
	}
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	right := Interface{Up: true, Carrier: true, MAC: mac, Addresses: []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24")}}
	down, uncabled, bare, lonely := right, right, right, right
	down.Up, uncabled.Carrier, bare.Addresses = false, false, nil
	lonely.Addresses = []netip.Prefix{netip.MustParsePrefix("10.77.0.1/32")}
	for _, c := range []struct {
		name  string
		net   network
		off   bool
		check string
		want  State
		word  string
	}{
		{"right", network{i: right, route: "eth7"}, false, "network: boot interface", OK, "02:00:00:00:00:01"},
		{"missing", network{err: errors.New("no such interface")}, false, "network: boot interface", Fail, "eth7"},
		{"down", network{i: down}, false, "network: boot interface", Fail, "down"},
		{"uncabled", network{i: uncabled}, false, "network: boot interface", Fail, "cable"},
		{"address", network{i: right, route: "eth7"}, false, "network: address", OK, "10.77.0.1/24"},
		{"no address", network{i: bare}, false, "network: address", Fail, "10.77.0.1"},
		{"route", network{i: right, route: "eth7"}, false, "network: route", OK, "10.77.0.2 leave by eth7"},
		{"other route", network{i: right, route: "eth8"}, false, "network: route", Fail, "another interface"},
		{"alone", network{i: lonely, route: "eth7"}, false, "network: route", Skipped, "no other address"},
		{"no boots", network{}, true, "network: boot interface", Skipped, "boot.enabled"},
	} {
		cfg := Config{File: &config.Config{Boot: config.Boot{Enabled: !c.off, Interface: "eth7", Address: netip.MustParseAddr("10.77.0.1")}}, Network: c.net}
		t.Run(c.name, func(t *testing.T) { holds(t, one(t, cfg.networkChecks(), c.check), c.want, c.word) })
	}
}

// Ports are bound for true; who holds one is named.
func TestPorts(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.83.17.5:0") // where no other test listens, so that it stays free
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	cfg := Config{File: &config.Config{DataDir: dir, Socket: filepath.Join(dir, "s"), Gateway: config.Gateway{Listen: l.Addr().String()}}}
	holds(t, one(t, cfg.portChecks(t.Context(), 0), "port: agents"), Fail, "another program holds it")
	holds(t, one(t, cfg.portChecks(t.Context(), os.Getpid()), "port: agents"), OK, "held by the appliance")
	holds(t, one(t, cfg.portChecks(t.Context(), 1<<22+1), "port: agents"), Fail, "beside the appliance")
	holds(t, one(t, cfg.portChecks(t.Context(), 0), "port: API"), OK, "free")
	holds(t, one(t, cfg.portChecks(t.Context(), os.Getpid()), "port: API"), Fail, "no such file")
	l.Close()
	holds(t, one(t, cfg.portChecks(t.Context(), 0), "port: agents"), OK, "free")
	holds(t, one(t, cfg.portChecks(t.Context(), os.Getpid()), "port: agents"), Warn, "does not hold")
	cfg.File.Gateway.Listen = "192.0.2.1:8443"
	holds(t, one(t, cfg.portChecks(t.Context(), 0), "port: agents"), Fail, "no interface of this host")
	s, err := net.Listen("unix", cfg.File.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	holds(t, one(t, cfg.portChecks(t.Context(), os.Getpid()), "port: API"), OK, "answers")
	holds(t, one(t, cfg.portChecks(t.Context(), 0), "port: API"), Fail, "another's")
}

// The process that holds the data directory's lock is found in the kernel's own list.
func TestServing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if pid := serving(dir, procRoot); pid != 0 {
		t.Errorf("got %d before there is a lock", pid)
	}
	f, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if pid := serving(dir, procRoot); pid != 0 {
		t.Errorf("got %d of a lock that nobody holds", pid)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if pid := serving(dir, procRoot); pid != os.Getpid() {
		t.Errorf("got process %d, want this one, %d", pid, os.Getpid())
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kernel := make([]byte, 0x210)
	copy(kernel[0x202:], "HdrS")
	put := func(name string, b []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Config{File: &config.Config{Boot: config.Boot{Enabled: true, FirmwareDir: dir, RAMDiskDir: dir}}}
	check := func(name string, want State, word string) {
		t.Helper()
		holds(t, one(t, cfg.fileChecks(), name), want, word)
	}
	check("files: boot programs", Fail, "snponly.efi")
	put("snponly.efi", []byte("MZ program"))
	check("files: boot programs", Warn, "BIOS machines")
	put("undionly.kpxe", []byte("program"))
	check("files: boot programs", OK, "undionly.kpxe")
	put("snponly.efi", []byte("<html>404"))
	check("files: boot programs", Warn, "UEFI machines")

	check("files: RAM disk", Fail, "vmlinuz")
	put("vmlinuz", kernel)
	put("ramdisk.cpio.zst", []byte{0x28, 0xb5, 0x2f, 0xfd, 0})
	check("files: RAM disk", OK, "vmlinuz")
	put("ramdisk.cpio.zst", []byte{0x1f, 0x8b})
	check("files: RAM disk", Fail, "does not begin")
	put("ramdisk.cpio.zst", nil)
	check("files: RAM disk", Fail, "empty")

	check("files: kernel arguments", OK, "none")
	cfg.File.Boot.KernelArgs = []string{"console=ttyS0", "quiet"}
	check("files: kernel arguments", OK, "console=ttyS0 quiet")
	cfg.File.Boot.KernelArgs = []string{strings.Repeat("x", maxCommandLine+1)}
	check("files: kernel arguments", Fail, "do not fit")
}

func TestStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := Config{File: &config.Config{DataDir: dir}}
	holds(t, cfg.storeCheck(), Skipped, "no store yet")
	for _, c := range []struct {
		s    store.Space
		want State
		word string
	}{
		{store.Space{File: 10 << 20, Quota: 1 << 30}, OK, "10.0 MiB of at most 1024 MiB"}, {store.Space{File: 900 << 20, Quota: 1 << 30}, Warn, "75 %"},
		{store.Space{File: 1, Quota: 1 << 30, Alarm: "NOSPACE"}, Fail, "NOSPACE"}, {store.Space{}, Skipped, "closed"},
	} {
		cfg.Space = func() store.Space { return c.s }
		holds(t, cfg.storeCheck(), c.want, c.word)
	}
}

func TestWorst(t *testing.T) {
	t.Parallel()
	for want, in := range map[State][]Check{OK: {{State: OK}, {State: Skipped}}, Warn: {{State: Warn}, {State: OK}}, Fail: {{State: Warn}, {State: Fail}, {State: Warn}}} {
		if got := Worst(in); got != want {
			t.Errorf("%v: got %s, want %s", in, got, want)
		}
	}
}
