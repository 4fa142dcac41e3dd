package deploy

import (
	"context"
	"fmt"

	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/wipe"
)

// clear makes the disk unbootable and says for people what became of it. It runs also when the deploy was stopped.
func (j *job) clear() string {
	j.release()
	err := j.clearEnds()
	if err != nil {
		return fmt.Sprintf("AND the disk could not be cleared (%v): it may hold half an image; wipe it before the machine is used", err)
	}
	return "the disk was left unbootable on purpose: its first and last MiB are cleared and were read back"
}

func (j *job) clearEnds() error {
	want := j.claim.Disk
	c, err := disk.Claim(j.System, j.req.Disk)
	if err != nil {
		return err
	}
	defer c.Close()
	if c.Disk.Sequence != want.Sequence {
		return fmt.Errorf("%w: it was exchanged meanwhile", disk.ErrDiffers)
	}
	n := min(int64(ClearBytes), want.Size)
	zero := disk.Buffer(int(n))
	ends := []wipe.Range{{Off: 0, Len: n}, {Off: want.Size - n, Len: n}}
	for _, e := range ends {
		if _, err := c.WriteAt(zero, e.Off); err != nil {
			return fmt.Errorf("clear at byte %d: %w", e.Off, err)
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	if s := j.secret; s.Len > 0 {
		if err := wipe.Zero(context.Background(), c, s, func(int64) {}); err != nil {
			return err
		}
		ends = append(ends, s)
	}
	for _, e := range ends {
		if err := wipe.Verify(context.Background(), c, e, func(int64) {}); err != nil {
			return err
		}
	}
	// A kernel that keeps the old partitions' nodes keeps no boot: the table is gone from the disk.
	c.RereadPartitions()
	return nil
}
