package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"firstlight/testbed/demo"
	"firstlight/testbed/scenario"
)

// Exit codes.
const (
	exitUnsatisfied = 1
	exitUsage       = 2
	exitUnbroken    = 3
)

const maxPort = 65535

// exitError ends the program with its code; its text has been said in full before.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

func exitCode(err error) int {
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	return exitUnsatisfied
}

// command is the command line; kong fills it.
type command struct {
	Run struct {
		Scenario  string        `arg:"" help:"Name of the scenario; see testbed list."`
		Firmware  string        `placeholder:"uefi|bios" help:"Firmware of the machine; the scenario has a first choice."`
		Break     string        `placeholder:"KIND" help:"Spoil one link from outside; the run must then fail where it broke."`
		HoldAfter string        `placeholder:"STAGE" help:"Stop the machine after this stage, judge, and end: wipe or deploy."`
		JSON      string        `name:"json" placeholder:"FILE" help:"Write the report here; - is standard output."`
		Keep      bool          `help:"Leave the run's folder, disk and keys included."`
		Timeout   time.Duration `help:"Bound of the whole run; the scenario has its own, 20m for most."`
	} `cmd:"" help:"Run a scenario and judge it. Needs root."`
	List struct {
		JSON bool `name:"json" help:"Print JSON."`
	} `cmd:"" help:"List the scenarios."`
	Demo struct {
		Port int  `placeholder:"N" help:"Port of the page on this machine's loopback; 8080 without it, or a free one."`
		Exit bool `help:"End with 0 once the first machine is active (environment: DEMO_EXIT=1)."`
	} `cmd:"" help:"Show an appliance and a rack of three virtual machines until Ctrl-C. Needs root."`
	Bench benchCommand `cmd:"" help:"Measure the product beside its peers. Needs root."`
}

// run is the whole program. Progress goes to stderr, reports and lists to stdout.
func run(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) error {
	var cmd command
	exited := false
	parser, err := kong.New(&cmd, kong.Name("testbed"), kong.Writers(stdout, stderr), kong.Exit(func(int) { exited = true }),
		kong.Description("A rack in a box: runs scenarios of the whole product and judges them from outside.\n\n"+
			"Exit codes: 0 the judge is satisfied; 1 it is not, or a break ended as it should; 2 wrong arguments; 3 a break did not end as it should."))
	if err != nil {
		return err
	}
	parsed, err := parser.Parse(args)
	if exited {
		return nil
	}
	if err != nil {
		return &exitError{exitUsage, err.Error()}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the programs beside this one: %w", err)
	}
	bin := filepath.Dir(self)
	switch {
	case strings.HasPrefix(parsed.Command(), "list"):
		return list(stdout, filepath.Join(bin, "scenarios"), cmd.List.JSON)
	case strings.HasPrefix(parsed.Command(), "bench"):
		return cmd.Bench.run(ctx, bin, stdout, stderr)
	case strings.HasPrefix(parsed.Command(), "demo"):
		if cmd.Demo.Port < 0 || cmd.Demo.Port > maxPort {
			return &exitError{exitUsage, fmt.Sprintf("port %d: want 1 to %d", cmd.Demo.Port, maxPort)}
		}
		return demo.Run(ctx, demo.Options{Bin: bin, Port: cmd.Demo.Port, Exit: cmd.Demo.Exit || isOn(os.Getenv("DEMO_EXIT")), Out: stdout,
			NoColor: os.Getenv("NO_COLOR") != ""})
	}
	o := scenario.Options{Scenario: cmd.Run.Scenario, Firmware: cmd.Run.Firmware, Break: cmd.Run.Break, HoldAfter: cmd.Run.HoldAfter,
		Keep: cmd.Run.Keep, Timeout: cmd.Run.Timeout, Out: stderr}
	o.Bin = bin
	rep, err := scenario.Run(ctx, o)
	if errors.Is(err, scenario.ErrUsage) {
		return &exitError{exitUsage, err.Error()}
	}
	if err != nil {
		return err
	}
	return errors.Join(write(stdout, cmd.Run.JSON, rep), verdict(stderr, rep))
}

// isOn reads a switch of the environment.
func isOn(value string) bool { return !slices.Contains([]string{"", "0", "no", "false"}, value) }

// verdict says how the run ended and gives the error that stands for it.
func verdict(w io.Writer, rep *scenario.Report) error {
	for _, e := range rep.Errors {
		fmt.Fprintln(w, "  error:", e)
	}
	good := 0
	for _, c := range rep.Checks {
		if c.OK {
			good++
		}
	}
	fmt.Fprintf(w, "outcome %s after %.1f s: %d of %d checks hold\n", rep.Outcome, rep.WallS, good, len(rep.Checks))
	if rep.Logs != "" {
		fmt.Fprintln(w, "logs are in", rep.Logs)
	}
	switch {
	case rep.Satisfied():
		return nil
	case rep.BrokeAsSaid():
		return &exitError{exitUnsatisfied, fmt.Sprintf("the machine failed where break %s broke it, as it should", rep.Break)}
	case rep.Break != "":
		return &exitError{exitUnbroken, fmt.Sprintf("break %s did not end as it should", rep.Break)}
	}
	return &exitError{exitUnsatisfied, "the judge is not satisfied"}
}

// write writes the report to path; nowhere when path is empty.
func write(stdout io.Writer, path string, rep *scenario.Report) error {
	if path == "" {
		return nil
	}
	b, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	b = append(b, '\n')
	if path == "-" {
		_, err = stdout.Write(b)
	} else {
		err = os.WriteFile(path, b, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// listed is a scenario and how its last run ended, as far as this checkout has seen one.
type listed struct {
	scenario.Scenario
	Last *last `json:"last,omitempty"`
}

type last struct {
	Outcome string  `json:"outcome"`
	WallS   float64 `json:"wall_s"`
}

// lastRun reads the report that the tests left in dir; nil when there is none that can be read.
func lastRun(dir, name string) *last {
	b, err := os.ReadFile(filepath.Join(dir, name+".json"))
	if err != nil {
		return nil
	}
	var l last
	if json.Unmarshal(b, &l) != nil || l.Outcome == "" {
		return nil
	}
	return &l
}

// list prints the scenarios, one line each with what its last run took; as JSON it is one array with a line for each. Reports of
// earlier runs are in dir.
func list(w io.Writer, dir string, asJSON bool) error {
	var out bytes.Buffer
	var lines []string
	for _, s := range scenario.All() {
		l := lastRun(dir, s.Name)
		if asJSON {
			b, err := json.Marshal(listed{s, l})
			if err != nil {
				return err
			}
			lines = append(lines, string(b))
			continue
		}
		core, took := "", "not run yet"
		if s.Core {
			core = " (core)"
		}
		if l != nil {
			took = fmt.Sprintf("%s, %.0f s", l.Outcome, l.WallS)
		}
		fmt.Fprintf(&out, "%-22s [%s] %s%s\n", s.Name, took, s.What, core)
		if len(s.Breaks) > 0 {
			fmt.Fprintf(&out, "%-22s --break %s; core: %s\n", "", strings.Join(s.Breaks, "|"), strings.Join(s.CoreBreaks, ", "))
		}
	}
	if asJSON {
		fmt.Fprintf(&out, "[\n%s\n]\n", strings.Join(lines, ",\n"))
	}
	_, err := w.Write(out.Bytes())
	return err
}
