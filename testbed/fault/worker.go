package fault

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"

	"firstlight/gateway-client/envelope"
	"firstlight/gateway-client/ident"
)

// StrangeWorker overwrites the key that signs commands in an appliance's key folder by a stranger's. The certificate says all that
// a worker's must say; only its root is in nobody's trust bundle. It returns the stranger's key id.
func StrangeWorker(pkiDir string) (keyID string, err error) {
	for _, name := range []string{"worker.key", "worker.crt"} {
		// A name that the appliance does not use would spoil nothing and prove nothing.
		if _, err := os.Stat(filepath.Join(pkiDir, name)); err != nil {
			return "", fmt.Errorf("overwrite worker key: %w", err)
		}
	}
	ca, caKey, err := newCA("stranger's command root")
	if err != nil {
		return "", err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	der, err := x509.CreateCertificate(rand.Reader, template("stranger", ident.SignURI(string(envelope.Command))), ca, &key.PublicKey, caKey)
	if err != nil {
		return "", fmt.Errorf("overwrite worker key: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", fmt.Errorf("overwrite worker key: %w", err)
	}
	if err := os.WriteFile(filepath.Join(pkiDir, "worker.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600); err != nil {
		return "", fmt.Errorf("overwrite worker key: %w", err)
	}
	if err := os.WriteFile(filepath.Join(pkiDir, "worker.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		return "", fmt.Errorf("overwrite worker key: %w", err)
	}
	return envelope.KeyID(&key.PublicKey)
}
