package web_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/web/webtest"
)

// fill types into a field as a person does.
func fill(sel, text string) step {
	return chromedp.Steps(until(fmt.Sprintf(`(() => { const e = document.querySelector(%q); if (!e) return false; e.value = ""; e.focus(); return document.activeElement === e; })()`, sel)),
		chromedp.KeyEvent(text))
}

// press clicks what leads to another page, and waits for that.
func press(sel string) step {
	return chromedp.Steps(until(`(window.before = true)`), click(sel), until(`!window.before && document.readyState === "complete"`))
}

func TestBrowserFirstStart(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.Empty, true)
	ctx := browserTest(t)
	do(t, ctx, "a fresh appliance asks for its code", chromedp.Navigate(s.URL+"/"), says("h1", "First start"))
	enter := func(code, password, again string) step {
		return chromedp.Steps(fill(`[name=code]`, code), fill(`[name=name]`, "anna"), fill(`[name=password]`, password), fill(`[name=again]`, again), press("main button.primary"))
	}
	do(t, ctx, "a wrong code", enter("0000-0000-0000", webtest.Password, webtest.Password), says(".three", "This is not the code"))
	do(t, ctx, "two passwords", enter(webtest.Code, webtest.Password, "another password"), says(".three", "The two passwords differ"))
	do(t, ctx, "the right code", enter(webtest.Code, webtest.Password, webtest.Password), says("#headline", "No machines yet"))
	do(t, ctx, "the code is worth nothing any more", chromedp.Navigate(s.URL+"/setup"), says("#headline", "No machines yet"))
}

func TestBrowserLogIn(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	ctx := browserTest(t)
	try := func(name, password string) step {
		return chromedp.Steps(fill(`[name=name]`, name), fill(`[name=password]`, password), press("main button.primary"))
	}
	do(t, ctx, "a page for nobody", chromedp.Navigate(s.URL+"/machines/r12u04"), says("h1", "Sign in"))
	do(t, ctx, "a wrong password", try("tina", "not this one at all"), says(".three", "do not fit"))
	do(t, ctx, "a name that is not", try("nobody", webtest.Password), says(".three", "do not fit"))
	do(t, ctx, "the right one leads to where it was asked for", try("tina", webtest.Password), says("#head", "Boot stopped"))
	for range 5 {
		do(t, ctx, "wrong again", chromedp.Navigate(s.URL+"/login"), until(`location.pathname === "/"`))
		do(t, ctx, "sign out", chromedp.Evaluate[chromedp.Void](`document.querySelector(".who").open = true`), press(".who button"), says("h1", "Sign in"))
		do(t, ctx, "sign in", try("tina", webtest.Password), chromedp.WaitVisible("#headline"))
	}
	do(t, ctx, "sign out", chromedp.Evaluate[chromedp.Void](`document.querySelector(".who").open = true`), press(".who button"), says("h1", "Sign in"))
	for range 5 {
		do(t, ctx, "wrong", try("vera", "wrong password 1"), says(".three", "do not fit"))
	}
	do(t, ctx, "one too many", try("vera", webtest.Password), says(".three", "Too many attempts"))
}

// TestBrowserProvision orders a provisioning and watches it to its end without a reload.
func TestBrowserProvision(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	ctx := browserTest(t)
	do(t, ctx, "sign in", s.signIn("tina"))
	do(t, ctx, "open the machine", chromedp.Navigate(s.URL+"/machines/r14u01"), says("#head h1", "Ready to be provisioned"), press("#head .primary"))
	do(t, ctx, "the question names the disks", says(".disks", "S4XANE0M11050"), says(".disks", "S4XANE0M21050"), says("main button.danger", "Wipe and provision"))
	if red := eval[bool](t, ctx, `document.querySelector("button.danger").classList.contains("armed")`); red {
		t.Error("the button is red before anything was typed")
	}
	do(t, ctx, "a wrong number", fill("#typed", "3"), until(`!document.querySelector("button.danger").classList.contains("armed")`), press("button.danger"),
		says(".three", "3 disks were said, and 2 would be wiped"), says(".three", "nothing was sent"))
	if n := len(s.fleet.Orders()); n != 0 {
		t.Fatalf("%d orders were carried out", n)
	}
	do(t, ctx, "the right number arms it", fill("#typed", "2"), until(`document.querySelector("button.danger").classList.contains("armed")`), press("button.danger"),
		says("#head h1", "Waiting for the BMC"))
	do(t, ctx, "remember this page", chromedp.Evaluate[chromedp.Void](`window.same = document.querySelector("#head"); void 0`))
	m, _ := s.fleet.Get("r14u01")
	for _, st := range []struct{ name, says string }{{fleet.StepDHCP, "Waiting for its first DHCP packet"}, {fleet.StepScript, "Fetching this boot's script"}, {fleet.StepJoin, "Waiting for the RAM disk"},
		{fleet.StepWipe, "Wiping 2 disks"}, {fleet.StepDeploy, "Writing image debian-12, 62 %"}, {fleet.StepNodeJoin, "installed system to join"}, {fleet.StepActive, "Running debian-12"}} {
		s.fleet.Set(webtest.At(m, st.name, time.Now()))
		do(t, ctx, st.name, says("#head h1", st.says))
		if st.name == fleet.StepDeploy {
			do(t, ctx, "progress and time left", says("#steps", "2.7 GB of 4.3 GB"), says("#steps", "about 40 s left"), until(`document.querySelector("#steps progress").value === 62`))
		}
	}
	do(t, ctx, "the change is marked", until(`/changed-[ab]/.test(document.querySelector("#head").className)`))
	if !eval[bool](t, ctx, `window.same === document.querySelector("#head") && window.same.isConnected`) {
		t.Error("the page was loaded again, or its head was replaced instead of changed")
	}
	do(t, ctx, "its way is told", says(".timeline", "DHCP request from"), says(".timeline", "Node agent joined"))
}

