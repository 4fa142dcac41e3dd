package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"firstlight/appliance/internal/vault"
	"firstlight/gateway-client/envelope"
)

// maxFile bounds a key or certificate file.
const maxFile = 64 << 10

// Types of the PEM block that a key file holds: PKCS #8 as it is, or sealed by the vault for the place "pki/NAME".
const (
	plainType  = "PRIVATE KEY"
	sealedType = "FIRSTLIGHT SEALED KEY"
)

// pair is a key and the certificates that are sent with it, leaf first. They may not belong together.
type pair struct {
	key   *ecdsa.PrivateKey
	chain []*x509.Certificate
}

// String keeps the key out of prints.
func (p pair) String() string { return "[secret]" }

func (p pair) signer() envelope.Signer { return envelope.Signer{Key: p.key, Chain: p.chain} }

// certificate is the pair for a TLS server.
func (p pair) certificate() tls.Certificate {
	c := tls.Certificate{PrivateKey: p.key, Leaf: p.chain[0]}
	for _, x := range p.chain {
		c.Certificate = append(c.Certificate, x.Raw)
	}
	return c
}

// public is the key's PKIX encoding, DER.
func (p pair) public() []byte {
	der, err := x509.MarshalPKIXPublicKey(&p.key.PublicKey)
	if err != nil {
		panic(err) // no P-256 key fails to encode
	}
	return der
}

// load reads a key and its certificates. A key that lies there in the clear is sealed before anything is done with it.
func load(dir, name string, v *vault.Vault) (pair, error) {
	var p pair
	path := filepath.Join(dir, name+".key")
	data, err := readBounded(path)
	if err != nil {
		return p, err
	}
	der, sealed, err := openKey(data, name, v)
	if err != nil {
		return p, fmt.Errorf("read %s: %w", path, err)
	}
	if p.key, err = parseKey(der); err != nil {
		return p, fmt.Errorf("read %s: %w", path, err)
	}
	if !sealed && v != nil {
		if err := writeKey(dir, name, p.key, v); err != nil {
			return p, fmt.Errorf("seal %s: %w", path, err)
		}
	}
	if data, err = readBounded(filepath.Join(dir, name+".crt")); err != nil {
		return p, err
	}
	if p.chain, err = parseChain(data); err != nil {
		return p, fmt.Errorf("read %s: %w", filepath.Join(dir, name+".crt"), err)
	}
	return p, nil
}

// openKey returns the PKCS #8 form that a key file holds, and whether it was sealed there.
func openKey(data []byte, name string, v *vault.Vault) (der []byte, sealed bool, err error) {
	block, _ := pem.Decode(data)
	switch {
	case block == nil:
		return nil, false, errors.New("no PEM block")
	case block.Type == plainType:
		return block.Bytes, false, nil
	case block.Type != sealedType:
		return nil, false, fmt.Errorf("PEM block %q: want %q or %q", block.Type, sealedType, plainType)
	case v == nil:
		return nil, true, errors.New("the key is sealed, and there is no vault to open it with")
	}
	plain, err := v.Open(place(name), block.Bytes)
	if err != nil {
		return nil, true, fmt.Errorf("%w: put back the vault.key that belongs to it", err)
	}
	return plain.Reveal(), true, nil
}

func place(name string) string { return "pki/" + name }

func parseKey(der []byte) (*ecdsa.PrivateKey, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("key is %T, want ECDSA P-256", parsed)
	}
	if _, err := envelope.KeyID(&key.PublicKey); err != nil {
		return nil, err
	}
	return key, nil
}

func parseChain(data []byte) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for len(chain) <= envelope.MaxChain {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		chain, data = append(chain, c), rest
	}
	if len(chain) == 0 || len(chain) > envelope.MaxChain {
		return nil, fmt.Errorf("want 1 to %d certificates in PEM", envelope.MaxChain)
	}
	return chain, nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("read %s: over %d bytes", path, maxFile)
	}
	return data, err
}

// writeKey seals the key; a nil vault leaves it in the clear.
func writeKey(dir, name string, key *ecdsa.PrivateKey, v *vault.Vault) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: plainType, Bytes: der}
	if v != nil {
		block.Type = sealedType
		if block.Bytes, err = v.Seal(place(name), vault.NewSecret(der)); err != nil {
			return err
		}
	}
	return writeFile(filepath.Join(dir, name+".key"), pem.EncodeToMemory(block), 0o600)
}

// makeDir lets fill write into a directory beside dir and renames it, so that a crash leaves no half of it.
func makeDir(dir string, fill func(fresh string) error) error {
	fresh := filepath.Clean(dir) + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.MkdirAll(fresh, 0o700); err != nil {
		return err
	}
	if err := fill(fresh); err != nil {
		return err
	}
	if err := os.Rename(fresh, dir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(filepath.Clean(dir)))
}

func writeChain(dir, name string, chain []*x509.Certificate) error {
	var data []byte
	for _, c := range chain {
		data = append(data, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return writeFile(filepath.Join(dir, name+".crt"), data, 0o644)
}

// writeFile replaces path durably: a crash leaves the old file or the new one.
func writeFile(path string, data []byte, mode os.FileMode) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
