package appliance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/config"
	"firstlight/appliance/internal/fault"
	"firstlight/site"
)

// A site has one agent: an appliance that runs it itself makes no token for another.
func TestNoTokenForASecondAgent(t *testing.T) {
	t.Parallel()
	_, err := (&parts{site: &site.Agent{}}).mintJoin(t.Context(), time.Minute)
	if f := fault.Of(err, "", ""); f.Kind != fault.Conflict || !strings.Contains(f.Next, "boot.enabled = false") {
		t.Errorf("got %v, want a conflict that says what to set", err)
	}
}

// What is kept of a token is what a later start needs, and not the token.
func TestJoinKeepsNoToken(t *testing.T) {
	t.Parallel()
	c := SiteConfig{File: &config.Site{DataDir: t.TempDir()}}
	if _, err := c.join(); err == nil || !strings.Contains(err.Error(), "join-token") {
		t.Errorf("first start without a token: got %v, want what it needs", err)
	}
	for _, text := range []string{"", "{}", "no", `{"node_id":"site-1","gateway":"https://x"}`, strings.Repeat(" ", maxJoin) + "{}"} {
		c.Token = strings.NewReader(text)
		if _, err := c.join(); err == nil {
			t.Errorf("%.40q was taken for a token", text)
		}
	}
	c.Token = strings.NewReader(`{"node_id":"site-1","gateway":"https://x","token":"c2VjcmV0"}`)
	if j, err := c.join(); err != nil || string(j.Token) != "secret" {
		t.Fatalf("got %v, %v", j, err)
	}
	kept, err := os.ReadFile(filepath.Join(c.File.DataDir, joinFile))
	if err != nil || strings.Contains(string(kept), "c2VjcmV0") {
		t.Errorf("got %s, %v, want no token in it", kept, err)
	}
	c.Token = nil
	j, err := c.join()
	if err != nil || j.NodeID != "site-1" || len(j.Token) != 0 {
		t.Errorf("got %v, %v, want the rest", j, err)
	}
	if _, err := c.site(j); err == nil {
		t.Error("keys that are none were taken")
	}
}
