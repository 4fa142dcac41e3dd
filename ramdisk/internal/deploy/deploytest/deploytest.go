// Package deploytest makes small images, as imagebuild would, and serves them well or badly. Nothing in production imports it.
package deploytest

import (
	"bytes"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"firstlight/gateway-client/envelope"
	"firstlight/imagebuild/manifest"
	"firstlight/ramdisk/internal/disk"
	"firstlight/ramdisk/internal/gpt"
	"firstlight/ramdisk/internal/gpt/gpttest"
)

// TypeLinux is the partition type "Linux filesystem data".
const TypeLinux = "0fc63daf-8483-4772-8e79-3d69d8477de4"

// ChunkSize and Size are those of every image here, in bytes.
const (
	ChunkSize = 64 << 10
	Size      = 1 << 20
)

// Part is one partition of an image; First and Last are bytes, multiples of 4096.
type Part struct {
	Type, Name, Role string
	First, End       int64
}

// RootLast and ESPLast are the two orders that matter.
var (
	RootLast = []Part{{gpt.TypeESP, "esp", manifest.RoleESP, 64 << 10, 128 << 10}, {TypeLinux, "firstlight-config", manifest.RoleConfig, 128 << 10, 192 << 10},
		{TypeLinux, "firstlight-root", manifest.RoleRoot, 192 << 10, 752 << 10}}
	ESPLast = []Part{{TypeLinux, "firstlight-root", manifest.RoleRoot, 64 << 10, 512 << 10}, {TypeLinux, "firstlight-config", manifest.RoleConfig, 512 << 10, 576 << 10},
		{gpt.TypeESP, "esp", manifest.RoleESP, 640 << 10, 752 << 10}}
)

// Image is an image with its manifest and blobs.
type Image struct {
	Raw      []byte
	Manifest *manifest.Manifest
	// Blobs are by the text of their digest.
	Blobs map[string][]byte
}

// New makes an image whose table is made for blocks of block bytes, with entries of each bytes. spoil may change the raw image
// before it is cut into chunks; nil changes nothing.
func New(tb testing.TB, parts []Part, block, each int64, spoil func(raw []byte)) *Image {
	tb.Helper()
	var ps []gpttest.Partition
	for _, p := range parts {
		ps = append(ps, gpttest.Partition{Type: p.Type, Name: p.Name, First: p.First / block, Last: p.End/block - 1})
	}
	img := &Image{Raw: gpttest.Image(Size/block, block, 128, each, ps), Blobs: map[string][]byte{},
		Manifest: &manifest.Manifest{Version: manifest.Version, Name: "demo", RawSize: Size, ChunkSize: ChunkSize}}
	r := rand.NewChaCha8([32]byte{1})
	for _, off := range []int{64 << 10, 300 << 10, 700 << 10} {
		r.Read(img.Raw[off : off+5000])
	}
	r.Read(img.Raw[:440]) // the boot code of a BIOS
	for i, p := range parts {
		img.Manifest.Partitions = append(img.Manifest.Partitions, manifest.Partition{Number: i + 1, Label: p.Name, TypeGUID: p.Type, UUID: gpttest.GUID(i + 1),
			Start: p.First, Size: p.End - p.First, Role: p.Role})
	}
	if spoil != nil {
		spoil(img.Raw)
	}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		tb.Fatal(err)
	}
	for off := 0; off < Size; off += ChunkSize {
		raw := img.Raw[off : off+ChunkSize]
		if bytes.Equal(raw, make([]byte, ChunkSize)) {
			continue
		}
		c := z.EncodeAll(raw, nil)
		d := manifest.DigestOf(c)
		img.Manifest.Chunks = append(img.Manifest.Chunks, manifest.Chunk{Offset: int64(off), RawSize: ChunkSize, Size: int64(len(c)), Raw: manifest.DigestOf(raw), Compressed: d})
		img.Blobs[d.String()] = c
	}
	return img
}

// Signed is the manifest as it travels.
func (i *Image) Signed(tb testing.TB, s envelope.Signer) []byte {
	tb.Helper()
	body, err := i.Manifest.Encode()
	if err != nil {
		tb.Fatal(err)
	}
	signed, err := manifest.Sign(body, s)
	if err != nil {
		tb.Fatal(err)
	}
	return signed
}

// Shown are the partitions as the kernel shows them on disk name.
func (i *Image) Shown(name string) []disk.Partition {
	var out []disk.Partition
	for n, p := range i.Manifest.Partitions {
		out = append(out, disk.Partition{Name: name + string(rune('1'+n)), Number: p.Number, Start: p.Start, Size: p.Size})
	}
	return out
}

// Blob is the path of chunk n on the server of Handler.
func (i *Image) Blob(n int) string { return "/blob/" + i.Manifest.Chunks[n].Compressed.String() }

// Handler serves /manifest and /blob/…, after fault had its turn: it returns true when it has answered. nil serves well.
func (i *Image) Handler(signed []byte, fault func(w http.ResponseWriter, r *http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault != nil && fault(w, r) {
			return
		}
		b, ok := i.Blobs[strings.TrimPrefix(r.URL.Path, "/blob/")]
		if r.URL.Path == "/manifest" {
			b, ok = signed, true
		}
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Write(b)
	})
}
