package appliance

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"firstlight/appliance/internal/api"
)

// tab is a real browser's, or the test skips and says why.
func tab(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium is installed: make setup installs it")
	}
	ctx, stop := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(stop)
	ctx, stopBrowser := chromedp.NewExecAllocator(ctx, append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.DisableGPU,
		chromedp.NoSandbox, chromedp.Flag("disable-background-networking", true), chromedp.WSURLReadTimeout(patience))...)
	t.Cleanup(stopBrowser)
	ctx, closeTab := chromedp.NewContext(ctx)
	t.Cleanup(closeTab)
	return ctx
}

func browse(t *testing.T, ctx context.Context, what string, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		text, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText.slice(0, 2000)`))
		t.Fatalf("%s: %v\n%s", what, err, text)
	}
}

// The whole appliance in a real browser: the code on its console makes the first account, and what comes in by the API is on the
// page that stands open, without a reload.
func TestFirstStartAndLivePageInABrowser(t *testing.T) {
	ctx := tab(t)
	var console screen
	p := startWith(t, "[web]\nlisten = \"127.0.0.1:0\"\ninsecure_loopback = true\n", func(c *Config) { c.Console = &console })
	page := strings.TrimSuffix(p.web.url(), "/")
	browse(t, ctx, "first start", chromedp.Navigate(page), chromedp.WaitVisible(`input[name=code]`),
		chromedp.SetValue(`input[name=code]`, console.says(t, `one-time code (\S{19}) `)), chromedp.SetValue(`input[name=name]`, "anna"),
		chromedp.SetValue(`input[name=password]`, annas), chromedp.SetValue(`input[name=again]`, annas),
		chromedp.Click(`main button.primary`), chromedp.WaitVisible(`#headline`))
	client := api.NewClient(p.cfg.File.Socket)
	add := func(name, mac string) api.Machine {
		added, err := client.AddMachine(ctx, api.AddMachine{Name: name, Place: "rack 12", MACs: []string{mac}, DiskSerials: []string{"SERIAL-" + name},
			BMCURL: "https://10.77.0.9", BMCUser: "root", BMCPassword: "calvin", BMCCertificateSHA256: strings.Repeat("ab", 32)})
		if err != nil {
			t.Fatal(err)
		}
		return added
	}
	// The first machine gives the page other parts, for which it loads itself again. After that it stays: no other page has the mark.
	add("r12u01", "52:54:00:00:00:01")
	browse(t, ctx, "the first machine", chromedp.WaitVisible(`#rows a.name[href="/machines/r12u01"]`))
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.documentElement.dataset.stays = "yes"`)); err != nil {
		t.Fatal(err)
	}
	added := add("r12u04", "52:54:00:00:00:04")
	browse(t, ctx, "the machine that was added", chromedp.WaitVisible(`html[data-stays] #rows a.name[href="/machines/r12u04"]`))
	if _, err := client.Protect(ctx, "r12u04", api.Reason{Version: added.Version, Reason: "holds the ledger"}); err != nil {
		t.Fatal(err)
	}
	browse(t, ctx, "its protection", chromedp.WaitVisible(`html[data-stays] #rows .nm .nowrap`))
}
