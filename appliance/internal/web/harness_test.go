package web_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/web"
	"firstlight/appliance/internal/web/webtest"
)

// patience bounds every wait of a test on the browser.
const patience = 60 * time.Second

// site is a page over a fake appliance.
type site struct {
	*httptest.Server
	fleet    *webtest.Appliance
	accounts *webtest.Accounts
	// down makes it answer nothing.
	down atomic.Bool

	mu   sync.Mutex
	told *sync.Cond
	// seen are the requests that were answered, each with its status.
	seen []string
}

// recorder notes an answer's status.
type recorder struct {
	http.ResponseWriter
	code int
}

func (r *recorder) WriteHeader(code int) {
	r.code = code
	r.ResponseWriter.WriteHeader(code)
}

// Unwrap lets the handler flush.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// watched is the page as a test sees it: down when it is, and with what it answered.
func (s *site) watched(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.down.Load() {
			panic(http.ErrAbortHandler)
		}
		rec := &recorder{w, http.StatusOK}
		page.ServeHTTP(rec, r)
		s.mu.Lock()
		s.seen = append(s.seen, fmt.Sprintf("%s %s from %s: %d", r.Method, r.URL.Path, r.Header.Get("Origin"), rec.code))
		s.told.Broadcast()
		s.mu.Unlock()
	})
}

// statuses returns and forgets what was answered so far.
func (s *site) statuses() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.seen
	s.seen = nil
	return out
}

// puts returns and forgets the parts of images that were taken.
func (s *site) puts() (out []string) {
	for _, line := range s.statuses() {
		if strings.HasPrefix(line, "PUT ") && strings.HasSuffix(line, " 200") {
			out = append(out, line)
		}
	}
	return out
}

// wait waits until n requests of a kind were answered.
func (s *site) wait(t *testing.T, kind string, n int) {
	t.Helper()
	limit := time.AfterFunc(patience, s.told.Broadcast)
	defer limit.Stop()
	began := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	came := func() (n int) {
		for _, line := range s.seen {
			if strings.Contains(line, kind) {
				n++
			}
		}
		return n
	}
	for came() < n {
		if time.Since(began) > patience {
			t.Fatalf("%d requests came, want %d: %v", came(), n, s.seen)
		}
		s.told.Wait()
	}
}

