package manifest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"firstlight/imagebuild/manifest"
)

// sample has a hole, a short last chunk, and a partition of each role.
func sample() manifest.Manifest {
	d := func(s string) manifest.Digest { return manifest.DigestOf([]byte(s)) }
	return manifest.Manifest{
		Version: manifest.Version, Name: "demo-1", RawSize: 3*manifest.ChunkSize + 4096, ChunkSize: manifest.ChunkSize,
		Chunks: []manifest.Chunk{
			{Offset: 0, RawSize: manifest.ChunkSize, Size: 100, Raw: d("a"), Compressed: d("A")},
			{Offset: 3 * manifest.ChunkSize, RawSize: 4096, Size: 20, Raw: d("b"), Compressed: d("B")},
		},
		Partitions: []manifest.Partition{
			{Number: 1, Label: "one", TypeGUID: "c12a7328-f81f-11d2-ba4b-00a0c93ec93b", UUID: "00000000-0000-4000-8000-000000000001", Start: 1 << 20, Size: 1 << 20, Role: manifest.RoleESP},
			{Number: 2, Label: "two", TypeGUID: "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7", UUID: "00000000-0000-4000-8000-000000000002", Start: 2 << 20, Size: 1 << 20, Role: manifest.RoleConfig},
			{Number: 4, Label: "", TypeGUID: "0fc63daf-8483-4772-8e79-3d69d8477de4", UUID: "00000000-0000-4000-8000-000000000003", Start: 4 << 20, Size: 512, Role: manifest.RoleRoot},
		},
		Inputs: []manifest.Input{{Name: "busybox", SHA256: d("busybox")}},
	}
}

func TestEncodeDecode(t *testing.T) {
	t.Parallel()
	body, err := sample().Encode()
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Decode(body)
	if err != nil {
		t.Fatal(err)
	}
	again, err := m.Encode()
	if err != nil || !bytes.Equal(again, body) {
		t.Errorf("encoded again: got %s (error %v), want %s", again, err, body)
	}
	if got, want := m.DataSize(), int64(manifest.ChunkSize+4096); got != want {
		t.Errorf("data size: got %d, want %d", got, want)
	}
	if p, ok := m.Partition(manifest.RoleConfig); !ok || p.Number != 2 {
		t.Errorf("configuration partition: got %+v, want number 2", p)
	}
	if p, ok := m.Partition(""); ok {
		t.Errorf("partition of no role: got %+v, want none", p)
	}
}

