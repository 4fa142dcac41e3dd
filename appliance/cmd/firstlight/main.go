// Firstlight runs the appliance (`firstlight serve`) and talks to it (every other command). See README.md of appliance.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"firstlight/appliance/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := cli.Run(ctx, cli.Program{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Socket: os.Getenv("FIRSTLIGHT_SOCKET")})
	stop()
	os.Exit(cli.Report(os.Stderr, err))
}
