package bench

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// What is served, in bytes: a boot program, a RAM disk, a chunk of an image.
const (
	programSize = 1 << 20
	ramdiskSize = 32 << 20
	chunkSize   = 4 << 20
)

// Ports of ours.
const (
	gatewayPort = 8443
	bootPort    = 8080
)

// programName is what is loaded by TFTP.
const programName = "bench.efi"

// content is what ours and the peers serve.
type content struct {
	// firmware, ramdisk and blobs are folders.
	firmware, ramdisk, blobs string
	// program is the content of the boot program, chunk the digest of the image's chunk.
	program []byte
	chunk   string
}

// fill makes the files, of random bytes.
func (r *room) fill() (content, error) {
	c := content{firmware: filepath.Join(r.dir, "firmware"), ramdisk: filepath.Join(r.dir, "ramdisk"), blobs: filepath.Join(r.dir, "blobs"),
		program: make([]byte, programSize)}
	rand.Read(c.program)
	big := make([]byte, ramdiskSize)
	rand.Read(big)
	chunk := big[:chunkSize]
	sum := sha256.Sum256(chunk)
	c.chunk = hex.EncodeToString(sum[:])
	for path, b := range map[string][]byte{
		filepath.Join(c.firmware, programName):       c.program,
		filepath.Join(c.firmware, "snponly.efi"):     c.program,
		filepath.Join(c.ramdisk, "vmlinuz"):          chunk,
		filepath.Join(c.ramdisk, "ramdisk.cpio.zst"): big,
		filepath.Join(c.blobs, c.chunk):              chunk,
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return c, err
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			return c, err
		}
	}
	return c, nil
}

// socket is the appliance's.
func (r *room) socket() string { return filepath.Join(r.dir, "socket") }

// firstlight is the product's program.
func (r *room) firstlight() string { return filepath.Join(r.bin, "firstlight") }

// startAppliance starts `firstlight serve` without boot services.
func (r *room) startAppliance(ctx context.Context) (*process, error) {
	config := fmt.Sprintf(`data_dir = "data"
socket = "socket"
site_id = "site-a"
trust_domain = "firstlight.test"
[gateway]
listen = "%[1]s:%[2]d"
server_name = "gw.site-a.firstlight.test"
[boot]
enabled = false
discovery = true
`, oursIP, gatewayPort)
	if err := os.WriteFile(filepath.Join(r.dir, "serve.toml"), []byte(config), 0o600); err != nil {
		return nil, err
	}
	p, err := r.start(ctx, oursAt, "appliance", r.firstlight(), "serve", "--config", filepath.Join(r.dir, "serve.toml"))
	if err != nil {
		return nil, err
	}
	return p, p.await(ctx, "its word that it is ready", p.said("firstlight: ready"))
}

// startSite starts the site's agent as a process of its own, so that its processor time is its own.
func (r *room) startSite(ctx context.Context, c content) (*process, error) {
	if _, err := r.startAppliance(ctx); err != nil {
		return nil, err
	}
	token, err := exec.CommandContext(ctx, r.firstlight(), "--socket", r.socket(), "join-token").Output()
	if err != nil {
		return nil, fmt.Errorf("firstlight join-token: %w", err)
	}
	config := fmt.Sprintf(`data_dir = "data-site"
blob_dir = %[1]q
[boot]
interface = "eth0"
address = %[2]q
http_listen = "%[2]s:%[3]d"
http_advertise = "%[2]s:%[3]d"
firmware_dir = %[4]q
ramdisk_dir = %[5]q
`, c.blobs, oursIP, bootPort, c.firmware, c.ramdisk)
	for name, b := range map[string][]byte{"site.toml": []byte(config), "token": token} {
		if err := os.WriteFile(filepath.Join(r.dir, name), b, 0o600); err != nil {
			return nil, err
		}
	}
	p, err := r.start(ctx, oursAt, "site", r.firstlight(), "join", filepath.Join(r.dir, "token"), "--config", filepath.Join(r.dir, "site.toml"))
	if err != nil {
		return nil, err
	}
	// The policy comes by the session; without one nobody is answered.
	return p, p.await(ctx, "the boot policy", p.said("boot policy"))
}

// spent is what f costs a process.
func spent(p *process, f func() error) (wall, cpu time.Duration, err error) {
	before, err := p.cpu()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := f(); err != nil {
		return 0, 0, err
	}
	wall = time.Since(began)
	after, err := p.cpu()
	return wall, after - before, err
}
