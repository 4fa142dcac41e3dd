package peer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/u-root/u-root/pkg/cpio"
	"google.golang.org/protobuf/proto"

	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
)

// Bounds of what the site serves for one boot.
const (
	maxScript  = 64 << 10
	maxOverlay = 1 << 20
	fetchLimit = 30 * time.Second
)

// Names inside the overlays.
const (
	anchorsPath   = "etc/firstlight/trust.binpb"
	assertionPath = "etc/firstlight/assertion.binpb"
)

// Boot is what the site serves for one boot, as anybody on the segment may fetch it.
type Boot struct {
	ScriptURL string
	// Overlay is the file that is made for this boot; BootURL is where it is.
	Overlay []byte
	BootURL string
	// Anchors come with the site's overlay, Assertion (serialized SignedDiscoveryAssertion) with this boot's.
	Anchors   *sitev1.TrustAnchors
	Assertion []byte
}

// FetchBoot fetches a boot script and the two overlays that it names.
func (h Host) FetchBoot(ctx context.Context, scriptURL string) (*Boot, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	script, err := h.get(ctx, scriptURL, maxScript)
	if err != nil {
		return nil, err
	}
	b := &Boot{ScriptURL: scriptURL}
	siteURL := ""
	for _, word := range strings.Fields(string(script)) {
		switch {
		case !strings.HasPrefix(word, "http://"):
		case strings.HasSuffix(word, "/site.cpio"):
			siteURL = word
		case strings.HasSuffix(word, "/boot.cpio"):
			b.BootURL = word
		}
	}
	if siteURL == "" || b.BootURL == "" {
		return nil, fmt.Errorf("boot script %s names no site.cpio and boot.cpio", scriptURL)
	}
	site, err := h.get(ctx, siteURL, maxOverlay)
	if err != nil {
		return nil, err
	}
	if b.Overlay, err = h.get(ctx, b.BootURL, maxOverlay); err != nil {
		return nil, err
	}
	anchors, err := fileOf(site, anchorsPath)
	if err != nil {
		return nil, err
	}
	b.Anchors = &sitev1.TrustAnchors{}
	if err := proto.Unmarshal(anchors, b.Anchors); err != nil {
		return nil, fmt.Errorf("trust anchors: %w", err)
	}
	b.Assertion, err = fileOf(b.Overlay, assertionPath)
	return b, err
}

// FetchOverlay fetches one overlay as it is.
func (h Host) FetchOverlay(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	return h.get(ctx, url, maxOverlay)
}

func (h Host) get(ctx context.Context, url string, limit int64) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	c := &http.Client{Transport: &http.Transport{DialContext: h.Dial, DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", url, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && int64(len(body)) > limit {
		err = fmt.Errorf("over %d bytes", limit)
	}
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", url, err)
	}
	return body, nil
}

// fileOf returns a file of an uncompressed cpio archive.
func fileOf(archive []byte, name string) ([]byte, error) {
	r := cpio.Newc.Reader(bytes.NewReader(archive))
	for {
		rec, err := r.ReadRecord()
		if err == io.EOF {
			return nil, fmt.Errorf("overlay has no file %s", name)
		}
		if err != nil {
			return nil, fmt.Errorf("read overlay: %w", err)
		}
		if strings.TrimPrefix(rec.Name, "/") != name {
			continue
		}
		b, err := io.ReadAll(io.NewSectionReader(rec, 0, maxOverlay))
		if err != nil {
			return nil, fmt.Errorf("read %s of overlay: %w", name, err)
		}
		return b, nil
	}
}
