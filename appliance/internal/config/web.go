package config

import (
	"errors"
	"fmt"
	"net/netip"

	"firstlight/gateway-client/ident"
)

// maxNames bounds the names in the page's certificate.
const maxNames = 32

// Web is the page and the API for those who are not on this machine.
type Web struct {
	// Listen is the address and port; empty is no page, port 0 takes any free one.
	Listen string `toml:"listen"`
	// Names are the DNS names and further addresses by which people call it: what it is not called by it does not answer to.
	Names []string `toml:"names"`
	// Certificate and Key are PEM files. Without them the appliance makes a certificate that nobody vouches for.
	Certificate string `toml:"certificate"`
	Key         string `toml:"key"`
	// InsecureLoopback speaks plain HTTP, and only on a loopback address.
	InsecureLoopback bool `toml:"insecure_loopback"`
}

// Enabled says that there is a page.
func (w *Web) Enabled() bool { return w.Listen != "" }

// check is for a section that is there.
func (w *Web) check() error {
	listen, err := netip.ParseAddrPort(w.Listen)
	if err != nil {
		return fmt.Errorf("web.listen %q: want ADDRESS:PORT (or leave the section out: then there is no page)", w.Listen)
	}
	if (w.Certificate == "") != (w.Key == "") {
		return errors.New("web.certificate and web.key: want both, or neither for a certificate that the appliance makes")
	}
	if len(w.Names) > maxNames {
		return fmt.Errorf("web.names: %d names, want at most %d", len(w.Names), maxNames)
	}
	for _, n := range w.Names {
		if a, err := netip.ParseAddr(n); err != nil && !ident.Valid(n) || err == nil && (a.Zone() != "" || a.IsUnspecified()) {
			return fmt.Errorf("web.names %q: want a DNS name in small letters, without port, or an address", n)
		}
	}
	switch {
	case !w.InsecureLoopback:
		return nil
	case !listen.Addr().IsLoopback():
		return fmt.Errorf("web.insecure_loopback: %s is no loopback address, and passwords do not go over a network in the clear", listen.Addr())
	case w.Certificate != "":
		return errors.New("web.insecure_loopback: there is a certificate, so there is no need for it")
	}
	return nil
}
