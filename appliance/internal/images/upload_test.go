package images

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"firstlight/imagebuild/manifest"
)

// packed is an image as `imagebuild pack` wrote it, in memory.
func packed(t *testing.T, fill byte) (body []byte, blobs map[manifest.Digest][]byte) {
	t.Helper()
	dir := pack(t, fill)
	body, blobs = mustRead(t, filepath.Join(dir, "manifest.json")), map[manifest.Digest][]byte{}
	m, err := manifest.Decode(body)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range m.Chunks {
		blobs[c.Compressed] = mustRead(t, filepath.Join(dir, "blobs", c.Compressed.String()))
	}
	return body, blobs
}

func begin(t *testing.T, l *Library, name string, body []byte) Upload {
	t.Helper()
	up, err := l.BeginUpload(t.Context(), name, body)
	if err != nil {
		t.Fatal(err)
	}
	return up
}

func TestUpload(t *testing.T) {
	l := library(t)
	body, blobs := packed(t, 'a')
	up := begin(t, l, "demo", body)
	if len(up.Missing) != 2 || up.Have != 0 || up.Total == 0 || up.Image != nil {
		t.Fatalf("got %+v, want two blobs missing", up)
	}
	if _, err := l.FinishUpload(t.Context(), up.ID); !errors.Is(err, ErrIncomplete) {
		t.Errorf("finish: got %v, want ErrIncomplete", err)
	}
	if _, err := l.PutBlob(t.Context(), up.ID, up.Missing[0], bytes.NewReader(blobs[up.Missing[0]])); err != nil {
		t.Fatal(err)
	}
	// The process ends here; the next one goes on where it was.
	again, err := New(l.store, l.blobs.dir, l.signer, l.now)
	if err != nil {
		t.Fatal(err)
	}
	more := begin(t, again, "demo", body)
	if more.ID != up.ID || len(more.Missing) != 1 || more.Missing[0] != up.Missing[1] || more.Have == 0 {
		t.Fatalf("got %+v, want the second blob missing of the same upload", more)
	}
	last, err := again.PutBlob(t.Context(), more.ID, more.Missing[0], bytes.NewReader(blobs[more.Missing[0]]))
	if err != nil || last.Have != last.Total {
		t.Fatalf("got %+v, %v, want all of it", last, err)
	}
	img, err := again.FinishUpload(t.Context(), more.ID)
	if err != nil || img.Name != "demo" || img.Chunks != 2 || img.RawSize != 3*chunkSize {
		t.Fatalf("got %+v, %v, want the image", img, err)
	}
	if same, err := again.Add(t.Context(), "demo", pack(t, 'a')); err != nil || same != img {
		t.Errorf("got %+v, %v, want the same image as a directory gives", same, err)
	}
	if done := begin(t, again, "demo", body); done.Image == nil || len(done.Missing) != 0 {
		t.Errorf("got %+v, want nothing to send for an image that is known", done)
	}
	other, _ := packed(t, 'b')
	if _, err := again.BeginUpload(t.Context(), "demo", other); !errors.Is(err, ErrExists) {
		t.Errorf("another image of that name: got %v, want ErrExists", err)
	}
	if left, err := os.ReadDir(again.uploadsDir); err != nil || len(left) != 0 {
		t.Errorf("got %d files of uploads, %v, want none", len(left), err)
	}
}

func TestPutBlobRefuses(t *testing.T) {
	l := library(t)
	body, blobs := packed(t, 'a')
	up := begin(t, l, "demo", body)
	d := up.Missing[0]
	blob := blobs[d]
	damaged := bytes.Clone(blob)
	damaged[len(damaged)-1] ^= 1
	for name, tc := range map[string]struct {
		d    manifest.Digest
		body io.Reader
		word string
	}{
		"cut":     {d, bytes.NewReader(blob[:len(blob)-1]), "broke off"},
		"longer":  {d, bytes.NewReader(append(bytes.Clone(blob), 0)), "over the"},
		"damaged": {d, bytes.NewReader(damaged), "SHA-256"},
		"other":   {manifest.DigestOf([]byte("x")), bytes.NewReader(blob), "does not name it"},
	} {
		if _, err := l.PutBlob(t.Context(), up.ID, tc.d, tc.body); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.word) {
			t.Errorf("%s: got %v, want ErrInvalid that says %q", name, err, tc.word)
		}
	}
	if now, err := l.Upload(up.ID); err != nil || len(now.Missing) != 2 {
		t.Errorf("got %+v, %v, want nothing taken", now, err)
	}
	if _, err := l.PutBlob(t.Context(), "../x", d, bytes.NewReader(blob)); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v, want ErrUnknown", err)
	}
	if _, err := l.BeginUpload(t.Context(), "../x", body); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	if _, err := l.BeginUpload(t.Context(), "demo", []byte(`{}`)); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

