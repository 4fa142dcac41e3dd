package fault

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// espType is the partition type of an EFI system partition, C12A7328-F81F-11D2-BA4B-00A0C93EC93B, as it lies on disk.
var espType = [16]byte{0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0x00, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b}

const sector = 512

// maxTable bounds what is read of a partition table: MBR, header and 128 entries.
const maxTable = 34 * sector

// RemoveFromESP deletes a file ("/vmlinuz") from the EFI system partition of a raw image, in place, with mtools.
func RemoveFromESP(ctx context.Context, raw, file string) error {
	start, err := espStart(raw)
	if err != nil {
		return fmt.Errorf("remove %s from the image's ESP: %w", file, err)
	}
	if _, err := mtools(ctx, "mdel", "-i", fmt.Sprintf("%s@@%d", raw, start), "::"+file); err != nil {
		return fmt.Errorf("remove %s from the image's ESP: %w", file, err)
	}
	return nil
}

// ReadFAT returns a file of the FAT file system that starts at that byte of a raw disk, with mtools: a reader that is not ours.
func ReadFAT(ctx context.Context, raw string, start int64, file string) ([]byte, error) {
	b, err := mtools(ctx, "mtype", "-i", fmt.Sprintf("%s@@%d", raw, start), "::"+file)
	if err != nil {
		return nil, fmt.Errorf("read %s at byte %d of %s: %w", file, start, raw, err)
	}
	return b, nil
}

func mtools(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "MTOOLS_SKIP_CHECK=1")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("%s: %s", name, strings.TrimSpace(string(exit.Stderr)))
	}
	return out, err
}

func espStart(raw string) (int64, error) {
	f, err := os.Open(raw)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	table := make([]byte, maxTable)
	if _, err := f.ReadAt(table, 0); err != nil {
		return 0, err
	}
	return findESP(table)
}

// findESP reads the first blocks of a disk with a GPT of 128-byte entries at sector 2 (UEFI specification 2.10, section 5.3.3).
func findESP(table []byte) (int64, error) {
	if len(table) < maxTable || string(table[sector:sector+8]) != "EFI PART" {
		return 0, errors.New("no partition table")
	}
	for at := 2 * sector; at+128 <= len(table); at += 128 {
		if [16]byte(table[at:at+16]) == espType {
			lba := binary.LittleEndian.Uint64(table[at+32:])
			if lba > 1<<40 {
				return 0, fmt.Errorf("the EFI system partition starts at sector %d", lba)
			}
			return int64(lba) * sector, nil
		}
	}
	return 0, errors.New("no EFI system partition")
}
