package session_test

import (
	"crypto/ecdsa"
	"crypto/x509"
	"testing"

	"firstlight/gateway-client/gatewaytest"
	"firstlight/gateway-client/ident"
	commonv1 "firstlight/gateway-client/proto/bettercompute/common/v1"
)

// reissue is the same certificate for role node.
func reissue(t *testing.T, g *gatewaytest.Gateway, c *x509.Certificate) *x509.Certificate {
	id, err := ident.FromCertificate(c)
	if err != nil {
		t.Error(err)
	}
	return g.NodeCA.Agent(c.PublicKey.(*ecdsa.PublicKey), id, commonv1.AgentRole_AGENT_ROLE_NODE)
}
