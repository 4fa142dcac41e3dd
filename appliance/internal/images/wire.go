package images

import (
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	"firstlight/imagebuild/manifest"
)

// manifest reads what this library signed itself and named by its digest.
func (l *Library) manifest(img Image) (*manifest.Manifest, error) {
	data, err := os.ReadFile(filepath.Join(l.blobs.dir, img.ManifestSHA256))
	if err != nil {
		return nil, err
	}
	if got := manifest.DigestOf(data).String(); got != img.ManifestSHA256 {
		return nil, fmt.Errorf("its manifest is damaged: SHA-256 %s, want %s", got, img.ManifestSHA256)
	}
	var signed agentv1.SignedImageManifest
	if err := proto.Unmarshal(data, &signed); err != nil {
		return nil, err
	}
	return manifest.Decode(signed.Body)
}
