package ramdisk

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"google.golang.org/protobuf/proto"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	"firstlight/ramdisk/internal/disk/disktest"
)

// reboot starts the RAM disk again after a power cut: another boot, with nothing in memory.
func (b *bench) reboot(n int) {
	b.t.Helper()
	b.stop()
	b.p.proc = fstest.MapFS{"sys/kernel/random/boot_id": {Data: fmt.Appendf(nil, "%08d-2222-3333-4444-555555555555\n", n)}, "cmdline": {Data: []byte("quiet\n")}}
	b.state = fmt.Sprintf("state-of-boot-%d", n)
	b.start()
	b.g.WaitHellos(node, ramdiskRole, n)
}

func (b *bench) send(kind string, m proto.Message) string {
	b.t.Helper()
	return b.g.Send(node, ramdiskRole, b.g.Command(node, ramdiskRole, kind, m))
}

// TestDEP11_AfterAPowerCutNoDiskCountsAsClean cuts the power in each stage. The next boot gets the same workflow's deploy without a
// wipe before it: it must erase by itself what the image leaves out.
func TestDEP11_AfterAPowerCutNoDiskCountsAsClean(t *testing.T) {
	for name, reach := range map[string]func(b *bench, deploy *agentv1.DeployImage) (release func()){
		"in the middle of the wipe": func(b *bench, _ *agentv1.DeployImage) func() {
			hold := b.disk.HoldAt(5 << 20)
			b.send("disk.wipe", wipeAll)
			<-hold.Reached
			return hold.Release
		},
		"after the wipe": func(b *bench, _ *agentv1.DeployImage) func() {
			b.g.WaitUpdate(b.send("disk.wipe", wipeAll))
			// What somebody else wrote while the machine was off.
			b.disk.SetData(6<<20, bytes.Repeat([]byte("old data"), 100))
			return func() {}
		},
		"in the middle of the deploy": func(b *bench, d *agentv1.DeployImage) func() {
			b.g.WaitUpdate(b.send("disk.wipe", wipeAll))
			hold := b.disk.HoldAt(400 << 10)
			b.send("deploy.image", d)
			<-hold.Reached
			b.disk.SetData(6<<20, bytes.Repeat([]byte("old data"), 100))
			return hold.Release
		},
		"after the deploy, before the kexec": func(b *bench, d *agentv1.DeployImage) func() {
			b.g.WaitUpdate(b.send("disk.wipe", wipeAll))
			if u := b.g.WaitUpdate(b.send("deploy.image", d)); u.State != succeeded {
				b.t.Fatalf("deploy: got %v: %s", u.State, u.Message)
			}
			b.disk.SetData(6<<20, bytes.Repeat([]byte("old data"), 100))
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.disk.Cached().Spoil(disktest.Faults{NoZeroOut: true})
			deploy := b.image()
			b.overlay(nil)
			b.start()
			b.g.WaitHellos(node, ramdiskRole, 1)
			release := reach(b, deploy)
			b.disk.PowerCut(7)
			release()
			b.reboot(2)
			hellos := b.g.Hellos(node, ramdiskRole)
			if hellos[0].BootId == hellos[1].BootId || hellos[0].JournalId == hellos[1].JournalId {
				t.Error("the second boot has the first one's journal or boot id")
			}
			u := b.g.WaitUpdate(b.send("deploy.image", deploy))
			if u.State != succeeded {
				t.Fatalf("deploy: got %v: %s", u.State, u.Message)
			}
			if bytes.Contains(b.disk.Data(), []byte("old data")) {
				t.Error("old data is left: the disk was believed to be clean")
			}
		})
	}
}

var wipeAll = &agentv1.DiskWipe{Disks: []*agentv1.DiskSelector{{Serial: "FL-1"}}}

// TestKexecOfAHalfWrittenDiskIsRefused: the boot after a power cut in the middle of a deploy is told to jump.
func TestKexecOfAHalfWrittenDiskIsRefused(t *testing.T) {
	b := newBench(t)
	b.disk.Cached()
	deploy := b.image()
	b.blobs.holdAt(b.blobs.img.Manifest.Chunks[4].Compressed.String())
	b.overlay(nil)
	b.start()
	b.g.WaitHellos(node, ramdiskRole, 1)
	b.send("deploy.image", deploy)
	<-b.blobs.reached
	b.disk.PowerCut(3)
	close(b.blobs.release)
	b.reboot(2)
	u := b.g.WaitUpdate(b.send("boot.kexec", &agentv1.BootKexec{Disk: &agentv1.DiskSelector{Serial: "FL-1"}}))
	if u.State != failed || !strings.Contains(u.Message, "no valid GUID partition table") || b.ended != "" {
		t.Errorf("got %v: %s, then %q, want failed for want of a table", u.State, u.Message, b.ended)
	}
}

// TestCommandCutByAnAgentCrashIsReportedInterrupted kills the agent, not the machine, in the middle of each command that writes:
// process 1 starts it again with the same journal.
func TestCommandCutByAnAgentCrashIsReportedInterrupted(t *testing.T) {
	for _, kind := range []string{"disk.wipe", "deploy.image"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			deploy := b.image()
			payload := map[string]proto.Message{"disk.wipe": wipeAll, "deploy.image": deploy}[kind]
			hold := b.disk.HoldAt(100 << 10)
			b.overlay(nil)
			b.start()
			id := b.send(kind, payload)
			<-hold.Reached
			// The journal as a killed process leaves it; then the process is gone, and the kernel has closed its handles.
			if err := os.CopyFS(filepath.Join(b.dir, "after"), os.DirFS(filepath.Join(b.dir, b.state))); err != nil {
				t.Fatal(err)
			}
			b.cancelRun()
			b.g.WaitDisconnected(node, ramdiskRole)
			b.disk.Kill()
			hold.Release()
			b.stop()
			changed := b.disk.Changed()

			b.state = "after"
			b.start()
			u := b.g.WaitUpdate(id)
			if u.State != failed || !strings.Contains(u.Message, "interrupted") || !strings.Contains(u.Message, kind) {
				t.Errorf("got %v: %s, want failed: interrupted", u.State, u.Message)
			}
			if len(b.g.Joins()) != 1 || b.disk.Changed() != changed {
				t.Errorf("got %d joins, %d more bytes changed, want the same identity and no second run", len(b.g.Joins()), b.disk.Changed()-changed)
			}
			if u := b.g.WaitUpdate(b.send("deploy.image", deploy)); u.State != succeeded {
				t.Fatalf("deploy afterwards: got %v: %s", u.State, u.Message)
			}
			if bytes.Contains(b.disk.Data(), []byte("old data")) {
				t.Error("old data is left: the disk was believed to be clean")
			}
		})
	}
}
