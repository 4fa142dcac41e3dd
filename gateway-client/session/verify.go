package session

import (
	"crypto/x509"
	"errors"

	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

// VerifyUpdate checks the node's signature on an update, end to end: leaf is the certificate that the session proved.
// An attested report inside must verify too, and say the same.
func VerifyUpdate(leaf *x509.Certificate, u *agentv1.CommandUpdate) error {
	return errors.New("verify update: being built")
}

// VerifyReport checks an attested report and returns what it says.
func VerifyReport(leaf *x509.Certificate, r *agentv1.AttestedReport) (*agentv1.AttestedReportBody, error) {
	return nil, errors.New("verify report: being built")
}
