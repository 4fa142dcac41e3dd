package ramdisk

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"runtime"
	"time"

	"github.com/u-root/u-root/pkg/rtc"
	"golang.org/x/sys/unix"

	"firstlight/ramdisk/internal/deploy"
	"firstlight/ramdisk/internal/diag"
	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/inventory"
	"firstlight/ramdisk/internal/kexec"
	"firstlight/ramdisk/internal/netup"
	"firstlight/ramdisk/internal/partfs"
	"firstlight/ramdisk/internal/pid1"
)

const architecture = runtime.GOARCH

// platform is the machine under the agent: everything that a test replaces. It is an argument, never a package variable.
type platform struct {
	sys, proc fs.FS
	disks     disk.System
	programs  diag.Programs
	fetch     deploy.Fetcher
	config    deploy.ConfigWriter
	volumes   kexec.Volumes
	loader    kexec.Loader
	// tempDir is in memory.
	tempDir string

	now         func() time.Time
	setClock    func(time.Time) error
	uptime      func() time.Duration
	loadModules func() (loaded []string, problems []error)
	// network returns once an address is configured, and keeps it until ctx ends.
	network func(ctx context.Context, nics []inventory.NIC, bootMAC string, say netup.Say) error
	report  func(ctx context.Context, url, text string) error

	jump, restart, powerOff func() error
}

// linux is the running machine.
func linux() platform {
	k := kexec.Linux{}
	return platform{sys: os.DirFS("/sys"), proc: os.DirFS("/proc"), disks: disk.Linux{}, programs: diag.Exec{}, fetch: deploy.NewHTTP(),
		config: partfs.Config{}, volumes: k, loader: k, tempDir: "/run", now: time.Now, setClock: setClock, uptime: uptime, loadModules: loadModules,
		network: network, report: report, jump: func() error { unix.Sync(); return kexec.Jump() }, restart: pid1.Restart, powerOff: pid1.PowerOff}
}

// setClock sets the system's clock and, where there is one, the battery-backed clock.
func setClock(t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return fmt.Errorf("set clock: %w", err)
	}
	if c, err := rtc.OpenRTC(); err == nil {
		c.Set(t.UTC())
		c.Close()
	}
	return nil
}

// uptime is how long the kernel has run, whatever the clock says.
func uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

func loadModules() ([]string, []error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, []error{err}
	}
	f, err := os.Open("/lib/modules/" + unix.ByteSliceToString(u.Release[:]) + "/modules.alias")
	if err != nil {
		return nil, []error{err}
	}
	defer f.Close()
	aliases, err := pid1.ParseAliases(f)
	if err != nil {
		return nil, []error{err}
	}
	return pid1.LoadModules(os.DirFS("/sys"), aliases)
}

func network(ctx context.Context, nics []inventory.NIC, bootMAC string, say netup.Say) error {
	n, err := netup.Up(ctx, nics, bootMAC, say)
	if err != nil {
		return err
	}
	go n.Keep(ctx, say)
	return nil
}

// Bounds of a report to the site.
const (
	maxReport     = 4 << 10
	reportTimeout = 10 * time.Second
)

// report tells the site in words why the machine cannot go on; nobody depends on it.
func report(ctx context.Context, url, text string) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(text[:min(len(text), maxReport)])))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "text/plain; charset=utf-8")
	client := &http.Client{Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, maxReport))
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("the site answered %q", resp.Status)
	}
	return nil
}
