package deploy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"firstlight/imagebuild/manifest"
	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/wipe"
)

const (
	// rereadDelay is the first pause before the kernel is asked again for the partition table; it doubles up to rereadMax.
	rereadDelay = 100 * time.Millisecond
	rereadMax   = 3 * time.Second
)

// configure makes the kernel read the new table, waits for its partitions and writes the configuration.
func (j *job) configure(ctx context.Context, config manifest.Partition) error {
	ctx, cancel := context.WithTimeout(ctx, PartitionTimeout+time.Minute)
	defer cancel()
	j.Progress("writing the node's configuration", 0, int64(len(j.req.Config)))
	if err := j.reread(ctx); err != nil {
		return err
	}
	d, p, err := j.await(ctx, config)
	if err != nil {
		return err
	}
	j.release()
	j.secret = wipe.Range{Off: config.Start, Len: config.Size}
	if err := j.Config.WriteConfig(ctx, d, p, j.req.ConfigName, j.req.Config); err != nil {
		return fmt.Errorf("configuration partition %d: %w", p.Number, err)
	}
	return nil
}

// reread asks the kernel to read the table until it does: others may hold the disk for a moment (DEP-10).
func (j *job) reread(ctx context.Context) error {
	deadline := time.Now().Add(PartitionTimeout)
	for delay := rereadDelay; ; delay = min(2*delay, rereadMax) {
		err := j.claim.RereadPartitions()
		if err == nil || errors.Is(err, disk.ErrUnsupported) {
			return nil
		}
		if time.Now().Add(delay).After(deadline) {
			return fmt.Errorf("the kernel did not read the new partition table for %s: %w", PartitionTimeout, err)
		}
		if err := pause(ctx, delay); err != nil {
			return err
		}
	}
}

// await waits until the kernel shows the image's partitions, twice the same, on the disk that was written.
func (j *job) await(ctx context.Context, config manifest.Partition) (disk.Disk, disk.Partition, error) {
	deadline := time.Now().Add(PartitionTimeout)
	var last string
	for delay := rereadDelay; ; delay = min(2*delay, rereadMax) {
		d, p, state := j.look(config)
		if state == "" && last == "ok" {
			return d, p, nil
		}
		if last = state; state == "" {
			last = "ok"
		}
		if time.Now().Add(delay).After(deadline) {
			return d, p, fmt.Errorf("waited %s for the new partitions: %s", PartitionTimeout, state)
		}
		if err := pause(ctx, delay); err != nil {
			return d, p, err
		}
	}
}

func (j *job) look(config manifest.Partition) (disk.Disk, disk.Partition, string) {
	disks, err := j.System.Scan()
	if err != nil {
		return disk.Disk{}, disk.Partition{}, err.Error()
	}
	for _, d := range disks {
		if d.Name != j.claim.Disk.Name || d.Sequence != j.claim.Disk.Sequence {
			continue
		}
		if len(d.Partitions) != len(j.m.Partitions) {
			return d, disk.Partition{}, fmt.Sprintf("the kernel shows %d partitions, the image has %d", len(d.Partitions), len(j.m.Partitions))
		}
		var out disk.Partition
		for i, want := range j.m.Partitions {
			got := d.Partitions[i]
			if got.Number != want.Number || got.Start != want.Start || got.Size != want.Size {
				return d, out, fmt.Sprintf("the kernel shows partition %d of %d bytes at %d, the image has %d at %d", got.Number, got.Size, got.Start, want.Size, want.Start)
			}
			if want.Number == config.Number {
				out = got
			}
		}
		return d, out, ""
	}
	return disk.Disk{}, disk.Partition{}, "the disk is gone"
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
