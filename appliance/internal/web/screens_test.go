package web_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/web/webtest"
)

// TestScreens makes a picture of every page into the directory that FIRSTLIGHT_SCREENS names, for people to look at.
func TestScreens(t *testing.T) {
	dir := os.Getenv("FIRSTLIGHT_SCREENS")
	if dir == "" {
		t.Skip("make screens makes pictures: FIRSTLIGHT_SCREENS names no directory")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	full := newSite(t, webtest.New, false)
	empty := newSite(t, webtest.Empty, false)
	fresh := newSite(t, webtest.Empty, true)
	broken := newSite(t, webtest.New, false)
	broken.fleet.Break("/v1/machines/r12u01/timeline", fault.New(fault.Unavailable, "show timeline", "r12u01", errors.New("the store did not answer within 5 s"), "wait a moment and load the page again"))
	hostile := newSite(t, func(now func() time.Time) *webtest.Appliance {
		a := webtest.Empty(now)
		for i, text := range webtest.Hostile {
			a.Set(webtest.HostileMachine("hostile"+string(rune('1'+i)), text, now()))
		}
		return a
	}, false)
	stopped := newSite(t, webtest.New, false)
	stopped.client(t, "anna").form("POST", "/site/stop", map[string]string{"reason": "smoke in aisle 4", "key": "k-1"})
	for _, p := range []struct {
		name string
		s    *site
		user string
		path string
	}{
		{"setup", fresh, "", "/setup"}, {"login", full, "", "/login"},
		{"fleet", full, "omar", "/"}, {"fleet-empty", empty, "omar", "/"}, {"fleet-search", full, "omar", "/?q=r14"}, {"fleet-nothing", full, "omar", "/?q=zzz"},
		{"machine-working", full, "tina", "/machines/r12u01"}, {"machine-failed", full, "tina", "/machines/r12u04"}, {"machine-active", full, "omar", "/machines/r12u07"},
		{"machine-protected", full, "omar", "/machines/r13u09"}, {"machine-paused", full, "tina", "/machines/r13u08"}, {"machine-new", full, "tina", "/machines/r14u01"},
		{"machine-disks", full, "omar", "/machines/r12u07?tab=disks"}, {"machine-hardware", full, "omar", "/machines/r12u07?tab=hardware"}, {"machine-log", full, "omar", "/machines/r12u01?tab=log"},
		{"machine-partial", broken, "omar", "/machines/r12u01"}, {"machine-hostile", hostile, "omar", "/machines/hostile1"}, {"machine-long", hostile, "omar", "/machines/hostile9"}, {"fleet-hostile", hostile, "omar", "/"},
		{"provision", full, "tina", "/machines/r14u01/provision"}, {"provision-protected", full, "omar", "/machines/r13u09/provision"}, {"cancel", full, "tina", "/machines/r12u01/cancel"},
		{"remove", full, "omar", "/machines/r14u01/remove"}, {"add", full, "omar", "/machines/new"},
		{"discovered", full, "tina", "/discovered"}, {"enrol", full, "tina", "/machines/unknown-3f9a/enrol"}, {"images", full, "omar", "/images"}, {"images-empty", empty, "omar", "/images"},
		{"health", full, "omar", "/health"}, {"stop", full, "omar", "/site/stop"}, {"fleet-stopped", stopped, "omar", "/"}, {"users", full, "anna", "/users"}, {"audit", full, "anna", "/audit"},
		{"forbidden", full, "vera", "/audit"}, {"not-here", full, "vera", "/machines/nobody"},
	} {
		t.Run(p.name, func(t *testing.T) { pictures(t, p.s, p.user, p.path, filepath.Join(dir, p.name)) })
	}
}

// pictures makes one picture of a page for each screen and theme.
func pictures(t *testing.T, s *site, user, path, file string) {
	ctx := browserTest(t)
	if user != "" {
		do(t, ctx, "sign in", s.signIn(user))
	}
	for _, v := range []struct {
		name        string
		w, h        int64
		phone, dark bool
	}{{"desktop", 1440, 900, false, false}, {"desktop-dark", 1440, 900, false, true}, {"tablet", 820, 1180, true, false}, {"phone", 390, 844, true, false}, {"phone-dark", 390, 844, true, true}} {
		do(t, ctx, path, size(v.w, v.h, v.phone, v.dark), chromedp.Navigate(s.URL+path), chromedp.WaitVisible("main"))
		png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if err := os.WriteFile(file+"-"+v.name+".png", png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
