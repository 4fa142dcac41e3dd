package scenario

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"firstlight/imagebuild/manifest"
	"firstlight/testbed/fault"
	"firstlight/testbed/judge"
)

// maxBlob bounds a blob that is spoiled, in bytes.
const maxBlob = manifest.MaxChunkSize + 1<<20

func tamperedImageScenario() Scenario {
	return blobScenario("tampered-image", "one byte of a stored image is another one: refused when it is added, and by the machine when it is changed later",
		fault.FlipByte, `(?i)chunk.*(SHA-256|digest)`)
}

func truncatedImageScenario() Scenario {
	return blobScenario("truncated-image", "a stored image lacks its last bytes: refused when it is added, and by the machine when they go later",
		func(b []byte) ([]byte, error) { return b[:len(b)/2], nil }, `(?i)chunk.*bytes`)
}

// blobScenario spoils the last chunk of an image: in a copy that an operator wants to add, then in the appliance's store.
func blobScenario(name, what string, spoil func([]byte) ([]byte, error), cause string) Scenario {
	return Scenario{Name: name, What: what, Firmware: []string{BIOS, UEFI}, outcome: OutcomeFailed,
		machines: []box{{disks: []drive{{size: smallDisk}}}},
		enrolled: func(ctx context.Context, r *run) error {
			if err := r.refusesSpoiled(ctx, spoil); err != nil {
				return err
			}
			return rewrite(filepath.Join(r.serve.DataDir, "blobs", r.lastBlob()), spoil)
		},
		drive: func(ctx context.Context, r *run) error { return orderAndFollow(ctx, r, r.machine) },
		judge: func(ctx context.Context, r *run) error {
			if err := r.pause(ctx); err != nil {
				return err
			}
			r.add(judge.Failed(r.record, "deploy", regexp.MustCompile(cause))...)
			r.add(r.bootsNothing()...)
			return nil
		}}
}

// bootsNothing checks that what is left of a deploy cannot start, and that the old data is gone.
func (m *machine) bootsNothing() []judge.Check {
	d := m.disk()
	holds := ""
	for _, s := range m.record.DiskState {
		if s.Serial == d.serial {
			holds = s.Holds
		}
	}
	return []judge.Check{
		named("wipe: ", judge.NoTrace(d.path, d.pattern)),
		judge.AllZero("deploy: the disk's start is cleared", d.path, 0, 1<<20),
		judge.AllZero("deploy: the disk's end is cleared", d.path, -1<<20, 0),
		judge.Of("record: says what the disk holds", holds == "partly written", "disk %s: %s", d.serial, holds),
	}
}

// lastBlob names the blob of the image's last chunk.
func (r *run) lastBlob() string {
	c := r.image.Manifest.Chunks
	return c[len(c)-1].Compressed.String()
}

// refusesSpoiled has an operator add a spoiled copy of the image.
func (r *run) refusesSpoiled(ctx context.Context, spoil func([]byte) ([]byte, error)) error {
	dir := filepath.Join(r.dir, "spoiled")
	if err := os.CopyFS(dir, os.DirFS(r.image.Dir)); err != nil {
		return err
	}
	if err := rewrite(filepath.Join(dir, "blobs", r.lastBlob()), spoil); err != nil {
		return err
	}
	_, err := r.firstlight(ctx, "image", "add", "spoiled", dir)
	r.add(judge.Of("image add: a spoiled image is refused", err != nil && strings.Contains(errorText(err), "not a whole image") && strings.Contains(errorText(err), r.lastBlob()),
		"%s", errorText(err)))
	return os.RemoveAll(dir)
}

// rewrite changes a file's content in place.
func rewrite(path string, change func([]byte) ([]byte, error)) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() > maxBlob {
		return fmt.Errorf("spoil %s: over %d bytes", path, maxBlob)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if b, err = change(b); err != nil {
		return err
	}
	return os.WriteFile(path, bytes.Clone(b), info.Mode().Perm())
}
