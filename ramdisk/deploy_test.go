package ramdisk

import (
	"context"
	"crypto/x509"
	"fmt"
	"path"
	"sync"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
	"firstlight/imagebuild/manifest"
	"firstlight/ramdisk/internal/deploy"
	"firstlight/ramdisk/internal/deploy/deploytest"
	"firstlight/ramdisk/internal/disk"
)

// blobs is an image server in memory. It holds the request for one name until it is let go.
type blobs struct {
	signed []byte
	img    *deploytest.Image

	mu      sync.Mutex
	name    string // held
	reached chan struct{}
	release chan struct{}
}

// holdAt holds the next request for name.
func (b *blobs) holdAt(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.name, b.reached, b.release = name, make(chan struct{}), make(chan struct{})
}

func (b *blobs) Fetch(ctx context.Context, url string, _ int64) ([]byte, error) {
	name := path.Base(url)
	b.mu.Lock()
	held := b.name == name
	if held {
		b.name = ""
		close(b.reached)
	}
	release := b.release
	b.mu.Unlock()
	if held {
		select {
		case <-release:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if name == "manifest" {
		return b.signed, nil
	}
	if c, ok := b.img.Blobs[name]; ok {
		return c, nil
	}
	return nil, fmt.Errorf("%w: no %s", deploy.ErrRefused, name)
}

// WriteConfig puts the configuration at the start of its partition, as no file system would.
func (b *bench) WriteConfig(_ context.Context, d disk.Disk, p disk.Partition, name string, content []byte) error {
	b.disk.SetData(p.Start, []byte(name+":"))
	b.disk.SetData(p.Start+int64(len(name))+1, content)
	return nil
}

// image makes a small image deployable on the bench's disk, and returns the command.
func (b *bench) image() *agentv1.DeployImage {
	b.t.Helper()
	img := deploytest.New(b.t, deploytest.RootLast, 512, 128, nil)
	b.blobs = &blobs{img: img, signed: img.Signed(b.t, b.g.Images())}
	b.p.fetch, b.p.config = b.blobs, b
	b.disk.Info.Partitions = img.Shown(b.disk.Info.Name)
	a := b.g.Anchors()
	signing, err := x509.MarshalPKIXPublicKey(b.g.JoinSigningKey())
	if err != nil {
		b.t.Fatal(err)
	}
	sealing, err := x509.MarshalPKIXPublicKey(b.g.JoinEncryptionKey())
	if err != nil {
		b.t.Fatal(err)
	}
	b.g.SetSecret("secret://provisioned/wf-test", []byte("the secret of this deploy"))
	sum := manifest.DigestOf(b.blobs.signed)
	return &agentv1.DeployImage{Disk: &agentv1.DiskSelector{Serial: b.disk.Info.Serial}, ManifestUrl: "http://site/manifest", ManifestSha256: sum[:], ChunkBaseUrl: "http://site/blob",
		Seed: &agentv1.NodeSeed{GatewayUrl: a.GatewayUrl, GatewayServerName: a.GatewayServerName, NodeId: string(node), ServingCaSpkiSha256: a.ServingCaSpkiSha256,
			JoinSigningKey: signing, JoinEncryptionKey: sealing, TrustDomain: a.TrustDomain, SiteId: a.SiteId,
			JoinSecretRef: "secret://provisioned/wf-test", WorkflowId: "wf-test"}}
}
