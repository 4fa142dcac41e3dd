// Command testbed is a rack in a box: it runs scenarios of the whole product on this machine and judges them from outside.
//
//	testbed run SCENARIO [--firmware uefi] [--break KIND] [--hold-after STAGE] [--json FILE] [--keep] [--timeout 20m]
//	testbed list [--json]
//	testbed demo [--port 8080] [--exit]
//
// It needs root (network namespaces, taps), and the other programs of `make build` beside it. Exit codes: 0 the judge is
// satisfied; 1 it is not, or a break ended as it should (its machine did not become a node); 2 wrong arguments; 3 a break did not
// end as it should.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// A closed terminal or pipe ends it in order too: what it made must not stay.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "testbed:", err)
	stop()
	os.Exit(exitCode(err))
}