func TestFinishReadsBack(t *testing.T) {
	l := library(t)
	body, blobs := packed(t, 'a')
	up := begin(t, l, "demo", body)
	for d, blob := range blobs {
		if _, err := l.PutBlob(t.Context(), up.ID, d, bytes.NewReader(blob)); err != nil {
			t.Fatal(err)
		}
	}
	rotten := filepath.Join(l.blobs.dir, up.Missing[0].String())
	write(t, rotten, bytes.Repeat([]byte{0}, len(blobs[up.Missing[0]])))
	if _, err := l.FinishUpload(t.Context(), up.ID); !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), "read back") {
		t.Fatalf("got %v, want it refused because a blob does not read back", err)
	}
	if now, err := l.Upload(up.ID); err != nil || len(now.Missing) != 1 || now.Missing[0] != up.Missing[0] {
		t.Fatalf("got %+v, %v, want that blob again", now, err)
	}
	if _, err := l.PutBlob(t.Context(), up.ID, up.Missing[0], bytes.NewReader(blobs[up.Missing[0]])); err != nil {
		t.Fatal(err)
	}
	if _, err := l.FinishUpload(t.Context(), up.ID); err != nil {
		t.Error(err)
	}
}

// APP-02: an upload is refused before it starves the state, in words with numbers; when space is there again it goes on by itself.
func TestAPP02UploadLeavesTheReserve(t *testing.T) {
	l := library(t)
	free := Space{Free: 10 << 30, Total: 100 << 30}
	l.space = func(string) (Space, error) { return free, nil }
	body, blobs := packed(t, 'a')
	reserve := free.Reserve()
	if reserve != 5<<30 {
		t.Fatalf("got a reserve of %d, want a twentieth of the volume", reserve)
	}

	free.Free = reserve + 10 // less than the image
	if _, err := l.BeginUpload(t.Context(), "demo", body); !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), "5120 MiB stay reserved") {
		t.Fatalf("begin: got %v, want ErrNoRoom that says what stays reserved", err)
	}
	if _, err := l.Add(t.Context(), "demo", pack(t, 'a')); !errors.Is(err, ErrNoRoom) {
		t.Fatalf("add: got %v, want ErrNoRoom", err)
	}
	if left, err := os.ReadDir(l.blobs.dir); err != nil || len(left) != 0 {
		t.Fatalf("got %d blobs, %v, want none stored", len(left), err)
	}

	// Something else fills the volume in the middle: the next blob is refused, what is here stays.
	free.Free = 10 << 30
	up := begin(t, l, "demo", body)
	if _, err := l.PutBlob(t.Context(), up.ID, up.Missing[0], bytes.NewReader(blobs[up.Missing[0]])); err != nil {
		t.Fatal(err)
	}
	free.Free = reserve
	if _, err := l.PutBlob(t.Context(), up.ID, up.Missing[1], bytes.NewReader(blobs[up.Missing[1]])); !errors.Is(err, ErrNoRoom) {
		t.Fatalf("put: got %v, want ErrNoRoom", err)
	}
	free.Free, free.Inodes, free.FreeInodes = 10<<30, 1000, 50
	if _, err := l.PutBlob(t.Context(), up.ID, up.Missing[1], bytes.NewReader(blobs[up.Missing[1]])); !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), "inodes") {
		t.Fatalf("put without inodes: got %v, want ErrNoRoom", err)
	}
	free.FreeInodes = 500
	if _, err := l.PutBlob(t.Context(), up.ID, up.Missing[1], bytes.NewReader(blobs[up.Missing[1]])); err != nil {
		t.Fatalf("with space again: %v", err)
	}
	if _, err := l.FinishUpload(t.Context(), up.ID); err != nil {
		t.Error(err)
	}
}

