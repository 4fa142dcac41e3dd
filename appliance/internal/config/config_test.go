package config

import (
	"strings"
	"testing"
)

const whole = `
data_dir = "data"
socket = "/run/fl.sock"
site_id = "site-a"
trust_domain = "firstlight.test"
[gateway]
listen = "10.77.0.2:8443"
advertise = "10.77.0.2:8443"
server_name = "gw.site-a.firstlight.test"
[boot]
interface = "eth0"
address = "10.77.0.2"
http_listen = "10.77.0.2:8080"
http_advertise = "10.77.0.2:8080"
firmware_dir = "/usr/lib/ipxe"
ramdisk_dir = "ramdisk"
kernel_args = ["console=ttyS0"]
`

func TestParse(t *testing.T) {
	c, err := Parse(whole, "/etc/firstlight")
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]string{
		"/etc/firstlight/data": c.DataDir, "/run/fl.sock": c.Socket, "/usr/lib/ipxe": c.Boot.FirmwareDir,
		"/etc/firstlight/ramdisk": c.Boot.RAMDiskDir, "10.77.0.2": c.Boot.Address.String(),
	} {
		if got != name {
			t.Errorf("got %q, want %q", got, name)
		}
	}
	if !c.Boot.Enabled || len(c.Boot.KernelArgs) != 1 || c.Boot.Discovery || c.Boot.ReplaceROMiPXE {
		t.Errorf("boot: got %+v, want it on with one argument, and no discovery unless it is asked for", c.Boot)
	}
	if c.Telemetry.OTLPEndpoint != "" {
		t.Errorf("telemetry: got %+v, want nothing sent unless it is asked for", c.Telemetry)
	}
	c, err = Parse("[telemetry]\notlp_endpoint = \"https://otel.example:4318/fl\"\n", "/")
	if c.Telemetry.OTLPEndpoint != "https://otel.example:4318/fl" {
		t.Errorf("telemetry: got %+v, %v, want the endpoint", c, err)
	}
	c, err = Parse(whole+"discovery = true\nreplace_rom_ipxe = true\n", "/")
	if err != nil || !c.Boot.Discovery || !c.Boot.ReplaceROMiPXE {
		t.Errorf("got %+v, %v, want discovery and the ROM's iPXE replaced", c, err)
	}
}

func TestParseWithoutBoot(t *testing.T) {
	text := whole[:strings.Index(whole, "[boot]")] + "[boot]\nenabled = false\n"
	if c, err := Parse(text, "/"); err != nil || c.Boot.Enabled {
		t.Errorf("got %v, %v, want boot off", c.Boot.Enabled, err)
	}
}

// Each line is one mistake and the word that the message must say.
func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct{ name, old, new, word string }{
		{"unknown key", "socket =", "sockte =", "sockte"},
		{"no data", `data_dir = "data"`, "", "data_dir"},
		{"long socket", "/run/fl.sock", "/" + strings.Repeat("s", 120), "107"},
		{"bad site", `"site-a"`, `"Site A"`, "site_id"},
		{"no server name", `"gw.site-a.firstlight.test"`, `""`, "server_name"},
		{"listen without port", `listen = "10.77.0.2:8443"`, `listen = "10.77.0.2"`, "gateway.listen"},
		{"advertise port 0", `advertise = "10.77.0.2:8443"`, `advertise = "10.77.0.2:0"`, "gateway.advertise"},
		{"listen everywhere, advertise nothing", "listen = \"10.77.0.2:8443\"\nadvertise = \"10.77.0.2:8443\"", `listen = "0.0.0.0:8443"`, "gateway.advertise"},
		{"no interface", `"eth0"`, `""`, "boot.enabled"},
		{"IPv6 address", `address = "10.77.0.2"`, `address = "fd00::1"`, "boot.address"},
		{"no HTTP port", `http_listen = "10.77.0.2:8080"`, `http_listen = "10.77.0.2:0"`, "http_listen"},
		{"argument with a space", `"console=ttyS0"`, `"console=ttyS0 quiet"`, "kernel_args"},
		{"traces to nowhere", "[gateway]", "[telemetry]\notlp_endpoint = \"otel:4318\"\n[gateway]", "otlp_endpoint"},
		{"traces with a password", "[gateway]", "[telemetry]\notlp_endpoint = \"http://u:p@otel:4318\"\n[gateway]", "otlp_endpoint"},
		{"not TOML", "[gateway]", "[gateway", "line"},
	} {
		text := strings.Replace(whole, tc.old, tc.new, 1)
		if text == whole {
			t.Fatalf("%s: nothing replaced", tc.name)
		}
		if _, err := Parse(text, "/"); err == nil || !strings.Contains(err.Error(), tc.word) {
			t.Errorf("%s: got %v, want an error that says %q", tc.name, err, tc.word)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(whole)
	f.Add("[boot]\nenabled = false\n")
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := Parse(text, "/"); err == nil && c.DataDir == "" {
			t.Error("accepted without data_dir")
		}
	})
}
