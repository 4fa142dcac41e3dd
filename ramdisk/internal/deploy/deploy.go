// Package deploy writes a signed, chunked image to one disk and leaves the node's configuration on it.
//
// Everything that can be known is checked before the first write: the manifest's digest and signature, the size and block size of the
// disk, the first chunk. Each chunk is checked compressed and raw before it is written, and read back from the disk afterwards. When
// anything fails after the first write, the disk's first and last MiB are cleared; and since both copies of the partition table are
// written last, after all else was read back, a power cut leaves no half image that starts either.
//
// It is for ramdisk's deploy.image. Disks are chosen and held by package disk; the network, the clock and the file system of the
// configuration partition come in behind small interfaces.
package deploy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"firstlight/gateway-client/envelope"
	"firstlight/imagebuild/manifest"
	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/gpt"
	"firstlight/ramdisk/internal/twins"
	"firstlight/ramdisk/internal/wipe"
)

// Bounds.
const (
	// Workers is how many chunks are in memory at once, each compressed and raw: small machines have little.
	Workers = 2
	// ClearBytes is what is cleared at each end of a disk whose deploy failed.
	ClearBytes = 1 << 20
	// PartitionTimeout is how long the kernel and others may take to show the new partitions (DEP-10).
	PartitionTimeout = 30 * time.Second
)

var (
	// ErrTooBig: the image does not fit the disk (DEP-01).
	ErrTooBig = errors.New("the image is larger than the disk")
	// ErrBlockSize: the image was made for another logical block size (DEP-04).
	ErrBlockSize = errors.New("the image's block size is not the disk's")
	// ErrDigest: bytes are not those that the manifest or the command names (DEP-03).
	ErrDigest = errors.New("digest differs")
	// ErrImage: the image itself is not usable.
	ErrImage = errors.New("the image cannot be deployed")
)

// Fetcher gets the content of a URL: all of it, or an error. At most limit bytes are taken.
type Fetcher interface {
	Fetch(ctx context.Context, url string, limit int64) ([]byte, error)
}

// ConfigWriter writes one file on a partition of a disk that nobody holds, and reads it back. d and p say which; whatever they say
// that is not found on the disk in front of it is an error, and nothing is written.
type ConfigWriter interface {
	WriteConfig(ctx context.Context, d disk.Disk, p disk.Partition, name string, content []byte) error
}

// Request is what to deploy where.
type Request struct {
	Disk           disk.Selector
	ManifestURL    string
	ManifestSHA256 []byte
	// ChunkBaseURL + "/" + hex(compressed SHA-256) is a chunk.
	ChunkBaseURL string
	// ConfigName and Config are the file for the configuration partition. Config may hold a secret.
	ConfigName string
	Config     []byte
	// Workflow is whose wipe of the disk counts.
	Workflow string
}

// Result is what was done.
type Result struct {
	Disk              disk.Disk
	Written, Verified int64
	Chunks            int
	Manifest          manifest.Digest
	Partitions        []string
}

// Deployer does deploys, one at a time.
type Deployer struct {
	System disk.System
	Fetch  Fetcher
	Config ConfigWriter
	// Roots verify manifests (purpose image-manifest).
	Roots  envelope.Roots
	Now    func() time.Time
	Ledger *wipe.Ledger
	// Progress tells what is done, in bytes; nil for nobody.
	Progress func(what string, done, total int64)
}

// Run deploys.
func (d *Deployer) Run(ctx context.Context, r Request) (res Result, err error) {
	if d.Progress == nil {
		d.Progress = func(string, int64, int64) {}
	}
	m, err := d.manifest(ctx, r)
	if err != nil {
		return Result{}, fmt.Errorf("deploy: nothing was written: %w", err)
	}
	c, err := disk.Claim(d.System, r.Disk)
	if err != nil {
		return Result{}, fmt.Errorf("deploy: nothing was written: %w", err)
	}
	job := &job{Deployer: d, req: r, m: m, claim: c}
	job.fetch = d.patient(job.tellWaiting)
	defer job.release()
	res, err = job.run(ctx)
	if err == nil {
		return res, nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, wipe.ErrStopped) && (errors.Is(err, cause) || errors.Is(err, ctx.Err())) {
		err = fmt.Errorf("%w: %w", wipe.ErrStopped, cause)
	}
	if !c.Wrote() {
		return Result{Disk: c.Disk}, fmt.Errorf("deploy to %s: nothing was written: %w", c.Disk, err)
	}
	return res, fmt.Errorf("deploy to %s: %w; %s", c.Disk, err, job.clear())
}

