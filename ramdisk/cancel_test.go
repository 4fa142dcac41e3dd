package ramdisk

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
	"firstlight/ramdisk/internal/deploy"
	"firstlight/ramdisk/internal/disk/disktest"
)

const (
	cancelled = commonv1.CommandState_COMMAND_STATE_CANCELLED
	failed    = commonv1.CommandState_COMMAND_STATE_FAILED
	succeeded = commonv1.CommandState_COMMAND_STATE_SUCCEEDED
)

// cancel sends the gateway's Cancel and returns when the agent has read it: it has then answered a command that came after.
func (b *bench) cancel(id, reason string) {
	b.t.Helper()
	if err := b.g.Server().Cancel(node, ramdiskRole, id, reason); err != nil {
		b.t.Fatal(err)
	}
	b.g.Run(node, ramdiskRole, "inventory.refresh", &agentv1.InventoryRefresh{})
}

func wiped(t *testing.T, u *agentv1.CommandUpdate) map[string]*agentv1.WipedDisk {
	t.Helper()
	var r agentv1.DiskWipeResult
	if err := proto.Unmarshal(u.Result, &r); err != nil {
		t.Fatal(err)
	}
	out := map[string]*agentv1.WipedDisk{}
	for _, d := range r.Disks {
		out[d.Serial] = d
	}
	return out
}

// TestWIPE07_CancelFrameEndsTheWipeDiskByDisk goes from the gateway's frame to the bytes: four disks, one fails at a flush, one at a
// short write, one is cancelled in the middle, one is done and stays clean.
func TestWIPE07_CancelFrameEndsTheWipeDiskByDisk(t *testing.T) {
	b := newBench(t)
	const size = 16 << 20
	flush := disktest.New("FLUSH", size).Named("sda").Spoil(disktest.Faults{FlushErrorAfter: size / 2})
	short := disktest.New("SHORT", size).Named("sdb").Spoil(disktest.Faults{NoZeroOut: true, ShortWriteAt: 9 << 20})
	held := disktest.New("HELD", size).Named("sdc").Spoil(disktest.Faults{NoZeroOut: true})
	good := disktest.New("GOOD", size).Named("sdd")
	b.machine.Disks = []*disktest.Disk{flush, short, held, good}
	hold := held.HoldAt(6 << 20)
	b.overlay(nil)
	b.start()
	cmd := &agentv1.DiskWipe{}
	for _, d := range b.machine.Disks {
		cmd.Disks = append(cmd.Disks, &agentv1.DiskSelector{Serial: d.Info.Serial})
	}
	id := b.g.Send(node, ramdiskRole, b.g.Command(node, ramdiskRole, "disk.wipe", cmd))
	<-hold.Reached
	waitFor(t, "the other disks", func() bool {
		return flush.Open()+short.Open()+good.Open() == 0 && b.said("serial GOOD (TWIN, 16 MiB, scsi, now called sdd) is clean")
	})
	b.g.Wait("progress that names each disk", func() bool {
		us := b.g.Updates(id)
		return len(us) > 0 && containsAll(us[len(us)-1].GetProgress().GetWhat(), "GOOD clean", "HELD erasing 0 %", "FLUSH failed", "SHORT failed")
	})
	b.cancel(id, "the operator changed his mind")
	hold.Release()
	u := b.g.WaitUpdate(id)
	if u.State != cancelled || u.Attested == nil || !strings.Contains(u.Message, "the operator changed his mind") {
		t.Errorf("got %v: %s, want cancelled for the operator's reason, attested", u.State, u.Message)
	}
	rs := wiped(t, u)
	for serial, want := range map[string]string{"FLUSH": "failed", "SHORT": "failed", "HELD": "cancelled", "GOOD": "clean"} {
		if got := rs[serial].GetOutcome(); got != want {
			t.Errorf("%s: got %q, want %q", serial, got, want)
		}
	}
	if r := rs["HELD"]; r.BytesErased != 8<<20 || r.BytesVerified != 0 || !strings.Contains(r.Message, "8388608 bytes erased, bytes 8388608 to 16777215 not") {
		t.Errorf("HELD: got %d bytes erased: %s", r.BytesErased, r.Message)
	}
	if !bytes.Equal(held.Data()[:8<<20], make([]byte, 8<<20)) || !bytes.HasPrefix(held.Data()[8<<20:], []byte("old data")) {
		t.Error("HELD: the disk is not what the answer says")
	}
	if r := rs["GOOD"]; r.BytesVerified != size || !bytes.Equal(good.Data(), make([]byte, size)) {
		t.Errorf("GOOD: got %v, want it clean", r)
	}
}

