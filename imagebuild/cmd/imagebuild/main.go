// Imagebuild makes boot artefacts: the machine agent's RAM disk, the demo system's raw disk image, and an image's chunks with
// their manifest. "imagebuild --help" lists the commands. It needs no root and mounts nothing.
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
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "imagebuild:", err)
		os.Exit(1)
	}
}
