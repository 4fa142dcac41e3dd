package lease

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the transcripts' answers anew")

// TestTranscripts plays each file of testdata against a Book. A line "+time command …" is a step, the lines "= …" after it are
// its answer and the leases as they then stand; everything else is prose. Time counts from the transcript's beginning; a lease's
// token is "t-" and its id, and the nth discovery lease is "dn".
func TestTranscripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(want))
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got != string(want) && !*update {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if again := play(t, string(want)); again != got {
				t.Error("played twice: got two answers, want one")
			}
		})
	}
}

var noon = time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)

type player struct {
	t    *testing.T
	book Book
	now  time.Time
	next int
}

func play(t *testing.T, text string) string {
	t.Helper()
	p := &player{t: t, book: Book{leases: map[string]Lease{}}}
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "=") {
			continue
		}
		out.WriteString(line)
		if !strings.HasPrefix(line, "+") {
			continue
		}
		words := strings.Fields(line)
		d, err := time.ParseDuration(words[0][1:])
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		p.now = noon.Add(d)
		// A step must not reach into what an earlier copy of the book holds.
		before := p.book
		before.owned, p.book.owned = false, false
		shown := states(before, p.now)
		fmt.Fprintf(&out, "= %s\n", p.step(words[1], words[2:]))
		if states(before, p.now) != shown {
			t.Errorf("%q: changed the book as it was before", line)
		}
		if s := states(p.book, p.now); s != "" {
			fmt.Fprintf(&out, "= leases: %s\n", s)
		}
	}
	return out.String()
}

func states(b Book, now time.Time) string {
	var all []string
	for id, l := range b.leases {
		all = append(all, id+" "+string(l.at(now).State))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (p *player) step(command string, w []string) string {
	b := &p.book
	switch command {
	case "policy":
		return said(b.SetPolicy(policy(w)), "taken")
	case "prepare": // id node macs life
		life, err := time.ParseDuration(w[3])
		if err != nil {
			p.t.Fatal(err)
		}
		l := Lease{ID: w[0], NodeID: w[1], WorkflowID: "wf-" + w[0], Machine: w[1], MACs: strings.Split(w[2], ","), Expires: noon.Add(life)}
		return said(b.Prepare(p.now, l, "t-"+w[0]), "open")
	case "close":
		b.Close(p.now, w[0], State(w[1]))
		return "done"
	case "firmware", "ipxe":
		p.next++
		id := fmt.Sprintf("d%d", p.next)
		q := Boot{MAC: w[0], IPXE: command == "ipxe", Firmware: !slices.Contains(w, "nofile")}
		return p.answer(b.Boot(p.now, q, func() (string, string) { return id, "t-" + id }))
	case "transferred":
		b.Transferred(p.now, "t-"+w[0])
		return "noted"
	case "script", "files":
		do := b.Script
		if command == "files" {
			do = b.Files
		}
		l, ok, err := do(p.now, "t-"+w[0], netip.MustParseAddr(w[1]))
		if !ok {
			return "no such boot"
		}
		return said(err, "served to "+whose(l))
	}
	p.t.Fatalf("unknown command %q", command)
	return ""
}

func (p *player) answer(a Answer) string {
	text := string(a.Verdict)
	switch {
	case a.Lease.ID != "":
		text += ", boot " + a.Lease.ID + " of " + whose(a.Lease)
	case a.Known.NodeID != "":
		text += ", node " + a.Known.NodeID
	}
	if a.Reason != "" {
		text += ": " + a.Reason
	}
	if a.Next != "" {
		text += "; next: " + a.Next
	}
	return text
}

func whose(l Lease) string {
	if l.Discovery {
		if l.NodeID != "" || l.WorkflowID != "" {
			return "A DISCOVERY LEASE WITH AN OWNER"
		}
		return l.Machine
	}
	return "node " + l.NodeID
}

func policy(w []string) Policy {
	p := Policy{Known: map[string]Known{}}
	fmt.Sscan(w[0], &p.Generation)
	for _, o := range w[1:] {
		switch name, mac, _ := strings.Cut(o, "="); o {
		case "discovery":
			p.Discovery = true
		case "replace-rom":
			p.ReplaceROM = true
		default:
			p.Known[mac] = Known{NodeID: name, Machine: name}
		}
	}
	return p
}

func said(err error, ok string) string {
	if err != nil {
		return "error: " + err.Error()
	}
	return ok
}
