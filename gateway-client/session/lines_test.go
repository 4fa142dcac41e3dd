package session_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"firstlight/gateway-client/gatewaytest"
	"firstlight/gateway-client/session"
)

// What an agent said before its session and in it arrives in order; what was too much is counted, oldest first, and each line is cut.
func TestLinesReachTheGateway(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	cfg := config(t, g, nil)
	cfg.Lines = new(session.Lines)
	now := time.Now()
	const extra = 100
	for i := range session.MaxLines + extra {
		cfg.Lines.Add(now, fmt.Sprintf("line %d", i))
	}
	start(t, cfg)
	g.WaitConnected(node, ramdisk)
	cfg.Lines.Add(now, strings.Repeat("é", session.MaxLineBytes))
	// One line more threw the oldest away, unless some had left already.
	var texts []string
	dropped := uint64(0)
	g.Wait("the lines", func() bool {
		texts, dropped = nil, 0
		for _, b := range g.Logs() {
			if len(b.Lines) > session.LinesPerBatch {
				t.Errorf("got a batch of %d lines, want at most %d", len(b.Lines), session.LinesPerBatch)
			}
			dropped += b.Dropped
			for _, l := range b.Lines {
				texts = append(texts, l.Text)
			}
		}
		return uint64(len(texts))+dropped == session.MaxLines+extra+1
	})
	if dropped < extra || dropped > extra+1 || texts[0] != fmt.Sprintf("line %d", dropped) || texts[len(texts)-2] != fmt.Sprintf("line %d", session.MaxLines+extra-1) {
		t.Errorf("got %d dropped and %q to %q", dropped, texts[0], texts[len(texts)-2])
	}
	if last := texts[len(texts)-1]; len(last) > session.MaxLineBytes+2 || !strings.HasPrefix(last, "éé") {
		t.Errorf("got a line of %d bytes, want it cut at %d", len(last), session.MaxLineBytes)
	}
}

// Lines outlive a session: what was not sent is sent by the next one.
func TestLinesOutliveASession(t *testing.T) {
	t.Parallel()
	g := gatewaytest.NewGateway(t)
	cfg := config(t, g, nil)
	cfg.Lines = new(session.Lines)
	cut := cuttable(&cfg)
	start(t, cfg)
	g.WaitConnected(node, ramdisk)
	cut()
	cfg.Lines.Add(time.Now(), "between")
	g.WaitHellos(node, ramdisk, 2)
	g.Wait("the line", func() bool {
		for _, b := range g.Logs() {
			if b.Lines[0].Text == "between" {
				return true
			}
		}
		return false
	})
}
