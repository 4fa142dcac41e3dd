package deploy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	"firstlight/imagebuild/manifest"
	"firstlight/ramdisk/internal/deploy/deploytest"
	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/disk/disktest"
	"firstlight/ramdisk/internal/gpt"
	"firstlight/ramdisk/internal/wipe"
)

const (
	imageSize = deploytest.Size
	diskSize  = 3 << 20
)

// bench is one deploy with everything around it.
type bench struct {
	d        *Deployer
	disk     *disktest.Disk
	machine  *disktest.Machine
	image    []byte
	manifest *manifest.Manifest
	blobs    *blobs
	req      Request
	config   *config
	now      time.Time
}

// blobs is a Fetcher over a map that can be spoiled.
type blobs struct {
	mu    sync.Mutex
	data  map[string][]byte
	spoil func(url string, try int, b []byte) ([]byte, error)
	tries map[string]int
}

func (b *blobs) Fetch(_ context.Context, url string, limit int64) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tries[url]++
	data, ok := b.data[url]
	if !ok {
		return nil, fmt.Errorf("%w: not found", ErrRefused)
	}
	if int64(len(data)) > limit {
		return nil, ErrTooLong
	}
	data = bytes.Clone(data)
	if b.spoil != nil {
		return b.spoil(url, b.tries[url], data)
	}
	return data, nil
}

// config is a ConfigWriter that writes at the start of the partition and may fail.
type config struct {
	b    *bench
	fail error
}

func (c *config) WriteConfig(_ context.Context, d disk.Disk, p disk.Partition, name string, content []byte) error {
	if c.b.disk.Open() != 0 {
		return errors.New("device or resource busy")
	}
	c.b.disk.SetData(p.Start, []byte(name+":"+string(content)))
	return c.fail
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{now: time.Now(), blobs: &blobs{data: map[string][]byte{}, tries: map[string]int{}}}
	img := deploytest.New(t, deploytest.RootLast, 512, 128, nil)
	b.use(img)
	b.disk = disktest.New("FL-1", diskSize)
	b.machine = &disktest.Machine{Disks: []*disktest.Disk{b.disk}}
	b.config = &config{b: b}
	signer, roots := images(t, b.now, "image-manifest")
	b.d = &Deployer{System: b.machine, Fetch: b.blobs, Config: b.config, Roots: roots, Now: func() time.Time { return b.now }, Ledger: &wipe.Ledger{}}
	b.sign(t, signer)
	return b
}

// use makes the blobs those of an image.
func (b *bench) use(img *deploytest.Image) {
	b.image, b.manifest = img.Raw, img.Manifest
	for name, c := range img.Blobs {
		b.blobs.data["http://site/blob/"+name] = c
	}
}

func (b *bench) sign(t *testing.T, s envelope.Signer) {
	t.Helper()
	body, err := b.manifest.Encode()
	if err != nil {
		t.Fatal(err)
	}
	signed, err := manifest.Sign(body, s)
	if err != nil {
		t.Fatal(err)
	}
	b.blobs.data["http://site/manifest"] = signed
	sum := manifest.DigestOf(signed)
	b.req = Request{Disk: disk.Selector{Serial: "FL-1"}, ManifestURL: "http://site/manifest", ManifestSHA256: sum[:], ChunkBaseURL: "http://site/blob/",
		ConfigName: "config.toml", Config: []byte("node with a secret"), Workflow: "wf-1"}
	b.disk.Info.Partitions = nil
	for _, p := range b.manifest.Partitions {
		b.disk.Info.Partitions = append(b.disk.Info.Partitions, disk.Partition{Name: fmt.Sprint("sda", p.Number), Number: p.Number, Start: p.Start, Size: p.Size})
	}
}

