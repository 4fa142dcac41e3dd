package demo

import (
	"fmt"
	"regexp"
	"sync"
)

// setupCode finds the one-time code in what the appliance says at its start.
var setupCode = regexp.MustCompile(`one-time code (\S+)`)

// console keeps what the appliance told whoever started it.
type console struct {
	mu   sync.Mutex
	code string
}

func (c *console) tell(line string) {
	m := setupCode.FindStringSubmatch(line)
	if m == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.code = m[1]
}

func (c *console) setupCode() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.code
}

// url is the page's address for this machine's browser.
func (d *demo) url() string { return "http://" + d.page.Addr().String() + "/" }

// address says where the page is and how to get in.
func (d *demo) address() []string {
	out := []string{"", "  Page        " + d.url()}
	if code := d.console.setupCode(); code != "" {
		out = append(out, fmt.Sprintf("  First time  %ssetup with the one-time code %s", d.url(), code))
	}
	return append(out, "")
}

// summary says what is where and what to try next.
func (d *demo) summary() []string {
	firstlight := d.shorter(d.Bin + "/firstlight")
	address, user, password, certificate := d.room.Controller(unknown)
	return append(d.address(),
		"  "+first+"       runs the image; its disk was wiped, written and read back",
		"  "+unknown+"       waits under Discovered: give it a name there. Its controller, an emulated one:",
		"              BMC address "+address+", user "+user+", password "+password+",",
		"              certificate "+certificate,
		"  "+wrong+"       was stopped before its first write: its record names disk "+rack()[2].Record+", and it has "+rack()[2].Disk,
		"",
		"  In another terminal:",
		"    export FIRSTLIGHT_SOCKET="+d.room.Socket(),
		"    "+firstlight+" machine show "+first,
		"    "+firstlight+" machine show "+wrong,
		"    "+firstlight+" events",
		"",
		"  Ctrl-C ends the demo and takes everything away.",
		"")
}
