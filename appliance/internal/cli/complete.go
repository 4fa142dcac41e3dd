package cli

import (
	"context"
	"fmt"
	"io"
	"sort"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/fault"
)

const (
	// completeTimeout bounds asking the appliance for names while a person waits for the tab key.
	completeTimeout = 2 * time.Second
	// maxNames bounds the names that are offered.
	maxNames = 200
)

// shells are what each shell runs; all of them ask the program itself what may come next.
var shells = map[string]string{
	"bash": `_firstlight() {
  local IFS=$'\n'
  COMPREPLY=($(firstlight complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _firstlight firstlight
`,
	"zsh": `#compdef firstlight
_firstlight() {
  local -a found
  found=("${(@f)$(firstlight complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  compadd -a found
}
compdef _firstlight firstlight
`,
	"fish": `function __firstlight
  set -l words (commandline -opc) (commandline -ct)
  firstlight complete -- $words[2..-1] 2>/dev/null
end
complete -c firstlight -f -a '(__firstlight)'
`,
}

type completion struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run implements the command.
func (x *completion) Run(c *call) error {
	_, err := io.WriteString(c.Stdout, shells[x.Shell])
	return err
}

type complete struct {
	Words []string `arg:"" optional:"" passthrough:"" help:"The words so far; the last one is being typed."`
}

// Run implements the command: what the last word may become, one a line. It never fails, because nobody would see why.
func (x *complete) Run(c *call) error {
	words := x.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		words = []string{""}
	}
	for _, s := range c.candidates(c.model, words) {
		fmt.Fprintln(c.Stdout, s)
	}
	return nil
}

// candidates follows the words through the commands.
func (c *call) candidates(node *kong.Node, words []string) []string {
	last, args := words[len(words)-1], 0
	value := false
	for _, w := range words[:len(words)-1] {
		switch {
		case value:
			value = false
		case strings.HasPrefix(w, "-"):
			f := flagOf(node, w)
			value = f != nil && !f.IsBool() && !strings.Contains(w, "=")
		default:
			if next := child(node, w); next != nil {
				node = next
				continue
			}
			args++
		}
	}
	var out []string
	switch {
	case value:
		return nil
	case strings.HasPrefix(last, "-"):
		for _, group := range node.AllFlags(true) {
			for _, f := range group {
				out = append(out, "--"+f.Name)
			}
		}
	case len(node.Children) > 0:
		for _, n := range node.Children {
			if !n.Hidden {
				out = append(out, n.Name)
			}
		}
	case args < len(node.Positional):
		out = c.names(node, node.Positional[args])
	}
	return begins(out, last)
}

func begins(in []string, with string) []string {
	out := []string{}
	for _, s := range in {
		if strings.HasPrefix(s, with) {
			out = append(out, s)
		}
	}
	sort.Strings(out)
	return out
}

func child(node *kong.Node, name string) *kong.Node {
	for _, n := range node.Children {
		if n.Name == name {
			return n
		}
	}
	return nil
}

func flagOf(node *kong.Node, word string) *kong.Flag {
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	for _, group := range node.AllFlags(false) {
		for _, f := range group {
			if f.Name == name || f.Short != 0 && string(f.Short) == name {
				return f
			}
		}
	}
	return nil
}

// names are the objects that an argument may name, as its help says.
func (c *call) names(node *kong.Node, arg *kong.Positional) []string {
	ctx, cancel := context.WithTimeout(c.ctx, completeTimeout)
	defer cancel()
	out := []string{}
	switch {
	case strings.HasPrefix(arg.Help, "Name of the machine.") && node.Parent != nil:
		if p, err := c.client.Page(ctx, api.Query{Limit: maxNames}); err == nil {
			for _, r := range p.Rows {
				out = append(out, r.Name)
			}
		}
	case strings.HasPrefix(arg.Help, "Name of the image."):
		if all, err := c.client.Images(ctx); err == nil {
			for _, i := range all {
				out = append(out, i.Name)
			}
		}
	case len(arg.EnumSlice()) > 1:
		out = arg.EnumSlice()
	}
	return out
}

// remote is how an appliance on another host is called.
type remote struct {
	Remote    string `placeholder:"https://HOST" help:"Call the appliance on another host instead, with a token."`
	TokenFile string `placeholder:"FILE" help:"File that holds the token for --remote; - is standard input."`
	Pin       string `placeholder:"SHA256" help:"SHA-256 of the appliance's certificate, as serve prints it; without it the system's authorities are trusted."`
}

func (r remote) client(socket string, stdin io.Reader) (*api.Client, error) {
	if r.Remote == "" {
		return api.NewClient(socket), nil
	}
	token, err := readPassword(r.TokenFile, stdin)
	if err != nil {
		return nil, fault.New(fault.Usage, "call the appliance", r.Remote, fmt.Errorf("token: %w", err), "put the token alone into a file and name it with --token-file")
	}
	return api.NewRemote(r.Remote, token, r.Pin)
}