// images is an image signer whose certificate allows purpose.
func images(t *testing.T, now time.Time, purpose string) (envelope.Signer, envelope.Roots) {
	t.Helper()
	ca, leaf := newKey(t), newKey(t)
	caT := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	leafT := &x509.Certificate{SerialNumber: big.NewInt(2), URIs: []*url.URL{ident.SignURI(purpose)}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	var certs []*x509.Certificate
	for _, c := range []struct {
		tmpl *x509.Certificate
		key  *ecdsa.PrivateKey
	}{{caT, ca}, {leafT, leaf}} {
		der, err := x509.CreateCertificate(rand.Reader, c.tmpl, caT, &c.key.PublicKey, ca)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		certs = append(certs, cert)
	}
	return envelope.Signer{Key: leaf, Chain: certs[1:]}, envelope.Roots{Certs: certs[:1]}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// run deploys in a bubble of its own time: retries and waits take none.
func (b *bench) run(t *testing.T) (res Result, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { res, err = b.d.Run(context.Background(), b.req) })
	if b.disk.Open() != 0 {
		t.Errorf("%d handles left open", b.disk.Open())
	}
	return res, err
}

func (b *bench) wantUntouched(t *testing.T) {
	t.Helper()
	if b.disk.Changed() != 0 {
		t.Errorf("%d bytes were changed, want none", b.disk.Changed())
	}
}

func (b *bench) wantUnbootable(t *testing.T, err error) {
	t.Helper()
	data := b.disk.Data()
	if !bytes.Equal(data[:ClearBytes], make([]byte, ClearBytes)) || !bytes.Equal(data[diskSize-ClearBytes:], make([]byte, ClearBytes)) {
		t.Error("the disk's first and last MiB are not cleared")
	}
	if err == nil || !strings.Contains(err.Error(), "unbootable on purpose") || !strings.Contains(err.Error(), "FL-1") {
		t.Errorf("got %v, want the disk named by serial and marked unbootable", err)
	}
}

func TestDeployWritesAndReadsBack(t *testing.T) {
	for _, wiped := range []bool{true, false} {
		b := newBench(t)
		if wiped {
			b.disk.SetData(0, make([]byte, diskSize))
			b.d.Ledger.Record("wf-1", b.disk.Info)
		}
		res, err := b.run(t)
		if err != nil {
			t.Fatal(err)
		}
		if res.Written != res.Verified || res.Chunks != len(b.manifest.Chunks) || len(res.Partitions) != 3 {
			t.Errorf("got %+v", res)
		}
		data := b.disk.Data()
		table, err := gpt.Read(bytes.NewReader(data), diskSize, 512)
		if err != nil || table.Recovered || len(table.Partitions()) != 3 {
			t.Fatalf("partition table: %v", err)
		}
		for _, c := range b.manifest.Chunks[1 : len(b.manifest.Chunks)-1] {
			got := data[c.Offset : c.Offset+c.RawSize]
			if i := bytes.Index(got, []byte("config.toml:node")); i >= 0 {
				continue
			}
			if manifest.DigestOf(got) != c.Raw {
				t.Errorf("chunk at %d is not the image's", c.Offset)
			}
		}
		if bytes.Contains(data, []byte("old data")) {
			t.Error("old data is left on the disk")
		}
		if b.d.Ledger.Take("wf-1", b.disk.Info) {
			t.Error("a written disk still counts as clean")
		}
	}
}

func TestDEP01_TooBigIsRefusedBeforeTheFirstWrite(t *testing.T) {
	b := newBench(t)
	small := disktest.New("FL-1", imageSize-512)
	b.disk, b.machine.Disks = small, []*disktest.Disk{small}
	_, err := b.run(t)
	if !errors.Is(err, ErrTooBig) || !strings.Contains(err.Error(), fmt.Sprint(imageSize)) || !strings.Contains(err.Error(), fmt.Sprint(imageSize-512)) {
		t.Errorf("got %v, want ErrTooBig with both sizes", err)
	}
	b.wantUntouched(t)
}

func TestDEP01_ImageThatFitsToTheLastByteWorks(t *testing.T) {
	b := newBench(t)
	exact := disktest.New("FL-1", imageSize)
	exact.Info.Partitions = b.disk.Info.Partitions
	b.disk, b.machine.Disks = exact, []*disktest.Disk{exact}
	if _, err := b.run(t); err != nil {
		t.Fatal(err)
	}
	if data := exact.Data(); !bytes.Equal(data[imageSize-33*512:], b.image[imageSize-33*512:]) {
		t.Error("the table at the end was not kept")
	}
}

func TestDEP02_CutTransfersEndUnbootable(t *testing.T) {
	for name, spoil := range map[string]func(string, int, []byte) ([]byte, error){
		"ends early":           func(_ string, _ int, c []byte) ([]byte, error) { return c[:len(c)-1], nil },
		"unexpected EOF":       func(string, int, []byte) ([]byte, error) { return nil, io.ErrUnexpectedEOF },
		"server gone for good": func(string, int, []byte) ([]byte, error) { return nil, errors.New("connection refused") },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			last := "http://site/blob/" + b.manifest.Chunks[len(b.manifest.Chunks)-1].Compressed.String()
			b.blobs.spoil = func(url string, try int, c []byte) ([]byte, error) {
				if url == last {
					return spoil(url, try, c)
				}
				return c, nil
			}
			_, err := b.run(t)
			b.wantUnbootable(t, err)
		})
	}
}

func TestDEP02_BrokenTransferIsTakenUpAgain(t *testing.T) {
	b := newBench(t)
	b.blobs.spoil = func(url string, try int, c []byte) ([]byte, error) {
		if try == 1 && strings.Contains(url, "/blob/") {
			return nil, io.ErrUnexpectedEOF
		}
		return c, nil
	}
	if _, err := b.run(t); err != nil {
		t.Error(err)
	}
}

func TestDEP03_WrongDigestIsRetriedOnceThenFails(t *testing.T) {
	b := newBench(t)
	last := "http://site/blob/" + b.manifest.Chunks[len(b.manifest.Chunks)-1].Compressed.String()
	b.blobs.spoil = func(url string, _ int, c []byte) ([]byte, error) {
		if url == last {
			c[len(c)-1] ^= 1
		}
		return c, nil
	}
	_, err := b.run(t)
	if !errors.Is(err, ErrDigest) || !strings.Contains(err.Error(), "compressed content") || b.blobs.tries[last] != DigestAttempts {
		t.Errorf("got %v after %d tries, want ErrDigest of the compressed content after %d", err, b.blobs.tries[last], DigestAttempts)
	}
	b.wantUnbootable(t, err)
}

