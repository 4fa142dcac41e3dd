package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"

	"firstlight/appliance"
)

// Edges of a write.
const (
	edgeBefore = "before"
	edgeAfter  = "after"
)

func run(ctx context.Context, args []string, _ io.Reader, _, stderr io.Writer) error {
	flags := flag.NewFlagSet("crash-appliance", flag.ContinueOnError)
	flags.SetOutput(stderr)
	config := flags.String("config", "", "the appliance's configuration file")
	f := &fuse{kill: kill}
	flags.IntVar(&f.at, "at", 0, "number of the write at which to die, from 1; 0 is never")
	flags.StringVar(&f.edge, "edge", edgeAfter, "die before or after the write")
	flags.StringVar(&f.prefix, "prefix", "workflows/", "count writes to keys with this prefix")
	flags.StringVar(&f.log, "log", "", "file that gets a line for each death")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if f.edge != edgeBefore && f.edge != edgeAfter || f.at < 0 {
		return fmt.Errorf("edge %q at write %d: want before or after, and no negative number", f.edge, f.at)
	}
	file, err := appliance.Load(*config)
	if err != nil {
		return err
	}
	app, err := appliance.New(appliance.Config{File: file, Version: "crash", Log: slog.New(slog.NewTextHandler(stderr, nil)),
		Ready: func() { fmt.Fprintln(stderr, "firstlight: ready") }, Observe: f.observe})
	if err != nil {
		return err
	}
	return app.Run(ctx)
}

// fuse ends the process at one write.
type fuse struct {
	at     int
	edge   string
	prefix string
	log    string
	// kill does not return.
	kill func()

	mu sync.Mutex // held for good by the one that burns it: nobody else's write is begun
	// begun counts writes before they are made, durable those that are.
	begun, durable int
}

func (f *fuse) observe(w appliance.Write) {
	if !strings.HasPrefix(w.Key, f.prefix) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	count, edge := &f.begun, edgeBefore
	if w.Durable {
		count, edge = &f.durable, edgeAfter
	}
	*count++
	if edge != f.edge || *count != f.at {
		return
	}
	f.note(w.Key)
	f.kill()
}

// note leaves a line for whoever counts deaths. Nothing can be done about an error: the process ends.
func (f *fuse) note(key string) {
	if f.log == "" {
		return
	}
	out, err := os.OpenFile(f.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	fmt.Fprintf(out, "%s %d %s\n", f.edge, f.at, key)
	out.Close()
}

// kill is kill -9: no deferred call, no flush, no goodbye.
func kill() {
	syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
