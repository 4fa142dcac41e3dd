package qemu

import (
	"context"
	"encoding/json"
	"fmt"
)

// BlockStat is what the guest did to one disk since power on. Reads of the host
// are not in it.
type BlockStat struct {
	Serial                string // of the Disk
	ReadBytes, WriteBytes int64
	ReadOps, WriteOps     int64
	FlushOps              int64
	UnmapBytes, UnmapOps  int64
	// HighestWrite is the offset behind the last byte written, in bytes.
	HighestWrite int64
}

// BlockStats reads the counters of every disk, in the order of Config.Disks.
func (vm *VM) BlockStats(ctx context.Context) ([]BlockStat, error) {
	b, err := vm.execute(ctx, "query-blockstats", nil)
	if err != nil {
		return nil, err
	}
	stats, err := parseBlockStats(b, vm.cfg.Disks)
	if err != nil {
		return nil, fmt.Errorf("%s: query-blockstats: %w", vm.cfg.Name, err)
	}
	return stats, nil
}

func parseBlockStats(b []byte, disks []Disk) ([]BlockStat, error) {
	var devices []struct {
		Device string
		Stats  struct {
			ReadBytes  int64 `json:"rd_bytes"`
			WriteBytes int64 `json:"wr_bytes"`
			ReadOps    int64 `json:"rd_operations"`
			WriteOps   int64 `json:"wr_operations"`
			FlushOps   int64 `json:"flush_operations"`
			UnmapBytes int64 `json:"unmap_bytes"`
			UnmapOps   int64 `json:"unmap_operations"`
			Highest    int64 `json:"wr_highest_offset"`
		}
	}
	if err := json.Unmarshal(b, &devices); err != nil {
		return nil, err
	}
	out := make([]BlockStat, 0, len(disks))
	for i, d := range disks {
		found := false
		for _, dev := range devices {
			if dev.Device != diskID(i) {
				continue
			}
			found = true
			s := dev.Stats
			out = append(out, BlockStat{
				Serial: d.Serial, ReadBytes: s.ReadBytes, WriteBytes: s.WriteBytes,
				ReadOps: s.ReadOps, WriteOps: s.WriteOps, FlushOps: s.FlushOps,
				UnmapBytes: s.UnmapBytes, UnmapOps: s.UnmapOps, HighestWrite: s.Highest,
			})
		}
		if !found {
			return nil, fmt.Errorf("no counters for disk %d (%s)", i, d.Serial)
		}
	}
	return out, nil
}
