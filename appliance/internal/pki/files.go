package pki

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"firstlight/gateway-client/envelope"
)

// maxFile bounds a key or certificate file.
const maxFile = 64 << 10

// pair is a key and the certificates that are sent with it, leaf first. They may not belong together.
type pair struct {
	key   *ecdsa.PrivateKey
	chain []*x509.Certificate
}

// String keeps the key out of prints.
func (p pair) String() string { return "[secret]" }

func (p pair) signer() envelope.Signer { return envelope.Signer{Key: p.key, Chain: p.chain} }

// public is the key's PKIX encoding, DER.
func (p pair) public() []byte {
	der, err := x509.MarshalPKIXPublicKey(&p.key.PublicKey)
	if err != nil {
		panic(err) // no P-256 key fails to encode
	}
	return der
}

func load(dir, name string) (pair, error) {
	var p pair
	data, err := readBounded(filepath.Join(dir, name+".key"))
	if err != nil {
		return p, err
	}
	if p.key, err = parseKey(data); err != nil {
		return p, fmt.Errorf("read %s: %w", filepath.Join(dir, name+".key"), err)
	}
	if data, err = readBounded(filepath.Join(dir, name+".crt")); err != nil {
		return p, err
	}
	if p.chain, err = parseChain(data); err != nil {
		return p, fmt.Errorf("read %s: %w", filepath.Join(dir, name+".crt"), err)
	}
	return p, nil
}

func parseKey(data []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM block")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
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

func writeKey(dir, name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600)
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