func TestWIPE07_CancelFrameEndsTheDeploy(t *testing.T) {
	b := newBench(t)
	cmd := b.image()
	b.blobs.holdAt(b.blobs.img.Manifest.Chunks[3].Compressed.String())
	b.overlay(nil)
	b.start()
	id := b.g.Send(node, ramdiskRole, b.g.Command(node, ramdiskRole, "deploy.image", cmd))
	<-b.blobs.reached
	b.cancel(id, "wrong image")
	u := b.g.WaitUpdate(id)
	if u.State != cancelled || !strings.Contains(u.Message, "cancelled: wrong image") || !strings.Contains(u.Message, "its first and last MiB are cleared and were read back") {
		t.Errorf("got %v: %s, want cancelled, and the ends cleared", u.State, u.Message)
	}
	data, mib := b.disk.Data(), int(deploy.ClearBytes)
	if !bytes.Equal(data[:mib], make([]byte, mib)) || !bytes.Equal(data[len(data)-mib:], make([]byte, mib)) {
		t.Error("the disk's ends are not cleared")
	}
}

func TestWIPE07_CancelBeforeTheFirstWriteSaysSo(t *testing.T) {
	for _, at := range []string{"manifest", "first chunk"} {
		b := newBench(t)
		cmd := b.image()
		name := at
		if at == "first chunk" {
			name = b.blobs.img.Manifest.Chunks[0].Compressed.String()
		}
		b.blobs.holdAt(name)
		b.overlay(nil)
		b.start()
		id := b.g.Send(node, ramdiskRole, b.g.Command(node, ramdiskRole, "deploy.image", cmd))
		<-b.blobs.reached
		b.cancel(id, "wrong image")
		u := b.g.WaitUpdate(id)
		if u.State != cancelled || !strings.Contains(u.Message, "nothing was written") || b.disk.Changed() != 0 {
			t.Errorf("%s: got %v: %s, %d bytes changed; want cancelled, nothing written, and said", at, u.State, u.Message, b.disk.Changed())
		}
	}
}

// TestDeployAfterACancelledWipeDoesNotRelyOnIt: the workflow goes on with a disk that is only half erased.
func TestDeployAfterACancelledWipeDoesNotRelyOnIt(t *testing.T) {
	b := newBench(t)
	cmd := b.image()
	b.disk.Spoil(disktest.Faults{NoZeroOut: true})
	hold := b.disk.HoldAt(5 << 20)
	b.overlay(nil)
	b.start()
	id := b.g.Send(node, ramdiskRole, b.g.Command(node, ramdiskRole, "disk.wipe", &agentv1.DiskWipe{Disks: []*agentv1.DiskSelector{{Serial: "FL-1"}}}))
	<-hold.Reached
	b.cancel(id, "enough")
	hold.Release()
	b.g.WaitUpdate(id)
	if u := b.g.Run(node, ramdiskRole, "deploy.image", cmd); u.State != succeeded {
		t.Fatalf("deploy: got %v: %s", u.State, u.Message)
	}
	if bytes.Contains(b.disk.Data(), []byte("old data")) {
		t.Error("old data is left on the disk")
	}
}