// The first machine comes to a page that has no list yet, and a machine that is removed leaves its page.
func TestBrowserFirstAndLastMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.Empty, false)
	ctx := browserTest(t)
	do(t, ctx, "nothing yet", s.signIn("omar"), says("#headline", "No machines yet"), until(`!document.querySelector("#counts")`))
	s.fleet.Set(webtest.At(webtest.Machine10("r12u01", 1, time.Now()), fleet.StepDHCP, time.Now()))
	do(t, ctx, "the first", says("#headline", "1 machine is at work"), says("#working", "r12u01"), says("#rows", "r12u01"))
	other := s.client(t, "omar")
	do(t, ctx, "its page", chromedp.Navigate(s.URL+"/machines/r12u01"), says("#head h1", "first DHCP packet"))
	q := with(other.question("/machines/r12u01/remove"), "typed", "r12u01")
	if resp := other.form("POST", "/machines/r12u01/remove", q); resp.StatusCode != http.StatusSeeOther {
		t.Fatalf("remove: %s", resp.Status)
	}
	do(t, ctx, "it is gone", says("main", "There is no machine of this name"))
}

func TestBrowserFailedMachineIsReadAndRetried(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	ctx := browserTest(t)
	do(t, ctx, "sign in", s.signIn("tina"))
	do(t, ctx, "what needs somebody comes first", says("#need", "Boot stopped: a second DHCP server"), says("#need", "10.0.12.250"))
	first := eval[string](t, ctx, `document.querySelector("#need li .name").textContent`)
	do(t, ctx, "open it", chromedp.Navigate(s.URL+"/machines/r12u04"), says("#head h1", "Boot stopped"), says("#head .three", "the firmware took it"), says("#head .three", "Unplug the device"))
	if first != "r13u07" {
		t.Errorf("%q is first; the one that failed longest ago is r13u07", first)
	}
	do(t, ctx, "retry", press("#head .primary"), says("h1", "Retry r12u04"), fill("#typed", "2"), press("button.danger"), says("#head h1", "Waiting for the BMC"))
	if all := s.fleet.Orders(); len(all) != 1 || !strings.HasSuffix(all[0].Path, "/r12u04/retry") || all[0].By != "tina" {
		t.Errorf("orders %+v", all)
	}
}

func TestBrowserProtectedMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	ctx := browserTest(t)
	do(t, ctx, "sign in", s.signIn("omar"), chromedp.Navigate(s.URL+"/machines/r13u09"), says("#head", "Protected since"), says("#head", "omar"), says("#head", "holds the ledger"))
	if eval[bool](t, ctx, `!!document.querySelector('#head a[href$="/reinstall"], #head a[href$="/provision"]')`) {
		t.Error("a protected machine can be wiped from its page")
	}
	do(t, ctx, "by its address", chromedp.Navigate(s.URL+"/machines/r13u09/reinstall"), says(".three", "is protected, so nothing wipes it"), says(".actions", "Back to the machine"))
}

