package appliance

import (
	"path/filepath"

	"firstlight/appliance/internal/machinelog"
	"firstlight/gateway-client/gatewayserver"
	"firstlight/gateway-client/ident"
	agentv1 "firstlight/gateway-client/proto/bettercompute/agent/v1"
)

// openLogs opens what the machines' agents say.
func (p *parts) openLogs() (err error) {
	p.logs, err = machinelog.Open(filepath.Join(p.cfg.File.DataDir, "logs"), p.cfg.Now)
	return err
}

// logged keeps what an agent says about itself. That it could not be kept stops no session.
func (p *parts) logged(peer gatewayserver.Peer, b *agentv1.LogBatch) {
	lines := make([]machinelog.Line, 0, len(b.Lines))
	for _, l := range b.Lines {
		lines = append(lines, machinelog.Line{Time: l.GetTime().AsTime(), Text: l.GetText()})
	}
	node := string(peer.Identity.Node)
	if err := p.logs.Append(node, ident.RoleWord(peer.Role), b.Dropped, lines); err != nil {
		p.log("control").Warn("keep a machine's log", "node", node, "err", err)
	}
}
