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
	ctx, out, errs, stop := endings(os.Stdout, os.Stderr)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdin, out, errs)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "testbed:", err)
	stop()
	os.Exit(exitCode(err))
}

// endings gives a context that ends when a person, the terminal or a closed pipe ends the program, so that nothing stays of what it
// made. SIGPIPE would come of any connection that breaks under a write, so it is taken away and the two streams tell of their own end.
func endings(out, errs *os.File) (context.Context, endWith, endWith, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return ctx, endWith{out, stop}, endWith{errs, stop}, stop
}

// endWith is a stream that ends the program when nobody reads it any more.
type endWith struct {
	file *os.File
	end  func()
}

// Fd says where it leads, for who asks whether that is a terminal.
func (e endWith) Fd() uintptr { return e.file.Fd() }

func (e endWith) Write(b []byte) (int, error) {
	n, err := e.file.Write(b)
	if err != nil {
		e.end()
	}
	return n, err
}
