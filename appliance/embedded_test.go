package appliance

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"firstlight/appliance/internal/config"
	"firstlight/appliance/internal/fleet"
)

// inside says that this process is alone in its network namespace.
const inside = "FIRSTLIGHT_TEST_NETNS"

// The embedded site agent takes ports 67, 69 and 4011, so the test runs itself again in a network of its own.
func TestEmbeddedSiteAgent(t *testing.T) {
	if os.Getenv(inside) != "" {
		embeddedSiteAgent(t)
		return
	}
	if os.Getuid() != 0 {
		t.Skip("reason: only root can make a network namespace")
	}
	for _, tool := range []string{"unshare", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("reason: ", err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--net", exe, "-test.run", "^TestEmbeddedSiteAgent$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("inside the namespace: %v\n%s", err, out)
	}
}

func embeddedSiteAgent(t *testing.T) {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "boot0", "type", "veth", "peer", "name", "boot1"},
		{"address", "add", "10.77.0.2/24", "dev", "boot0"},
		{"link", "set", "boot0", "up"},
		{"link", "set", "boot1", "up"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	dir := t.TempDir()
	for _, f := range []string{"firmware/snponly.efi", "ramdisk/vmlinuz", "ramdisk/ramdisk.cpio.zst"} {
		path := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := config.Parse(`
data_dir = "data"
socket = "s"
site_id = "site-a"
trust_domain = "firstlight.test"
[gateway]
listen = "10.77.0.2:8443"
server_name = "gw.site-a.firstlight.test"
[boot]
interface = "boot0"
address = "10.77.0.2"
http_listen = "10.77.0.2:8080"
http_advertise = "10.77.0.2:8080"
firmware_dir = "firmware"
ramdisk_dir = "ramdisk"
`, dir)
	if err != nil {
		t.Fatal(err)
	}
	first := sessionOf(t, file)
	if again := sessionOf(t, file); again.NodeID != first.NodeID || again.KeyID != first.KeyID || again.Used != first.Used {
		t.Errorf("after a restart: got %s by key %s, joined %s, want %s by key %s, joined %s: the same identity and no second join",
			again.NodeID, again.KeyID, again.Used, first.NodeID, first.KeyID, first.Used)
	}
}

// sessionOf runs the appliance until its site agent has a session, and returns what is recorded of that agent.
func sessionOf(t *testing.T, file *config.Config) fleet.Agent {
	t.Helper()
	a, err := New(Config{File: file})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(file.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := a.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	changes, err := p.store.Watch(t.Context(), "events/")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.run(ctx) }()
	await(t, changes)
	agent, err := p.fleet.Agent(t.Context(), string(p.siteNode))
	if err != nil {
		t.Fatal(err)
	}
	events, err := p.fleet.Events(t.Context(), "", 0)
	if err != nil || events[len(events)-1].Kind != "session.opened" {
		t.Errorf("newest event: got %+v, %v, want session.opened", events[len(events)-1], err)
	}
	if c, err := net.Dial("tcp", file.Boot.HTTPListen); err != nil {
		t.Errorf("boot files: %v", err)
	} else {
		c.Close()
	}
	cancel()
	if err := await(t, done); err != nil {
		t.Errorf("run: %v", err)
	}
	return agent
}