// patient is the fetcher with another try for what may come right by itself.
func (d *Deployer) patient(tell func(string)) Fetcher { return patient{d.Fetch, tell} }

// manifest fetches, compares and opens the manifest.
func (d *Deployer) manifest(ctx context.Context, r Request) (*manifest.Manifest, error) {
	if len(r.ManifestSHA256) != sha256.Size {
		return nil, fmt.Errorf("%w: the command names no manifest digest", ErrDigest)
	}
	d.Progress("fetching the image's manifest", 0, 0)
	fetch := d.patient(func(why string) { d.Progress(why, 0, 0) })
	signed, err := fetch.Fetch(ctx, r.ManifestURL, manifest.MaxSigned)
	if err != nil {
		return nil, fmt.Errorf("the image's manifest: %w", err)
	}
	if got := manifest.DigestOf(signed); string(got[:]) != string(r.ManifestSHA256) {
		return nil, fmt.Errorf("manifest %s: %w: the command says SHA-256 %x, it is %s", r.ManifestURL, ErrDigest, r.ManifestSHA256, got)
	}
	return manifest.Open(signed, d.Roots, d.Now())
}

type job struct {
	*Deployer
	req   Request
	m     *manifest.Manifest
	claim *disk.Claimed
	freed bool
	fetch Fetcher
	// first is chunk 0, fetched and checked before the first write.
	first []byte
	// wiped says that this workflow erased and read back the whole disk.
	wiped bool
	// secret is the partition on which the configuration, with its secret, may be; empty before it is written.
	secret wipe.Range

	mu          sync.Mutex // guards what follows
	done, total int64
}

// tell passes progress on, one at a time, and remembers it for tellWaiting.
func (j *job) tell(what string, done, total int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done, j.total = done, total
	j.Progress(what, done, total)
}

// tellWaiting says why nothing goes on, without changing how far the deploy is.
func (j *job) tellWaiting(why string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.Progress(why, j.done, j.total)
}

func (j *job) release() {
	if !j.freed {
		j.freed = true
		j.claim.Close()
	}
}

// run is the deploy itself; a panic in it is an error like any other, so that the disk is cleared.
func (j *job) run(ctx context.Context) (res Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("internal error: %v", v)
		}
	}()
	res = Result{Disk: j.claim.Disk, Chunks: len(j.m.Chunks)}
	copy(res.Manifest[:], j.req.ManifestSHA256)
	config, err := j.check(ctx)
	if err != nil {
		return res, err
	}
	if err := j.clean(ctx); err != nil {
		return res, err
	}
	if res.Written, res.Verified, err = j.write(ctx); err != nil {
		return res, err
	}
	if err := j.fitTable(); err != nil {
		return res, err
	}
	for _, p := range j.m.Partitions {
		res.Partitions = append(res.Partitions, fmt.Sprintf("%d %s (%s)", p.Number, p.Label, disk.Bytes(p.Size)))
	}
	return res, j.configure(ctx, config)
}

// check holds image and disk against each other before the first write, and returns the configuration partition.
func (j *job) check(ctx context.Context) (manifest.Partition, error) {
	d, block := j.claim.Disk, int64(j.claim.Disk.LogicalBlock)
	var config *manifest.Partition
	for i, p := range j.m.Partitions {
		if p.Role == manifest.RoleConfig {
			config = &j.m.Partitions[i]
		}
	}
	fail := func(err error, format string, args ...any) (manifest.Partition, error) {
		return manifest.Partition{}, fmt.Errorf("%w: %s", err, fmt.Sprintf(format, args...))
	}
	switch {
	case j.m.RawSize > d.Size:
		return fail(ErrTooBig, "image %s is %d bytes, the disk has %d", j.m.Name, j.m.RawSize, d.Size)
	case config == nil:
		return fail(ErrImage, "image %s has no configuration partition", j.m.Name)
	case len(j.m.Chunks) == 0 || j.m.Chunks[0].Offset != 0:
		return fail(ErrImage, "image %s has no partition table", j.m.Name)
	}
	var err error
	if j.first, err = j.chunk(ctx, 0); err != nil {
		return manifest.Partition{}, err
	}
	switch found := tableBlock(j.first); {
	case found == 0:
		return fail(ErrImage, "image %s has no GUID partition table", j.m.Name)
	case found != block:
		return fail(ErrBlockSize, "image %s was made for a disk with logical blocks of %d bytes, this disk has %d: take an image made for blocks of %d bytes, or format the disk to blocks of %d bytes (nvme format, sg_format)",
			j.m.Name, found, block, block, found)
	case j.m.ChunkSize%block != 0 || j.m.RawSize%block != 0:
		return fail(ErrBlockSize, "image %s is %d bytes in chunks of %d, the disk's logical blocks are %d", j.m.Name, j.m.RawSize, j.m.ChunkSize, block)
	}
	return *config, j.alone()
}

