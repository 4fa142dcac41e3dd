package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/images"
	"firstlight/imagebuild/manifest"
)

// sayEvery is how often progress is said where no terminal shows it live.
const sayEvery = 10 * time.Second

type imagesAdd struct {
	Name string `arg:"" help:"Name for the image."`
	Dir  string `arg:"" help:"Output directory of imagebuild pack."`
}

// Run sends what the appliance does not have yet. Run again after a break, it goes on where it was.
func (i *imagesAdd) Run(c *call) error {
	const op = "add image"
	body, m, err := readManifest(i.Dir)
	if err != nil {
		return fault.New(fault.Invalid, op, i.Name, err, "make it with `imagebuild pack` and give that command's output directory")
	}
	sizes := make(map[string]int64, len(m.Chunks))
	for _, x := range m.Chunks {
		sizes[x.Compressed.String()] = x.Size
	}
	up, err := c.client.BeginUpload(c.ctx, api.BeginUpload{Name: i.Name, Manifest: body})
	if err != nil {
		return err
	}
	if up.Image != nil {
		return c.print(up.Image, func(w io.Writer) { showAdded(w, *up.Image) })
	}
	p := newSending(c.Stderr, up)
	for _, sum := range up.Missing {
		if err := i.send(c, up.ID, sum, sizes[sum]); err != nil {
			p.end()
			return err
		}
		p.sent(sizes[sum])
	}
	p.end()
	img, err := c.client.FinishUpload(c.ctx, up.ID)
	if err != nil {
		return err
	}
	return c.print(img, func(w io.Writer) { showAdded(w, img) })
}

func (i *imagesAdd) send(c *call, id, sum string, size int64) error {
	f, err := os.Open(filepath.Join(i.Dir, "blobs", sum))
	if err != nil {
		return fault.New(fault.Invalid, "add image", i.Name, err, "make it again with `imagebuild pack`; what was sent is not sent again")
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Size() != size {
		err = fmt.Errorf("%s has %d bytes, the manifest says %d", f.Name(), info.Size(), size)
	}
	if err != nil {
		return fault.New(fault.Invalid, "add image", i.Name, err, "make it again with `imagebuild pack`; what was sent is not sent again")
	}
	_, err = c.client.PutBlob(c.ctx, id, sum, size, f)
	return err
}

func readManifest(dir string) ([]byte, *manifest.Manifest, error) {
	f, err := os.Open(filepath.Join(dir, "manifest.json"))
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, manifest.MaxBody+1))
	if err != nil {
		return nil, nil, err
	}
	m, err := manifest.Decode(body)
	return body, m, err
}

func showAdded(w io.Writer, img images.Image) {
	fmt.Fprintf(w, "image %s added: %s in %d chunks, %s stored, manifest %s\n", img.Name, size(img.RawSize), img.Chunks, size(img.StoredSize), img.ManifestSHA256)
}

// sending says how far an upload is: live on a terminal, and else a line now and then.
type sending struct {
	w           io.Writer
	live        bool
	began, said time.Time
	// from is what was there before, so that the rate is only of what is sent now.
	from, have, total int64
}

func newSending(w io.Writer, up api.Upload) *sending {
	p := &sending{w: w, live: terminal(w), began: time.Now(), from: up.Have, have: up.Have, total: up.Total}
	if up.Have > 0 {
		fmt.Fprintf(w, "%s of %s are there already\n", size(up.Have), size(up.Total))
	}
	return p
}

func (p *sending) sent(n int64) {
	p.have += n
	now := time.Now()
	if !p.live && now.Sub(p.said) < sayEvery || p.have >= p.total && !p.live {
		return
	}
	p.said = now
	text := p.text(now)
	if p.live {
		fmt.Fprintf(p.w, "\r\x1b[K%s", text)
	} else {
		fmt.Fprintln(p.w, text)
	}
}

func (p *sending) text(now time.Time) string {
	text := fmt.Sprintf("sending: %d %%, %s of %s", p.have*100/max(1, p.total), size(p.have), size(p.total))
	spent := now.Sub(p.began).Seconds()
	if done := p.have - p.from; done > 0 && spent >= 1 {
		rate := float64(done) / spent
		text += fmt.Sprintf(", %s/s, %.0f s left", size(int64(rate)), float64(p.total-p.have)/rate)
	}
	return text
}

// end leaves the live line behind.
func (p *sending) end() {
	if p.live {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

type imagesRemove struct {
	Name string `arg:"" help:"Name of the image."`
	Yes  bool   `help:"Do not ask."`
}

// Run implements the command.
func (i *imagesRemove) Run(c *call) error {
	const op = "remove image"
	all, err := c.client.Images(c.ctx)
	if err != nil {
		return err
	}
	for _, img := range all {
		if img.Name != i.Name {
			continue
		}
		if err := c.sure(op, i.Name, fmt.Sprintf("image %s (%s stored, manifest %s) will be removed", img.Name, size(img.StoredSize), img.ManifestSHA256), i.Yes); err != nil {
			return err
		}
		out, err := c.client.RemoveImage(c.ctx, i.Name)
		if err != nil {
			return err
		}
		return c.print(out, func(w io.Writer) { fmt.Fprintf(w, "image %s is removed\n", out.Name) })
	}
	return fault.New(fault.NotFound, op, i.Name, errors.New("there is no image of this name"), "see `firstlight images` for the names")
}