func newSite(t *testing.T, fleet func(now func() time.Time) *webtest.Appliance, fresh bool) *site {
	t.Helper()
	s := &site{}
	s.told = sync.NewCond(&s.mu)
	now := time.Now
	s.fleet, s.accounts = fleet(now), webtest.NewAccounts(now, fresh)
	h, err := web.New(web.Config{API: api.InProcess(s.fleet), Accounts: s.accounts, Site: "site-a", Version: "1.0-test", Now: now, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.Server = httptest.NewUnstartedServer(s.watched(h))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Start()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

// client is somebody without a browser who is signed in, or nobody.
type client struct {
	t *testing.T
	s *site
	*http.Client
	cookie, csrf string
}

func (s *site) client(t *testing.T, name string) *client {
	t.Helper()
	c := &client{t: t, s: s, Client: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	if name == "" {
		return c
	}
	resp := c.form("POST", "/login", map[string]string{"name": name, "password": webtest.Password})
	for _, k := range resp.Cookies() {
		c.cookie = k.Name + "=" + k.Value
		c.csrf = "mark-" + k.Value
	}
	if resp.StatusCode != http.StatusSeeOther || c.cookie == "" {
		t.Fatalf("sign in as %s: %s", name, resp.Status)
	}
	return c
}

// tabs bounds how many tests drive the browser at one time.
var tabs = make(chan struct{}, 3)

// browserTest gives a tab of a real browser, or skips and says why.
func browserTest(t *testing.T) context.Context {
	t.Helper()
	root := browser(t)
	select {
	case tabs <- struct{}{}:
		t.Cleanup(func() { <-tabs })
	case <-t.Context().Done():
	}
	ctx, cancel := chromedp.NewContext(root, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	ctx, stop := context.WithTimeout(ctx, 5*patience)
	t.Cleanup(stop)
	watchTab(t, ctx)
	return ctx
}

var (
	startOnce sync.Once
	started   context.Context
	startErr  error
	stopAll   = func() {}
)

// browser starts one for the whole package; every test has a profile of its own in it.
func browser(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if testing.Short() {
			t.Skip("no chromium is installed: make setup installs it")
		}
		t.Fatal("no chromium is installed: make setup installs it")
	}
	startOnce.Do(func() {
		opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.DisableGPU, chromedp.NoSandbox,
			chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
			chromedp.Flag("no-first-run", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("font-render-hinting", "none"), chromedp.WSURLReadTimeout(patience))
		alloc, stopAlloc := chromedp.NewExecAllocator(context.Background(), opts...)
		ctx, stop := chromedp.NewContext(alloc)
		stopAll = func() { stop(); stopAlloc() }
		started, startErr = ctx, chromedp.Do(ctx)
	})
	if startErr != nil {
		t.Fatalf("start chromium: %v", startErr)
	}
	return started
}

func TestMain(m *testing.M) {
	code := m.Run()
	stopAll()
	os.Exit(code)
}

// watchTab fails the test when a script throws or the browser refuses something, such as what the page's policy forbids.
func watchTab(t *testing.T, ctx context.Context) {
	t.Helper()
	messages := chromedp.Console(ctx)
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil {
		t.Fatalf("open a tab: %v", err)
	}
	done := make(chan []string, 1)
	go func() {
		var bad []string
		for m, err := range messages {
			if err != nil {
				break
			}
			if m.IsException() || strings.Contains(m.String(), "Content Security Policy") {
				bad = append(bad, m.String())
			}
		}
		done <- bad
	}()
	t.Cleanup(func() {
		chromedp.Cancel(ctx)
		for _, b := range <-done {
			t.Errorf("the page complained: %s", b)
		}
	})
}

type step = chromedp.Action[chromedp.Void]

// do runs steps in the browser and says what was tried when one does not work.
func do(t *testing.T, ctx context.Context, what string, steps ...step) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body ? location.href + "\n" + document.body.innerText.slice(0, 2000) : ""`))
		t.Fatalf("%s: %v\nthe page says:\n%s", what, err, text)
	}
}

// eval is the value of an expression in the page.
func eval[T any](t *testing.T, ctx context.Context, expr string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expr, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	return v
}

// size is a screen.
func size(w, h int64, phone, dark bool) step {
	theme := "light"
	if dark {
		theme = "dark"
	}
	var opts []chromedp.EmulateViewportOption
	if phone {
		opts = append(opts, chromedp.EmulateMobile, chromedp.EmulateTouch)
	}
	return chromedp.Steps(chromedp.EmulateViewport(w, h, opts...), chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}})
		return err
	}))
}

func (s *site) signIn(name string) step {
	return chromedp.Steps(
		chromedp.Navigate(s.URL+"/login"),
		chromedp.WaitVisible(`input[name=password]`),
		chromedp.SetValue(`input[name=name]`, name),
		chromedp.SetValue(`input[name=password]`, webtest.Password),
		press(`main button.primary`),
		chromedp.WaitVisible(`#headline`),
	)
}

func click(sel string) step { return chromedp.Click(chromedp.CSS(sel)) }

// says waits until an element's text holds a text.
func says(sel, text string) step {
	return until(fmt.Sprintf(`(() => { const e = document.querySelector(%q); return !!e && e.textContent.replace(/\s+/g, " ").includes(%q); })()`, sel, text))
}

// until waits until an expression is true in the page.
func until(expr string) step {
	return func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		limit, look := time.After(patience), time.NewTicker(50*time.Millisecond)
		defer look.Stop()
		for {
			// While a page is loaded the old one is gone and the new one not there: that is no answer yet.
			yes, err := chromedp.Evaluate[bool](expr)(ctx, t)
			if err == nil && yes {
				return chromedp.Void{}, nil
			}
			select {
			case <-ctx.Done():
				return chromedp.Void{}, ctx.Err()
			case <-limit:
				return chromedp.Void{}, fmt.Errorf("not within %v: %s (%v)", patience, expr, err)
			case <-look.C:
			}
		}
	}
}
