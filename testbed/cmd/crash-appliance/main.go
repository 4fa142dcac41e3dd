// Command crash-appliance is the appliance with a fuse: it is `firstlight serve` until a chosen write to its store, and there it
// kills itself as a power cut would.
//
//	crash-appliance --config FILE [--at N --edge before|after] [--prefix workflows/] [--log FILE]
//
// It is for testbed scenarios. The write is the Nth of this process whose key starts with the prefix; before means that the write
// is never made, after that it is durable and nothing that follows it happens. Without --at it never burns.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "crash-appliance:", err)
	stop()
	os.Exit(1)
}
