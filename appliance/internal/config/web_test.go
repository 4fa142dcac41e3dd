package config

import (
	"strings"
	"testing"
)

// web is a [web] section before whole's own sections end.
func web(lines string) string { return whole + "[web]\n" + lines + "\n" }

func TestParseWeb(t *testing.T) {
	c, err := Parse(web("listen = \"0.0.0.0:443\"\nnames = [\"fl.example.org\", \"192.0.2.1\"]\ncertificate = \"tls/web.crt\"\nkey = \"/k/web.key\""), "/etc/firstlight")
	if err != nil {
		t.Fatal(err)
	}
	if w := c.Web; !w.Enabled() || w.Certificate != "/etc/firstlight/tls/web.crt" || w.Key != "/k/web.key" || len(w.Names) != 2 || w.InsecureLoopback {
		t.Errorf("got %+v", w)
	}
	if c, err := Parse(whole, "/"); err != nil || c.Web.Enabled() {
		t.Errorf("got %+v, %v, want no page unless it is asked for", c, err)
	}
	for _, address := range []string{"127.0.0.1:8080", "[::1]:0"} {
		if c, err := Parse(web(`listen = "`+address+"\"\ninsecure_loopback = true"), "/"); err != nil || !c.Web.InsecureLoopback {
			t.Errorf("%s: got %v, want plain HTTP", address, err)
		}
	}
}

func TestParseWebRefuses(t *testing.T) {
	for _, tc := range []struct{ name, lines, word string }{
		{"no listen", `names = ["fl.example.org"]`, "web.listen"},
		{"empty section", ``, "web.listen"},
		{"no port", `listen = "0.0.0.0"`, "web.listen"},
		{"a name", `listen = "localhost:443"`, "web.listen"},
		{"certificate alone", "listen = \"0.0.0.0:443\"\ncertificate = \"c\"", "web.key"},
		{"key alone", "listen = \"0.0.0.0:443\"\nkey = \"c\"", "web.certificate"},
		{"name with port", "listen = \"0.0.0.0:443\"\nnames = [\"fl:443\"]", "web.names"},
		{"name with capitals", "listen = \"0.0.0.0:443\"\nnames = [\"FL\"]", "web.names"},
		{"wildcard", "listen = \"0.0.0.0:443\"\nnames = [\"*.example.org\"]", "web.names"},
		{"no address", "listen = \"0.0.0.0:443\"\nnames = [\"0.0.0.0\"]", "web.names"},
		{"many names", "listen = \"0.0.0.0:443\"\nnames = [" + strings.Repeat(`"a",`, maxNames+1) + "]", "at most"},
		{"plain on a network", "listen = \"10.77.0.2:80\"\ninsecure_loopback = true", "clear"},
		{"plain everywhere", "listen = \"0.0.0.0:80\"\ninsecure_loopback = true", "clear"},
		{"plain and certificate", "listen = \"127.0.0.1:80\"\ninsecure_loopback = true\ncertificate = \"c\"\nkey = \"k\"", "insecure_loopback"},
		{"unknown key", "listen = \"127.0.0.1:80\"\ninsecure = true", "web.insecure"},
	} {
		if _, err := Parse(web(tc.lines), "/"); err == nil || !strings.Contains(err.Error(), tc.word) {
			t.Errorf("%s: got %v, want an error that says %q", tc.name, err, tc.word)
		}
	}
}
