package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/BurntSushi/toml"

	"firstlight/testbed/judge"
	"firstlight/testbed/netlab"
)

// Bounds of driving the appliance.
const (
	readyLimit   = 90 * time.Second
	stopLimit    = 20 * time.Second
	commandLimit = 3 * time.Minute
)

// What the appliance is called, and its ports.
const (
	siteID      = "site-a"
	trustDomain = "firstlight.test"
	serverName  = "gw.site-a.firstlight.test"
	gatewayPort = 8443
	httpPort    = 8080
)

// serveConfig is the appliance's configuration file.
type serveConfig struct {
	DataDir     string `toml:"data_dir"`
	Socket      string `toml:"socket"`
	SiteID      string `toml:"site_id"`
	TrustDomain string `toml:"trust_domain"`
	Gateway     struct {
		Listen     string `toml:"listen"`
		Advertise  string `toml:"advertise"`
		ServerName string `toml:"server_name"`
	} `toml:"gateway"`
	Boot struct {
		Interface     string   `toml:"interface"`
		Address       string   `toml:"address"`
		HTTPListen    string   `toml:"http_listen"`
		HTTPAdvertise string   `toml:"http_advertise"`
		FirmwareDir   string   `toml:"firmware_dir"`
		RAMDiskDir    string   `toml:"ramdisk_dir"`
		KernelArgs    []string `toml:"kernel_args"`
		Discovery     bool     `toml:"discovery,omitempty"`
		ReplaceROM    bool     `toml:"replace_rom_ipxe,omitempty"`
	} `toml:"boot"`
	// Web is nil for an appliance without a page.
	Web *webConfig `toml:"web"`
}

// webConfig is where the appliance serves its page.
type webConfig struct {
	Listen           string `toml:"listen"`
	InsecureLoopback bool   `toml:"insecure_loopback"`
}

func (r *run) newServeConfig() serveConfig {
	c := serveConfig{DataDir: filepath.Join(r.dir, "data"), Socket: filepath.Join(r.dir, "socket"), SiteID: siteID, TrustDomain: trustDomain}
	gateway := fmt.Sprintf("%s:%d", netlab.SiteAddress, gatewayPort)
	c.Gateway.Listen, c.Gateway.Advertise, c.Gateway.ServerName = gateway, gateway, serverName
	http := fmt.Sprintf("%s:%d", netlab.SiteAddress, httpPort)
	c.Boot.Interface, c.Boot.Address, c.Boot.HTTPListen, c.Boot.HTTPAdvertise = "eth0", netlab.SiteAddress, http, http
	c.Boot.FirmwareDir, c.Boot.RAMDiskDir = filepath.Join(r.dir, "firmware"), r.ramdisk.Dir
	c.Boot.KernelArgs = []string{"console=ttyS0"}
	c.Boot.Discovery, c.Boot.ReplaceROM = r.scenario.appliance.discovery, r.scenario.appliance.replaceROM
	if page := r.scenario.appliance.page; page != "" {
		c.Web = &webConfig{Listen: page, InsecureLoopback: true}
	}
	return c
}

// appliance is a running `firstlight serve`.
type appliance struct {
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // valid once exited is closed
}

// startServe starts the appliance in its namespace and waits until it answers.
func (r *run) startServe(ctx context.Context) error {
	path := filepath.Join(r.dir, "serve.toml")
	var text bytes.Buffer
	if err := toml.NewEncoder(&text).Encode(r.serve); err != nil {
		return fmt.Errorf("write appliance's configuration: %w", err)
	}
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		return fmt.Errorf("write appliance's configuration: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(r.dir, "serve.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := log.Stat()
	if err != nil {
		return errors.Join(err, log.Close())
	}
	// Its life ends with stopServe, so that an interrupted run still ends in order.
	cmd := r.lab.Command(context.WithoutCancel(ctx), netlab.Site, filepath.Join(r.Bin, "firstlight"), "serve", "--config", path)
	cmd.Stdout, cmd.Stderr = log, log
	if r.told != nil {
		cmd.Stderr = &console{log: log, told: r.told}
	}
	cmd.Env = append(os.Environ(), "FIRSTLIGHT_SOCKET="+r.serve.Socket)
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	// A Ctrl-C at the terminal is for the testbed alone: it stops the others in order.
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return errors.Join(fmt.Errorf("start appliance: %w", err), log.Close())
	}
	a := &appliance{cmd: cmd, exited: make(chan struct{})}
	go func() {
		a.err = cmd.Wait()
		log.Close()
		close(a.exited)
	}()
	r.appliance = a
	return r.waitReady(ctx, info.Size())
}

func (r *run) waitReady(ctx context.Context, from int64) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for {
		_, err := r.firstlight(ctx, "machine", "list")
		if err == nil && r.saidReady(from) {
			return nil
		}
		select {
		case <-r.appliance.exited:
			return fmt.Errorf("appliance ended at its start: %v: %s", r.appliance.err, r.lastServeLine())
		case <-ctx.Done():
			return fmt.Errorf("appliance did not answer and say that it is ready within %s: %v: %s", readyLimit, err, r.lastServeLine())
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// saidReady says whether the appliance said so, in its log from that byte on.
func (r *run) saidReady(from int64) bool {
	b, err := os.ReadFile(filepath.Join(r.dir, "serve.log"))
	return err == nil && bytes.Contains(b[min(from, int64(len(b))):], []byte("firstlight: ready"))
}

// stopServe ends the appliance as systemd would, and the hard way when it does not end.
func (r *run) stopServe() error {
	a := r.appliance
	if a == nil {
		return nil
	}
	r.appliance = nil
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop appliance: %w", err)
	}
	select {
	case <-a.exited:
		return nil
	case <-time.After(stopLimit):
	}
	if err := a.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop appliance: %w", err)
	}
	<-a.exited
	return fmt.Errorf("stop appliance: it did not end within %s", stopLimit)
}

func (r *run) lastServeLine() string {
	b, err := os.ReadFile(filepath.Join(r.dir, "serve.log"))
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if err != nil || lines[len(lines)-1] == "" {
		return "it said nothing"
	}
	return lines[len(lines)-1]
}

// firstlight runs a command of the appliance's own command line and returns what it printed.
func (r *run) firstlight(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(r.Bin, "firstlight"), append([]string{"--socket", r.serve.Socket}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("firstlight %s: %w: %s", strings.Join(args[:min(2, len(args))], " "), err, strings.TrimSpace(said.String()))
	}
	return out, nil
}

// show reads the machine's public record; it is then the machine's newest.
func (r *run) show(ctx context.Context, m *machine) (*judge.Record, error) {
	out, err := r.firstlight(ctx, "--json", "machine", "show", m.name)
	if err != nil {
		return nil, err
	}
	var rec judge.Record
	if err := json.Unmarshal(out, &rec); err != nil {
		return nil, fmt.Errorf("read record of %s: %w", m.name, err)
	}
	m.record, m.recordJSON = &rec, out
	return &rec, nil
}
