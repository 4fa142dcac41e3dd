package envelope

import (
	"crypto/x509/pkix"
	"net/url"
	"testing"
)

func subject(name string) pkix.Name { return pkix.Name{CommonName: name} }

func uris(t *testing.T, list ...string) (out []*url.URL) {
	t.Helper()
	for _, s := range list {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, u)
	}
	return out
}