// TestEmptyLists: an image that is all zero is an image, and has one spelling.
func TestEmptyLists(t *testing.T) {
	t.Parallel()
	body, err := manifest.Manifest{Version: 1, Name: "z", RawSize: 512, ChunkSize: 4096}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"version":1,"name":"z","raw_size":512,"chunk_size":4096,"chunks":[],"partitions":[],"inputs":[]}`
	if string(body) != want {
		t.Errorf("got %s, want %s", body, want)
	}
	if _, err := manifest.Decode([]byte(strings.Replace(want, `"chunks":[]`, `"chunks":null`, 1))); !errors.Is(err, manifest.ErrInvalid) {
		t.Errorf("null for an empty list: got error %v, want ErrInvalid", err)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	const G = int64(1) << 30
	for _, c := range []struct {
		name, want string
		spoil      func(*manifest.Manifest)
	}{
		{"other version", "version 2", func(m *manifest.Manifest) { m.Version = 2 }},
		{"no name", `name ""`, func(m *manifest.Manifest) { m.Name = "" }},
		{"path as name", `name "a/b"`, func(m *manifest.Manifest) { m.Name = "a/b" }},
		{"hidden name", `name ".a"`, func(m *manifest.Manifest) { m.Name = ".a" }},
		{"no size", "raw size 0", func(m *manifest.Manifest) { m.RawSize = 0 }},
		{"half a sector", "raw size", func(m *manifest.Manifest) { m.RawSize++ }},
		{"vast", "raw size", func(m *manifest.Manifest) { m.RawSize = 1 << 62 }},
		{"odd chunk size", "chunk size", func(m *manifest.Manifest) { m.ChunkSize = 3 << 20 }},
		{"tiny chunk size", "chunk size", func(m *manifest.Manifest) { m.ChunkSize = 512 }},
		{"vast chunk size", "chunk size", func(m *manifest.Manifest) { m.ChunkSize = G }},
		{"chunk beside the grid", "chunk 0: offset 512", func(m *manifest.Manifest) { m.Chunks[0].Offset = 512 }},
		{"chunk before the image", "chunk 0: offset", func(m *manifest.Manifest) { m.Chunks[0].Offset = -manifest.ChunkSize }},
		{"chunk behind the image", "chunk 1: offset", func(m *manifest.Manifest) { m.Chunks[1].Offset = 4 * manifest.ChunkSize }},
		{"chunk twice", "does not ascend", func(m *manifest.Manifest) { m.Chunks[1] = m.Chunks[0] }},
		{"short chunk", "raw size 512", func(m *manifest.Manifest) { m.Chunks[0].RawSize = 512 }},
		{"long last chunk", "want 4096", func(m *manifest.Manifest) { m.Chunks[1].RawSize = manifest.ChunkSize }},
		{"empty frame", "size 0", func(m *manifest.Manifest) { m.Chunks[0].Size = 0 }},
		{"frame that grew", "size 5000000", func(m *manifest.Manifest) { m.Chunks[0].Size = 5000000 }},
		{"no raw digest", "digest missing", func(m *manifest.Manifest) { m.Chunks[0].Raw = manifest.Digest{} }},
		{"no compressed digest", "digest missing", func(m *manifest.Manifest) { m.Chunks[0].Compressed = manifest.Digest{} }},
		{"partition 0", "partition 0", func(m *manifest.Manifest) { m.Partitions[0].Number = 0 }},
		{"partition twice", "does not ascend", func(m *manifest.Manifest) { m.Partitions[1].Number = 1 }},
		{"long label", "label", func(m *manifest.Manifest) { m.Partitions[0].Label = strings.Repeat("x", 37) }},
		{"label with a line end", "label", func(m *manifest.Manifest) { m.Partitions[0].Label = "a\nb" }},
		{"upper-case uuid", "lower-case GUID", func(m *manifest.Manifest) { m.Partitions[0].TypeGUID = strings.ToUpper(m.Partitions[0].TypeGUID) }},
		{"short uuid", "lower-case GUID", func(m *manifest.Manifest) { m.Partitions[0].UUID = "1" }},
		{"uuid twice", "occurs twice", func(m *manifest.Manifest) { m.Partitions[1].UUID = m.Partitions[0].UUID }},
		{"partition over the MBR", "do not lie", func(m *manifest.Manifest) { m.Partitions[0].Start = 0 }},
		{"partition behind the end", "do not lie", func(m *manifest.Manifest) { m.Partitions[2].Size = G }},
		{"partition that wraps", "do not lie", func(m *manifest.Manifest) { m.Partitions[2].Size = 1<<63 - 512 }},
		{"partitions that overlap", "overlaps partition 1", func(m *manifest.Manifest) { m.Partitions[1].Start = 1<<20 + 512 }},
		{"unknown role", "unknown role", func(m *manifest.Manifest) { m.Partitions[0].Role = "swap" }},
		{"role twice", `role "esp" occurs twice`, func(m *manifest.Manifest) { m.Partitions[1].Role = manifest.RoleESP }},
		{"nameless input", "input", func(m *manifest.Manifest) { m.Inputs[0].Name = "" }},
		{"input twice", "occurs twice", func(m *manifest.Manifest) { m.Inputs = append(m.Inputs, m.Inputs[0]) }},
		{"input without digest", "digest missing", func(m *manifest.Manifest) { m.Inputs[0].SHA256 = manifest.Digest{} }},
		{"too many chunks", "chunks, at most", func(m *manifest.Manifest) { m.Chunks = make([]manifest.Chunk, manifest.MaxChunks+1) }},
		{"too many partitions", "partitions, at most", func(m *manifest.Manifest) { m.Partitions = make([]manifest.Partition, 129) }},
		{"too many inputs", "inputs, at most", func(m *manifest.Manifest) { m.Inputs = make([]manifest.Input, manifest.MaxInputs+1) }},
	} {
		m := sample()
		c.spoil(&m)
		if _, err := m.Encode(); !errors.Is(err, manifest.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, encode: got error %v, want ErrInvalid with %q", c.name, err, c.want)
		}
		body, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := manifest.Decode(body); !errors.Is(err, manifest.ErrInvalid) {
			t.Errorf("%s, decode: got error %v, want ErrInvalid", c.name, err)
		}
	}
}

func TestDecodeRefusesOtherSpellings(t *testing.T) {
	t.Parallel()
	body, err := sample().Encode()
	if err != nil {
		t.Fatal(err)
	}
	good := string(body)
	for name, bad := range map[string]string{
		"empty":            "",
		"no JSON":          "{",
		"a list":           "[]",
		"space":            " " + good,
		"line end":         good + "\n",
		"second value":     good + "{}",
		"unknown field":    `{"x":1,` + good[1:],
		"field twice":      `{"version":1,` + good[1:],
		"other case":       strings.Replace(good, `"name"`, `"Name"`, 1),
		"float":            strings.Replace(good, `"version":1`, `"version":1.0`, 1),
		"exponent":         strings.Replace(good, `"version":1`, `"version":1e0`, 1),
		"upper-case hex":   strings.Replace(good, manifest.DigestOf([]byte("a")).String(), strings.ToUpper(manifest.DigestOf([]byte("a")).String()), 1),
		"escaped name":     strings.Replace(good, "demo-1", `\u0064emo-1`, 1),
		"number as string": strings.Replace(good, `"version":1`, `"version":"1"`, 1),
	} {
		if bad == good {
			t.Fatalf("%s: the case changes nothing", name)
		}
		if _, err := manifest.Decode([]byte(bad)); !errors.Is(err, manifest.ErrInvalid) {
			t.Errorf("%s: got error %v, want ErrInvalid", name, err)
		}
	}
	if _, err := manifest.Decode(make([]byte, manifest.MaxBody+1)); !errors.Is(err, manifest.ErrInvalid) {
		t.Errorf("too long: got error %v, want ErrInvalid", err)
	}
}

func TestParseDigest(t *testing.T) {
	t.Parallel()
	want := manifest.DigestOf([]byte("x"))
	if got, err := manifest.ParseDigest(want.String()); err != nil || got != want {
		t.Errorf("got %s (error %v), want %s", got, err, want)
	}
	for _, bad := range []string{"", "00", strings.Repeat("g", 64), strings.Repeat("A", 64), strings.Repeat("0", 65)} {
		if _, err := manifest.ParseDigest(bad); err == nil {
			t.Errorf("digest %q: got no error, want one", bad)
		}
	}
}

func vector(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile("testdata/vectors/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func FuzzDecode(f *testing.F) {
	body, err := sample().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add(vector(f, "body.json"))
	f.Add(vector(f, "demo.json"))
	f.Add([]byte(`{"version":1,"name":"z","raw_size":512,"chunk_size":4096,"chunks":[],"partitions":[],"inputs":[]}`))
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := manifest.Decode(b)
		if err != nil {
			if !errors.Is(err, manifest.ErrInvalid) {
				t.Errorf("got error %v, want one that wraps ErrInvalid", err)
			}
			return
		}
		again, err := m.Encode()
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("accepted %q but encodes as %q (error %v)", b, again, err)
		}
	})
}
