package doctor_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/config"
	"firstlight/appliance/internal/doctor"
	"firstlight/testbed/netlab"
)

// inside says that this process is to be the doctor in a namespace of the lab, and which address is the appliance's.
const inside = "DOCTOR_INSIDE"

func TestMain(m *testing.M) {
	self := os.Getenv(inside)
	if self == "" {
		os.Exit(m.Run())
	}
	file := &config.Config{DataDir: os.TempDir(), Gateway: config.Gateway{Listen: self + ":8443"}, Boot: config.Boot{Enabled: true, Interface: "eth0",
		Address: netip.MustParseAddr(self), HTTPListen: self + ":8080"}}
	if json.NewEncoder(os.Stdout).Encode(doctor.Run(context.Background(), doctor.Config{File: file, Listen: 4 * time.Second})) != nil {
		os.Exit(1)
	}
}

// examine runs the doctor in the site's namespace.
func examine(t *testing.T, lab *netlab.Lab) map[string]doctor.Check {
	t.Helper()
	cmd := lab.Command(t.Context(), netlab.Site, os.Args[0])
	cmd.Env = append(os.Environ(), inside+"="+netlab.SiteAddress)
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("doctor in the lab: %v", err)
	}
	var all []doctor.Check
	if err := json.Unmarshal(b, &all); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	out := map[string]doctor.Check{}
	for _, c := range all {
		out[c.Name] = c
	}
	return out
}

// spawn runs a server in a namespace until the test ends, and waits for its pid file.
func spawn(t *testing.T, lab *netlab.Lab, role string, args ...string) {
	t.Helper()
	dir := t.TempDir()
	pid := filepath.Join(dir, "pid")
	cmd := lab.Command(t.Context(), role, "dnsmasq", append([]string{"--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--bind-interfaces", "--interface=eth0",
		"--except-interface=lo", "--no-ping", "--log-facility=" + filepath.Join(dir, "log"), "--dhcp-leasefile=" + filepath.Join(dir, "leases"), "--pid-file=" + pid}, args...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); ; {
		if b, err := os.ReadFile(pid); err == nil && len(b) > 0 {
			return
		}
		if time.Now().After(end) {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Fatalf("dnsmasq does not start: %s", log)
		}
		<-tick.C
	}
}

// Real servers on a real segment: one that gives addresses is right, a second boot server is a fault, and a port that is taken is
// named with its owner.
func TestOtherServersOnTheSegment(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("reason: -short or not root; the test makes network namespaces")
	}
	t.Parallel()
	const servers = "boot segment: DHCP servers"
	lab, err := netlab.New(t.Context(), netlab.Config{Name: "doctor", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})

	all := examine(t, lab)
	if c := all[servers]; c.State != doctor.OK || !strings.Contains(c.What, netlab.DHCPAddress+" gives addresses") {
		t.Errorf("one server: got %+v, want it to be well", c)
	}
	for _, name := range []string{"network: boot interface", "network: address", "network: route", "port: DHCP (udp 0.0.0.0:67)", "port: TFTP (udp 0.0.0.0:69)", "port: boot files (tcp 10.77.0.2:8080)"} {
		if c := all[name]; c.State != doctor.OK {
			t.Errorf("%s: got %+v, want ok", name, c)
		}
	}

	spawn(t, lab, netlab.Peer, "--dhcp-range=10.77.0.0,proxy", "--pxe-prompt=boot,0", "--pxe-service=BC_EFI,boot,stranger,"+netlab.PeerAddress)
	all = examine(t, lab)
	c := all[servers]
	for _, want := range []string{netlab.PeerAddress + " serves boots", netlab.DHCPAddress + " gives addresses"} {
		if c.State != doctor.Fail || !strings.Contains(c.What, want) || !strings.Contains(c.Why, netlab.PeerAddress) {
			t.Errorf("a second boot server: got %+v, want a failure that says %q", c, want)
		}
	}
	if slices.ContainsFunc([]string{c.Why, c.Next}, func(s string) bool { return strings.Contains(s, netlab.DHCPAddress) }) {
		t.Errorf("got %+v: the plain server is blamed", c)
	}

	spawn(t, lab, netlab.Site, "--dhcp-range=10.77.0.210,10.77.0.220", "--dhcp-boot=taken.efi")
	all = examine(t, lab)
	if c := all[servers]; c.State != doctor.Fail || !strings.Contains(c.Why, "on this host") {
		t.Errorf("a server on the host: got %+v, want a failure that says so", c)
	}
	if c := all["port: DHCP (udp 0.0.0.0:67)"]; c.State != doctor.Fail || !strings.Contains(c.Next, "dnsmasq (process ") {
		t.Errorf("taken port: got %+v, want a failure that names dnsmasq", c)
	}
}