// APP-02: what other uploads were promised counts as taken.
func TestAPP02PromisesCount(t *testing.T) {
	l := library(t)
	body, _ := packed(t, 'a')
	up := begin(t, l, "one", body)
	l.space = func(string) (Space, error) {
		return Space{Free: reserveMin + up.Total + up.Total/2, Total: 1 << 30}, nil
	}
	other, _ := packed(t, 'b')
	if _, err := l.BeginUpload(t.Context(), "two", other); !errors.Is(err, ErrNoRoom) {
		t.Errorf("got %v, want no room beside the first one", err)
	}
	if _, err := l.BeginUpload(t.Context(), "one", body); err != nil {
		t.Errorf("the first one again: %v", err)
	}
	if err := l.DropUpload(t.Context(), up.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := l.BeginUpload(t.Context(), "two", other); err != nil {
		t.Errorf("after the first was dropped: %v", err)
	}
}

func TestUploadsAreBounded(t *testing.T) {
	l := library(t)
	body, _ := packed(t, 'a')
	var first Upload
	for i := range MaxUploads {
		up := begin(t, l, "demo"+string(rune('a'+i)), body)
		if i == 0 {
			first = up
		}
	}
	if _, err := l.BeginUpload(t.Context(), "more", body); !errors.Is(err, ErrNoRoom) {
		t.Fatalf("got %v, want ErrNoRoom", err)
	}
	// One that nobody went on with for a week makes room.
	old := added.Add(-UploadLife - time.Hour)
	if err := os.Chtimes(l.file(first.ID), old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := l.BeginUpload(t.Context(), "more", body); err != nil {
		t.Error(err)
	}
	if _, err := l.Upload(first.ID); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v, want the old upload gone", err)
	}
}

func TestRemove(t *testing.T) {
	l := library(t)
	for name, fill := range map[string]byte{"a": 'a', "twin": 'a', "b": 'b'} {
		if _, err := l.Add(t.Context(), name, pack(t, fill)); err != nil {
			t.Fatal(err)
		}
	}
	count := func() int {
		names, err := os.ReadDir(l.blobs.dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	whole := count()
	if err := l.Remove(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	shared := count()
	if err := l.Remove(t.Context(), "twin"); err != nil {
		t.Fatal(err)
	}
	if left := count(); whole != 7 && whole != 6 || shared < 5 || left != 3 {
		t.Errorf("got %d blobs, then %d, then %d, want the chunks to stay until the last image that names them goes", whole, shared, left)
	}
	if err := l.Remove(t.Context(), "a"); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v, want ErrUnknown", err)
	}
	all, err := l.List(t.Context())
	if err != nil || len(all) != 1 || all[0].Name != "b" {
		t.Errorf("got %+v, %v, want b", all, err)
	}
}

// A manifest that does not read keeps every blob: better too much than an image without its chunks.
// Who sends a blob slowly holds nobody up: others send, finish and remove meanwhile. What comes for an upload that was dropped is not kept.
func TestSlowBlobHoldsNobodyUp(t *testing.T) {
	l := library(t)
	if _, err := l.Add(t.Context(), "old", pack(t, 'o')); err != nil {
		t.Fatal(err)
	}
	body, blobs := packed(t, 'a')
	up := begin(t, l, "demo", body)
	d := up.Missing[0]
	from, to := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := l.PutBlob(context.Background(), up.ID, d, from)
		ended <- err
	}()
	if _, err := to.Write(blobs[d][:1]); err != nil { // it is being read
		t.Fatal(err)
	}
	others := make(chan error, 1)
	go func() {
		err := l.Remove(context.Background(), "old")
		if err == nil {
			err = l.DropUpload(context.Background(), up.ID)
		}
		others <- err
	}()
	select {
	case err := <-others:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("removing an image waits for somebody's blob")
	}
	if _, err := to.Write(blobs[d][1:]); err != nil {
		t.Fatal(err)
	}
	to.Close()
	if err := <-ended; !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v, want ErrUnknown for an upload that was dropped", err)
	}
	if l.blobs.has(d, int64(len(blobs[d]))) {
		t.Error("the blob of an upload that was dropped is kept")
	}
}

func TestRemoveKeepsWhatItCannotTell(t *testing.T) {
	l := library(t)
	b, err := l.Add(t.Context(), "b", pack(t, 'b'))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Add(t.Context(), "a", pack(t, 'a')); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(l.blobs.dir, b.ManifestSHA256), []byte("rotten"))
	before, err := os.ReadDir(l.blobs.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), `image "b"`) {
		t.Errorf("got %v, want the damaged image named", err)
	}
	after, err := os.ReadDir(l.blobs.dir)
	if err != nil || len(after) != len(before) {
		t.Errorf("got %d blobs, %v, want all %d", len(after), err, len(before))
	}
}