func TestBrowserRoleLimits(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	ctx := browserTest(t)
	do(t, ctx, "sign in as a viewer", s.signIn("vera"), chromedp.Navigate(s.URL+"/machines/r12u04"), says("#head h1", "Boot stopped"))
	if n := eval[int](t, ctx, `document.querySelectorAll("#head button, #head a.btn").length`); n != 0 {
		t.Errorf("a viewer is offered %d things to do", n)
	}
	do(t, ctx, "by its address", chromedp.Navigate(s.URL+"/machines/r12u04/retry"), says("h1", "you may not"), says(".three", "The role viewer may not"), says(".three", "Ask somebody"))
	do(t, ctx, "what admins see", chromedp.Navigate(s.URL+"/users"), says("h1", "you may not"))
}

// APP-03 in a browser: nothing of it runs, nothing becomes an element or an attribute.
func TestBrowserHostileNames(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(now func() time.Time) *webtest.Appliance {
		a := webtest.Empty(now)
		for _, text := range webtest.Hostile {
			a.Set(webtest.HostileMachine(called(text), text, now()))
		}
		return a
	}, false)
	ctx := browserTest(t)
	do(t, ctx, "sign in", s.signIn("anna"))
	for _, text := range webtest.Hostile {
		at := s.URL + "/machines/" + url.PathEscape(called(text))
		for _, page := range []string{s.URL + "/", at, at + "?tab=hardware", at + "?tab=disks", at + "?tab=log", at + "/change"} {
			do(t, ctx, page, chromedp.Navigate(page), chromedp.WaitVisible("main"))
			found := eval[string](t, ctx, `(() => {
				const bad = [];
				for (const e of document.querySelectorAll("*")) {
					if (e.tagName === "IMG" || (e.tagName === "SCRIPT" && !e.src)) bad.push(e.outerHTML);
					for (const a of e.attributes) if (/^on/i.test(a.name) || /^\s*javascript:/i.test(a.value) && a.name === "href") bad.push(a.name + "=" + a.value);
				}
				if (/[\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText)) bad.push("a direction mark");
				if (document.documentElement.scrollWidth > innerWidth) bad.push("wider than the window: " + [...document.querySelectorAll("*")].filter(e => Math.max(e.getBoundingClientRect().right, e.getBoundingClientRect().left + (getComputedStyle(e).overflowX === "visible" ? e.scrollWidth : 0)) > innerWidth).map(e => e.outerHTML.slice(0, 60)).join(" | "));
				return bad.join("\n").slice(0, 500);
			})()`)
			if found != "" {
				t.Errorf("%.100s: %s", page, found)
			}
		}
	}
	// A live update brings hostile text the same way.
	do(t, ctx, "the fleet", chromedp.Navigate(s.URL+"/"), says("#headline", "9 machines"), says("#rows", "long"))
	m := webtest.HostileMachine("late", `<img src=x onerror="document.title='hit'">`, time.Now())
	s.fleet.Set(m)
	do(t, ctx, "the new row", says("#headline", "10 machines"), says("#rows", "late"), says("#rows", "<img src=x"))
	if eval[bool](t, ctx, `!!document.querySelector("img") || document.title === "hit"`) {
		t.Error("a live update became markup")
	}
}

func TestBrowserPhone(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	ctx := browserTest(t)
	do(t, ctx, "a phone", size(390, 844, true, false), s.signIn("anna"))
	for _, path := range []string{"/", "/machines/r12u01", "/machines/r12u04", "/machines/r12u07?tab=disks", "/machines/r12u01?tab=log", "/machines/r14u01/provision", "/machines/new",
		"/machines/unknown-3f9a/enrol", "/discovered", "/images", "/health", "/users", "/audit", "/site/stop", "/?q=nothing"} {
		do(t, ctx, path, chromedp.Navigate(s.URL+path), chromedp.WaitVisible("main"))
		if over := eval[int](t, ctx, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
			t.Errorf("%s is %d px wider than the phone", path, over)
		}
		small := eval[string](t, ctx, `[...document.querySelectorAll("main .btn, main button, main input:not([type=hidden]):not([type=checkbox]):not([type=radio]), main select, main summary, main .chip, main .tabs a, main .choice, nav a")]
			.filter(e => e.offsetParent !== null && e.getBoundingClientRect().height < 43.5).map(e => e.outerHTML.slice(0, 80) + " " + e.getBoundingClientRect().height).join("\n")`)
		if small != "" {
			t.Errorf("%s has targets under 44 px:\n%s", path, small)
		}
	}
	do(t, ctx, "a failed machine", chromedp.Navigate(s.URL+"/machines/r12u04"), says("#head h1", "Boot stopped"))
	if low := eval[bool](t, ctx, `(() => { const r = document.querySelector("#head .primary").getBoundingClientRect(); return r.top > innerHeight * 0.75 && r.bottom <= innerHeight; })()`); !low {
		t.Error("the primary button is not in the thumb's reach")
	}
	if big := eval[bool](t, ctx, `(() => { const f = e => parseFloat(getComputedStyle(e).fontSize); const h = f(document.querySelector("h1")); return [...document.querySelectorAll("main *")].every(e => f(e) <= h); })()`); !big {
		t.Error("the state line is not the largest thing on the page")
	}
}