func TestDEP03_RawDigestIsCheckedToo(t *testing.T) {
	b := newBench(t)
	n := len(b.manifest.Chunks) - 1
	b.manifest.Chunks[n].Raw[0] ^= 1
	signer, roots := images(t, b.now, "image-manifest")
	b.d.Roots = roots
	b.sign(t, signer)
	_, err := b.run(t)
	if !errors.Is(err, ErrDigest) || !strings.Contains(err.Error(), "raw content") {
		t.Errorf("got %v, want ErrDigest of the raw content", err)
	}
	b.wantUnbootable(t, err)
}

func TestDEP03_DiskThatDoesNotHoldWhatWasWritten(t *testing.T) {
	b := newBench(t)
	b.disk.Spoil(disktest.Faults{WriteKeeps: true, ZeroOutKeeps: true})
	_, err := b.run(t)
	if err == nil || !strings.Contains(err.Error(), "read back") || !strings.Contains(err.Error(), "could not be cleared") {
		t.Errorf("got %v, want a failed read back, and the failed clearing said", err)
	}
}

func TestManifestIsCheckedBeforeTheFirstWrite(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*testing.T, *bench)
		want error
	}{
		"one byte of the manifest": {func(_ *testing.T, b *bench) { b.blobs.data["http://site/manifest"][20] ^= 1 }, ErrDigest},
		"no digest":                {func(_ *testing.T, b *bench) { b.req.ManifestSHA256 = nil }, ErrDigest},
		"another signer": {func(t *testing.T, b *bench) {
			s, _ := images(t, b.now, "image-manifest")
			b.sign(t, s)
		}, envelope.ErrUntrusted},
		"a worker's key": {func(t *testing.T, b *bench) {
			s, r := images(t, b.now, "command")
			b.d.Roots = r
			b.sign(t, s)
		}, envelope.ErrUntrusted},
		"wrong serial": {func(_ *testing.T, b *bench) { b.req.Disk.Serial = "NOPE" }, disk.ErrNotFound},
		"first chunk": {func(_ *testing.T, b *bench) {
			delete(b.blobs.data, "http://site/blob/"+b.manifest.Chunks[0].Compressed.String())
		}, ErrRefused},
		"4Kn disk": {func(_ *testing.T, b *bench) {
			b.disk.Info.LogicalBlock = 4096
			b.disk.Exchange(func(d *disk.Disk) { d.LogicalBlock = 4096 })
		}, ErrBlockSize},
		"exchanged": {func(_ *testing.T, b *bench) {
			b.machine.BeforeOpen = func(string) { b.disk.Exchange(func(d *disk.Disk) { d.Sequence++ }) }
		}, disk.ErrDiffers},
		"expired roots": {func(_ *testing.T, b *bench) { b.now = b.now.Add(48 * time.Hour) }, envelope.ErrUntrusted},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			c.edit(t, b)
			if _, err := b.run(t); !errors.Is(err, c.want) || !strings.Contains(err.Error(), "nothing was written") {
				t.Errorf("got %v, want %v and that nothing was written", err, c.want)
			}
			b.wantUntouched(t)
		})
	}
}

func TestDEP10_RereadIsRepeatedWhileTheDiskIsBusy(t *testing.T) {
	b := newBench(t)
	b.disk.Busy(5)
	if _, err := b.run(t); err != nil || b.disk.Rereads() < 6 {
		t.Errorf("got %v after %d re-reads", err, b.disk.Rereads())
	}
	b = newBench(t)
	b.disk.Busy(1000)
	_, err := b.run(t)
	b.wantUnbootable(t, err)
}

func TestDEP10_PartitionsThatNeverComeAreAnError(t *testing.T) {
	b := newBench(t)
	b.disk.Info.Partitions = b.disk.Info.Partitions[:2]
	_, err := b.run(t)
	if err == nil || !strings.Contains(err.Error(), "the image has 3") {
		t.Errorf("got %v, want both counts", err)
	}
	b.wantUnbootable(t, err)
}

func TestFailureAfterTheImageEndsUnbootableToo(t *testing.T) {
	b := newBench(t)
	b.config.fail = errors.New("no vfat")
	_, err := b.run(t)
	b.wantUnbootable(t, err)
	if bytes.Contains(b.disk.Data(), b.req.Config) {
		t.Error("the configuration, with its secret, is left on the disk")
	}
	b = newBench(t)
	b.disk.Spoil(disktest.Faults{FlushErrorAfter: 2 << 20})
	if _, err = b.run(t); err == nil {
		t.Error("a failed flush went unnoticed")
	}
}

func FuzzDecode(f *testing.F) {
	z, _ := zstd.NewWriter(nil)
	f.Add(z.EncodeAll(bytes.Repeat([]byte("x"), 4096), nil))
	f.Add(z.EncodeAll(make([]byte, 1<<20), nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if raw, err := decode(b, 4096); err == nil && len(raw) != 4096 {
			t.Fatalf("%d bytes, want 4096", len(raw))
		}
	})
}
