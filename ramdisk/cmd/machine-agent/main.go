// Command machine-agent is the machine agent.
//
// As process 1 it is the RAM disk's init. Otherwise:
//
//	machine-agent node --config FILE --state DIR   the deployed system's node agent
//	machine-agent join --config FILE --state DIR   join only, then end
//	machine-agent version
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
	err := run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine-agent:", err)
		os.Exit(1)
	}
}