// TestBrowserLostConnection cuts the stream and lets it come back.
func TestBrowserLostConnection(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	ctx := browserTest(t)
	do(t, ctx, "sign in", s.signIn("tina"), chromedp.Navigate(s.URL+"/machines/r14u02"), says("#head h1", "Ready"))
	do(t, ctx, "the stream is open", until(`document.querySelector("#live") && document.querySelector("#lost").hidden`))
	m, _ := s.fleet.Get("r14u02")
	s.fleet.Set(webtest.At(m, fleet.StepDHCP, time.Now()))
	do(t, ctx, "it is live", says("#head h1", "first DHCP packet"))
	s.down.Store(true)
	s.CloseClientConnections()
	do(t, ctx, "it says so", until(`!document.querySelector("#lost").hidden`), says("#lost", "Connection lost, trying again"))
	s.fleet.Set(webtest.At(m, fleet.StepWipe, time.Now()))
	s.down.Store(false)
	do(t, ctx, "it comes back by itself", says("#head h1", "Wiping 2 disks"), until(`document.querySelector("#lost").hidden`))
}

func TestBrowserSearchAndKeys(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	ctx := browserTest(t)
	do(t, ctx, "sign in", s.signIn("tina"), until(`document.activeElement.id !== "q"`))
	do(t, ctx, "slash goes to the search", chromedp.KeyEvent("/"), until(`document.activeElement.id === "q"`), chromedp.Evaluate[chromedp.Void](`document.activeElement.value = ""; void 0`))
	m, _ := s.fleet.Get("r12u04")
	do(t, ctx, "a MAC in another notation", chromedp.KeyEvent(strings.ReplaceAll(m.MACs[0], ":", "")), says("#headline", "1 machine matches"), says("#rows", "r12u04"),
		until(`location.search.startsWith("?q=5254") && document.activeElement.id === "q"`))
	s.fleet.Set(webtest.At(m, fleet.StepWipe, time.Now()))
	do(t, ctx, "what was found is live", says("#rows", "Wiping 2 disks"))
	do(t, ctx, "the address is the search's", chromedp.Reload(), says("#headline", "1 machine matches"))
	do(t, ctx, "keys go to pages", chromedp.Evaluate[chromedp.Void](`document.activeElement.blur()`), chromedp.KeyEvent("gd"), says("#found-head", "wait for a name"))
}

// SEC-06 in a browser: another site's page reaches neither stream nor orders nor an upgrade of somebody who is signed in.
func TestBrowserOtherSite(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<title>evil</title><form id="f" method="post" action="%s/machines/r13u08/resume" target="frame"><input name="csrf" value="x"></form><iframe name="frame"></iframe>`, s.URL)
	}))
	t.Cleanup(evil.Close)
	ctx := browserTest(t)
	do(t, ctx, "sign in", s.signIn("omar"))
	do(t, ctx, "another site", chromedp.Navigate(strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)), until(`document.title === "evil"`))
	s.statuses()
	got := eval[string](t, ctx, fmt.Sprintf(`(async () => {
		const out = [];
		try { await fetch(%[1]q + "/live/fleet", { credentials: "include" }); out.push("the stream answered"); } catch (e) { out.push("stream refused"); }
		out.push(await new Promise((done) => { const s = new EventSource(%[1]q + "/live/fleet", { withCredentials: true }); s.onopen = () => done("EventSource opened"); s.onerror = () => done("EventSource refused"); }));
		out.push(await new Promise((done) => { const s = new WebSocket(%[2]q + "/"); s.onopen = () => done("WebSocket opened"); s.onerror = () => done("WebSocket refused"); }));
		document.getElementById("f").submit();
		return out.join(", ");
	})()`, s.URL, strings.Replace(s.URL, "http", "ws", 1)))
	if got != "stream refused, EventSource refused, WebSocket refused" {
		t.Error(got)
	}
	s.wait(t, "from http://localhost", 4)
	for _, line := range s.statuses() {
		if strings.Contains(line, "from http://localhost") && !strings.HasSuffix(line, " 403") {
			t.Errorf("another site's request: %s, want 403", line)
		}
	}
	if n := len(s.fleet.Orders()); n != 0 {
		t.Errorf("%d orders were carried out", n)
	}
}
