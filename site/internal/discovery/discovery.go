// Package discovery makes what a network-booted machine is handed: the iPXE script of its boot, the overlay initrd with the
// site's trust anchors, and the one with the assertion that the site signs for this boot.
//
// It is for the site agent. It decides nothing about leases and does no I/O; what it returns is bytes to serve.
package discovery

import (
	"bytes"
	"fmt"
	"time"

	"github.com/u-root/u-root/pkg/cpio"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
	sitev1 "firstlight/gateway-client/proto/bettercompute/site/v1"
	"firstlight/ipxe"
	"firstlight/site/internal/lease"
)

const (
	// Lifetime is how long an assertion is good: from the script to the Join.
	Lifetime = 15 * time.Minute
	// Fresh is how much of its life an assertion must still have when it is served.
	Fresh = 10 * time.Minute
	// blockSize is what each overlay is padded to, so that iPXE and the kernel find the next initrd at a multiple of four.
	blockSize = 512
)

// Names of the RAM disk's files, and paths of a boot's.
const (
	KernelFile  = "vmlinuz"
	RAMDiskFile = "ramdisk.cpio.zst"
	ScriptFile  = "script.ipxe"
	SiteFile    = "site.cpio"
	BootFile    = "boot.cpio"
	ReportPath  = "report"
	FailedPath  = "failed"
)

// Where the overlays put their content.
const (
	TrustPath     = "etc/firstlight/trust.binpb"
	AssertionPath = "etc/firstlight/assertion.binpb"
)

// Site is what all boots of a site have in common.
type Site struct {
	TrustDomain, SiteID string
	// HTTP is the host:port of addresses.
	HTTP string
	// KernelArgs come before those of the lease.
	KernelArgs []string
}

// ScriptURL is the address of the script of a boot.
func (s Site) ScriptURL(token string) string { return s.boot(token, ScriptFile) }

// FileURL is the address of another file of a boot.
func (s Site) FileURL(token, name string) string { return s.boot(token, name) }

func (s Site) boot(token, name string) string {
	return "http://" + s.HTTP + "/b/" + token + "/" + name
}

// Script returns the iPXE script of a lease's boot.
func (s Site) Script(l lease.Lease) ([]byte, error) {
	files := "http://" + s.HTTP + "/f/"
	args := append(append([]string{}, s.KernelArgs...), l.KernelArgs...)
	return ipxe.Boot{
		Banner: fmt.Sprintf("%s at site %s, boot lease %s", l.Machine, s.SiteID, l.ID),
		Kernel: ipxe.Image{Name: "kernel", URL: files + KernelFile},
		Initrds: []ipxe.Image{
			{Name: "ramdisk", URL: files + RAMDiskFile},
			{Name: "site", URL: s.boot(l.Token, SiteFile)},
			{Name: "boot", URL: s.boot(l.Token, BootFile)},
		},
		Args:    args,
		FailURL: s.boot(l.Token, FailedPath),
	}.Script()
}

// SiteOverlay returns the initrd with a serialized TrustAnchors message.
func SiteOverlay(anchors []byte) ([]byte, error) { return overlay(TrustPath, anchors) }

// BootOverlay returns the initrd with a fresh assertion for the lease's boot, signed by the site agent's node key, and when the
// assertion ends.
func (s Site) BootOverlay(l lease.Lease, by envelope.Signer, now time.Time) ([]byte, time.Time, error) {
	end := now.Add(Lifetime)
	body, err := proto.Marshal(&sitev1.DiscoveryAssertion{
		AssertionId: ident.New("da"), TrustDomain: s.TrustDomain, SiteId: s.SiteID,
		NodeId: l.NodeID, LeaseId: l.ID, WorkflowId: l.WorkflowID,
		Macs: bootFirst(l), SystemUuid: l.SystemUUID,
		IssuedAt: timestamppb.New(now), NotAfter: timestamppb.New(end),
		ReportUrl: s.boot(l.Token, ReportPath),
	})
	if err != nil {
		return nil, end, fmt.Errorf("assertion for lease %s: %w", l.ID, err)
	}
	sig, err := by.Sign(envelope.DiscoveryAssertion, body)
	if err != nil {
		return nil, end, fmt.Errorf("assertion for lease %s: %w", l.ID, err)
	}
	signed, err := proto.Marshal(&sitev1.SignedDiscoveryAssertion{Body: body, Signature: sig})
	if err != nil {
		return nil, end, fmt.Errorf("assertion for lease %s: %w", l.ID, err)
	}
	out, err := overlay(AssertionPath, signed)
	return out, end, err
}

// bootFirst returns the lease's MACs, the one that booted first.
func bootFirst(l lease.Lease) []string {
	out := make([]string, 0, len(l.MACs))
	for _, m := range l.MACs {
		if m == l.BootMAC {
			out = append([]string{m}, out...)
			continue
		}
		out = append(out, m)
	}
	return out
}

// overlay returns an uncompressed newc archive with one file below etc/firstlight, the same bytes for the same content.
func overlay(path string, content []byte) ([]byte, error) {
	var b bytes.Buffer
	w := cpio.Newc.Writer(&b)
	records := []cpio.Record{
		cpio.Directory("etc", 0o755),
		cpio.Directory("etc/firstlight", 0o755),
		cpio.StaticFile(path, string(content), 0o444),
	}
	for i := range records {
		records[i].Ino = uint64(i + 1)
		records[i].NLink = 1
	}
	if err := cpio.WriteRecords(w, records); err != nil {
		return nil, fmt.Errorf("overlay %s: %w", path, err)
	}
	if err := cpio.WriteTrailer(w); err != nil {
		return nil, fmt.Errorf("overlay %s: %w", path, err)
	}
	b.Write(make([]byte, (blockSize-b.Len()%blockSize)%blockSize))
	return b.Bytes(), nil
}
