// Package cli is the firstlight command: it reads arguments, calls the appliance on this host and prints for people or, with
// --json, for programs.
//
// It is for appliance/cmd/firstlight. It decides nothing about machines: but for serve and version, each command is one call of
// the API. Exit codes are those of fault.Kind, and README.md of appliance lists them.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/config"
	"firstlight/appliance/internal/fault"
)

// Program is what the process gives to the command.
type Program struct {
	// Args leave the program's name out.
	Args   []string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Socket is the value of FIRSTLIGHT_SOCKET; empty means the usual place.
	Socket string
}

// command is the command line; kong fills it.
type command struct {
	Socket string `help:"The appliance's socket (environment: FIRSTLIGHT_SOCKET)." placeholder:"PATH" default:"${socket}"`
	JSON   bool   `name:"json" help:"Print JSON."`
	remote

	Serve   serve `cmd:"" help:"Run the appliance until it is told to end."`
	Machine struct {
		Add       machineAdd       `cmd:"" help:"Record a machine: where its controller is, how to know it, which disks may be wiped."`
		Adopt     machineAdopt     `cmd:"" help:"Record a machine that runs and is never to be wiped: it is protected from the start."`
		Protect   machineProtect   `cmd:"" help:"Let no workflow touch a machine's disks until unprotect."`
		Unprotect machineUnprotect `cmd:"" help:"Remove the protection of a machine."`
		Show      machineShow      `cmd:"" help:"Show what a machine is, does and waits for."`
		Set       machineSet       `cmd:"" help:"Change what is recorded of a machine."`
		Remove    machineRemove    `cmd:"" help:"Forget a machine; nothing is done to it."`
		List      machineList      `cmd:"" help:"List all machines, whole."`
	} `cmd:"" help:"One machine."`
	Machines machines `cmd:"" help:"List machines, those that need you first; search them."`
	Image    struct {
		Add  imageAdd  `cmd:"" help:"Verify, store and sign the image in a directory of the appliance's host, made by imagebuild pack."`
		List imageList `cmd:"" help:"List all images."`
	} `cmd:"" hidden:"" help:"Images."`
	Images struct {
		List   imageList    `cmd:"" default:"1" help:"List all images."`
		Add    imagesAdd    `cmd:"" help:"Send the image in a directory made by imagebuild pack; run again, it goes on where it was."`
		Remove imagesRemove `cmd:"" help:"Remove an image that no open workflow uses."`
	} `cmd:"" help:"Images."`
	Discovered discovered `cmd:"" help:"List the machines that booted here and are nobody's yet."`
	Provision  provision  `cmd:"" help:"Install an image on a machine. Its recorded disks are wiped."`
	Retry      retry      `cmd:"" help:"Begin a failed or cancelled machine's order again."`
	Resume     resume     `cmd:"" help:"Let a machine go on that pauses after a step, or that was stopped."`
	Cancel     cancel     `cmd:"" help:"End a machine's workflow and say what its disks hold."`
	StopAll    stopAll    `cmd:"" help:"Freeze every workflow at its next safe point and say where."`
	ResumeAll  resumeAll  `cmd:"" help:"Let everything go on that stop-all froze."`
	Events     events     `cmd:"" help:"Print what happened, oldest first."`
	Logs       logs       `cmd:"" help:"Print what a machine's agents said, oldest first."`
	Users      struct {
		List   usersList   `cmd:"" default:"1" help:"List all accounts."`
		Add    usersAdd    `cmd:"" help:"Make an account."`
		Set    usersSet    `cmd:"" help:"Change an account's role or password."`
		Remove usersRemove `cmd:"" help:"Remove an account."`
	} `cmd:"" help:"Accounts of people."`
	Tokens struct {
		List   tokensList   `cmd:"" default:"1" help:"List all tokens."`
		Add    tokensAdd    `cmd:"" help:"Make a token and print its value, this once."`
		Revoke tokensRevoke `cmd:"" help:"End a token."`
	} `cmd:"" help:"Tokens of programs."`
	Audit      audit         `cmd:"" help:"Print who did what, newest first."`
	JoinToken  joinToken     `cmd:"" help:"Make a one-time token with which the site's agent joins, where the appliance does not run it itself."`
	Join       join          `cmd:"" help:"Run the site's agent in a process of its own; the first time with its token."`
	Completion completion    `cmd:"" help:"Print what makes a shell complete this program's commands."`
	Complete   complete      `cmd:"" hidden:"" help:"Print what a word may become."`
	Doctor     doctorCommand `cmd:"" help:"Look at what the appliance stands on, and who else answers boots; say what to change."`
	Version    versionInfo   `cmd:"" help:"Print the version of this program."`
}

// call is what every command gets to run with.
type call struct {
	Program
	ctx    context.Context
	json   bool
	client *api.Client
	// model is the command line's, for completion.
	model *kong.Node
}

// helpOf is the command line that tells what was to be written: of the command that was meant, where one was.
func helpOf(err error) string {
	var words []string
	var bad *kong.ParseError
	if errors.As(err, &bad) {
		for _, p := range bad.Context.Path {
			if p.Command != nil {
				words = append(words, p.Command.Name)
			}
		}
	}
	return strings.Join(append(append([]string{"firstlight"}, words...), "--help"), " ")
}

// Run runs one command. Its error is for Report.
func Run(ctx context.Context, p Program) error {
	if p.Socket == "" {
		p.Socket = config.DefaultSocket
	}
	var cmd command
	exited := false
	parser, err := kong.New(&cmd, kong.Name("firstlight"), kong.Vars{"socket": p.Socket}, kong.Writers(p.Stdout, p.Stderr),
		kong.Exit(func(int) { exited = true }), kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}),
		kong.Description("Firstlight takes servers from bare metal to running nodes.\n\n"+
			"Exit codes: 0 done, 1 the appliance's own trouble, 2 wrong arguments, 3 not found, 4 not in this state, 5 wrong value, "+
			"6 not permitted, 7 the appliance does not answer."))
	if err != nil {
		return fault.Of(err, "read arguments", "")
	}
	parsed, err := parser.Parse(p.Args)
	if exited {
		return nil
	}
	if err != nil {
		return fault.New(fault.Usage, "read arguments", "", err, "see `"+helpOf(err)+"`")
	}
	client, err := cmd.remote.client(cmd.Socket, p.Stdin)
	if err != nil {
		return err
	}
	return parsed.Run(&call{Program: p, ctx: ctx, json: cmd.JSON, client: client, model: parser.Model.Node})
}

// Report prints an error as three lines and returns the exit code.
func Report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	f, ok := errors.AsType[*fault.Error](err)
	if !ok {
		f = fault.Of(err, "run the command", "")
	}
	lines := f.Lines()
	fmt.Fprintf(w, "error: %s\n%s\n%s\n", lines[0], lines[1], lines[2])
	return f.Kind.ExitCode()
}

// print writes v as JSON, or what people gives.
func (c *call) print(v any, people func(io.Writer)) error {
	if !c.json {
		people(c.Stdout)
		return nil
	}
	e := json.NewEncoder(c.Stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fault.Of(err, "print the answer", "")
	}
	return nil
}