// alone makes sure that no other disk carries the identities of the image (DEP-06).
func (j *job) alone() error {
	var ids twins.IDs
	if t, err := gpt.ReadFirst(bytes.NewReader(j.first), j.m.RawSize, j.claim.Disk.LogicalBlock); err == nil {
		ids.Disk = t.DiskGUID()
	}
	for _, p := range j.m.Partitions {
		ids.Partitions = append(ids.Partitions, p.UUID)
	}
	disks, err := j.System.Scan()
	if err != nil {
		return err
	}
	found, err := twins.Find(j.System, disks, j.claim.Disk, ids)
	if err != nil {
		return err
	}
	for _, u := range found.Unread {
		j.tellWaiting("not searched for an earlier copy of the image: " + u)
	}
	return found.Refuse()
}

// tableBlock returns the block size for which an image's partition table was made; 0 without one.
func tableBlock(first []byte) int64 {
	for _, b := range []int{512, 4096} {
		if len(first) >= b+8 && string(first[b:b+8]) == "EFI PART" {
			return int64(b)
		}
	}
	return 0
}

// clean makes sure that what the image leaves out is zero: by this workflow's own wipe, or by erasing it now; reading it back comes
// later. A disk that was not wiped loses its ends first, the second copy of its table before the first, so that nothing of what it held
// starts once anything between them is changed.
func (j *job) clean(ctx context.Context) error {
	d := j.claim.Disk
	if j.wiped = j.Ledger.Take(j.req.Workflow, d); j.wiped {
		return nil
	}
	n := min(int64(ClearBytes), d.Size)
	for _, e := range []wipe.Range{{Off: d.Size - n, Len: n}, {Off: 0, Len: n}} {
		if err := wipe.Zero(ctx, j.claim, e, func(int64) {}); err != nil {
			return err
		}
	}
	for _, h := range j.holes(d.Size) {
		if err := wipe.Zero(ctx, j.claim, h, func(done int64) { j.tell("erasing what the image leaves out", h.Off+done, d.Size) }); err != nil {
			return err
		}
	}
	return nil
}

// holes are the ranges of a disk of size bytes that no chunk covers.
func (j *job) holes(size int64) []wipe.Range {
	var out []wipe.Range
	next := int64(0)
	for _, c := range j.m.Chunks {
		if c.Offset > next {
			out = append(out, wipe.Range{Off: next, Len: c.Offset - next})
		}
		next = c.Offset + c.RawSize
	}
	if next < size {
		out = append(out, wipe.Range{Off: next, Len: size - next})
	}
	return out
}

// fitTable moves the second copy of the partition table to the end of the disk and reads the result back.
func (j *job) fitTable() error {
	d := j.claim.Disk
	r := disk.Unaligned{R: j.claim}
	t, err := gpt.Read(r, j.m.RawSize, d.LogicalBlock)
	if err != nil {
		return err
	}
	writes, err := t.Fit(r, d.Size)
	if err != nil {
		return err
	}
	for _, w := range writes {
		b := disk.Buffer(len(w.Data))
		copy(b, w.Data)
		if _, err := j.claim.WriteAt(b, w.Off); err != nil {
			return fmt.Errorf("write partition table at byte %d: %w", w.Off, err)
		}
		if err := j.claim.Flush(); err != nil {
			return fmt.Errorf("write partition table: %w", err)
		}
	}
	if t, err = gpt.Read(r, d.Size, d.LogicalBlock); err != nil {
		return fmt.Errorf("read partition table back: %w", err)
	}
	if again, err := t.Fit(r, d.Size); err != nil || again != nil || t.Recovered {
		return fmt.Errorf("read partition table back: it is not what was written (%w)", errors.Join(err, ErrDigest))
	}
	found := t.Partitions()
	if len(found) != len(j.m.Partitions) {
		return fmt.Errorf("%w: its table has %d partitions, its manifest %d", ErrImage, len(found), len(j.m.Partitions))
	}
	for i, p := range j.m.Partitions {
		if f := found[i]; f.Number != p.Number || f.Start != p.Start || f.Size != p.Size || f.Type != p.TypeGUID {
			return fmt.Errorf("%w: partition %d is not where its manifest says", ErrImage, p.Number)
		}
	}
	return nil
}
