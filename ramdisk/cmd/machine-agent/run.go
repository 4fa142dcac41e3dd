package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"firstlight/ramdisk"
	"firstlight/ramdisk/internal/console"
	"firstlight/ramdisk/internal/pid1"
)

// childWord starts the agent below process 1.
const childWord = "ramdisk-agent"

const usage = "usage: machine-agent node|join --config FILE --state DIR | machine-agent version"

func run(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) error {
	if os.Getpid() == 1 {
		return initProcess(ctx)
	}
	if len(args) < 2 {
		return errors.New(usage)
	}
	switch args[1] {
	case childWord:
		return ramdiskAgent(ctx)
	case "node", "join":
		return nodeAgent(ctx, args[1], args[2:], stderr)
	case "version":
		_, err := fmt.Fprintln(stdout, version())
		return err
	}
	return fmt.Errorf("unknown command %q; %s", args[1], usage)
}

// initProcess is process 1: whatever happens, it ends in a restart of the machine.
func initProcess(ctx context.Context) (err error) {
	problems := pid1.Mount()
	c := console.Open(os.DirFS("/sys"), "/dev")
	for _, p := range problems {
		c.Say("%v", p)
	}
	os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	err = pid1.Supervise(ctx, pid1.Self{Args: []string{"machine-agent", childWord}}, c.Say)
	c.Say("%v; the machine restarts in %s", err, pid1.RebootDelay)
	time.Sleep(pid1.RebootDelay)
	return pid1.Restart()
}

func ramdiskAgent(ctx context.Context) error {
	log.SetOutput(io.Discard) // u-root's libraries talk to it; what matters is said in our words.
	c := console.Open(os.DirFS("/sys"), "/dev")
	a, err := ramdisk.New(ramdisk.Config{Role: ramdisk.RAMDisk, Version: version(), Say: c.Say})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

func nodeAgent(ctx context.Context, word string, args []string, stderr io.Writer) error {
	f := flag.NewFlagSet("machine-agent "+word, flag.ContinueOnError)
	f.SetOutput(stderr)
	conf := f.String("config", "", "the node's configuration `FILE`, as the deploy left it")
	state := f.String("state", "", "the `DIR` that holds the node's key, certificates and journal")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 || *conf == "" || *state == "" {
		return errors.New(usage)
	}
	a, err := ramdisk.New(ramdisk.Config{Role: ramdisk.Node, Version: version(), ConfigFile: *conf, StateDir: *state, JoinOnly: word == "join",
		Say: console.New(stderr).Say, Log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// version is what the build recorded of itself.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 && (v == "" || v == "(devel)") {
			v = s.Value[:12]
		}
	}
	if v == "" || v == "(devel)" {
		v = "devel"
	}
	return v
}
