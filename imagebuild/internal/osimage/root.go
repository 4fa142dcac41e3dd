package osimage

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"firstlight/imagebuild/internal/initramfs"
)

// features are the ext4 features of the root file system, spelled out so that they do not follow the builder's mke2fs.conf. Every
// one is known to Linux 6.1; there is no resize_inode, since nothing grows the file system in place.
const features = "none,has_journal,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

// journalMiB is the size of the journal; the least that mke2fs takes with 4 KiB blocks.
const journalMiB = 4

// extLabel is the root file system's label; at most 16 bytes.
const extLabel = "firstlight-root"

// contentSize is what a tree takes on a file system, in bytes, its own overhead aside.
func contentSize(t *initramfs.Tree) int64 {
	var n int64
	for e := range t.Entries() {
		n += roundUp(int64(len(e.Data)), 4096) + 256
	}
	return n
}

// extract writes the tree below dir with the times of the image. Owners are the caller's: the image is for root alone.
func extract(t *initramfs.Tree, dir string) error {
	var done []string
	for e := range t.Entries() {
		p := filepath.Join(dir, e.Name)
		var err error
		switch {
		case e.IsDir:
			if err = os.Mkdir(p, 0o700); err == nil {
				err = os.Chmod(p, os.FileMode(e.Perm))
			}
		case e.Target != "":
			err = os.Symlink(e.Target, p)
		default:
			if err = os.WriteFile(p, e.Data, 0o600); err == nil {
				err = os.Chmod(p, os.FileMode(e.Perm))
			}
		}
		if err != nil {
			return err
		}
		done = append(done, p)
	}
	at := unix.NsecToTimespec(epoch.UnixNano())
	for _, p := range append(done, dir) {
		if err := unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("set the time of %s: %w", p, err)
		}
	}
	return nil
}

// makeRoot makes the root file system in a file of its own: mke2fs fills it from a directory, so nothing is mounted.
func makeRoot(ctx context.Context, mke2fs, work string, t *initramfs.Tree, l Layout) (string, error) {
	dir := filepath.Join(work, "root")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", fmt.Errorf("root file system: %w", err)
	}
	if err := extract(t, dir); err != nil {
		return "", fmt.Errorf("root file system: %w", err)
	}
	fs := filepath.Join(work, "root.ext4")
	cmd := exec.CommandContext(ctx, mke2fs, "-q", "-F", "-O", features, "-b", "4096", "-I", "256", "-m", "0", "-N", "4096",
		"-L", extLabel, "-U", l.RootFSUUID, "-J", "size="+strconv.Itoa(journalMiB),
		"-E", "hash_seed="+l.RootFSUUID+",lazy_itable_init=0,lazy_journal_init=0,nodiscard,root_owner=0:0",
		"-d", dir, fs, strconv.FormatInt(l.Root().Size/4096, 10))
	stamp := strconv.FormatInt(epoch.Unix(), 10)
	cmd.Env = append(os.Environ(), "MKE2FS_CONFIG=/dev/null", "SOURCE_DATE_EPOCH="+stamp, "E2FSPROGS_FAKE_TIME="+stamp, "LC_ALL=C")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("root file system: %s: %w: %s", filepath.Base(mke2fs), err, strings.TrimSpace(lastBytes(said.Bytes(), 500)))
	}
	return fs, nil
}

func lastBytes(b []byte, n int) string { return string(b[max(0, len(b)-n):]) }

// copyInto copies the file into the image at an offset and leaves out blocks that are all zero: the image starts as one hole.
func copyInto(img *os.File, at int64, name string, size int64) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return err
	} else if st.Size() != size {
		return fmt.Errorf("%s: %d bytes, want %d", filepath.Base(name), st.Size(), size)
	}
	buf, zero := make([]byte, 64<<10), make([]byte, 64<<10)
	for off := int64(0); off < size; {
		n, err := io.ReadFull(f, buf[:min(int64(len(buf)), size-off)])
		if err != nil {
			return err
		}
		if !bytes.Equal(buf[:n], zero[:n]) {
			if _, err := img.WriteAt(buf[:n], at+off); err != nil {
				return err
			}
		}
		off += int64(n)
	}
	return nil
}
