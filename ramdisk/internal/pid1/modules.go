package pid1

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sort"
	"strings"
	"time"

	"github.com/u-root/u-root/pkg/kmodule"
)

// Bounds of loading modules.
const (
	// maxAliases bounds modules.alias.
	maxAliases = 1 << 16
	// settlePoll is how often devices are looked at again: a bus driver shows new devices, later, whose drivers show new ones.
	settlePoll = 250 * time.Millisecond
	// settleQuiet is how long nothing new must have been asked for.
	settleQuiet = 2 * time.Second
	// settleLimit ends the wait on a machine that never is quiet.
	settleLimit = 30 * time.Second
)

// always are modules that no device asks for by an alias: the checksums that drivers look up by name when the kernel cannot run
// modprobe for them, then the file systems of an EFI system partition. Missing ones are built in or not needed.
var always = []string{"crc32c_generic", "crct10dif_generic", "crc64_rocksoft_generic",
	"fat", "vfat", "nls_cp437", "nls_ascii", "nls_utf8", "nls_iso8859_1", "efivarfs"}

// Alias is one line of modules.alias.
type Alias struct{ Pattern, Module string }

// ParseAliases reads modules.alias: lines "alias PATTERN MODULE", comments, blank lines.
func ParseAliases(r io.Reader) ([]Alias, error) {
	var out []Alias
	s := bufio.NewScanner(r)
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) != 3 || f[0] != "alias" {
			continue
		}
		if len(out) == maxAliases {
			return nil, fmt.Errorf("modules.alias: more than %d lines", maxAliases)
		}
		out = append(out, Alias{f[1], f[2]})
	}
	return out, s.Err()
}

// Wanted returns the modules that the devices in sys (the content of /sys) ask for, sorted, each once.
func Wanted(sys fs.FS, aliases []Alias) []string {
	seen := map[string]bool{}
	fs.WalkDir(sys, "devices", func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() != "modalias" {
			return nil
		}
		b, err := fs.ReadFile(sys, p)
		if err != nil {
			return nil
		}
		name := strings.TrimSpace(string(b))
		for _, a := range aliases {
			if ok, _ := path.Match(a.Pattern, name); ok {
				seen[a.Module] = true
			}
		}
		return nil
	})
	var out []string
	for m := range seen {
		out = append(out, m)
	}
	sort.Strings(out)
	return out
}

// LoadModules loads what the devices ask for until nothing new is asked for, and the modules that none asks for. It returns the
// names that were loaded and what did not load; neither is a reason to stop.
func LoadModules(sys fs.FS, aliases []Alias) (loaded []string, problems []error) {
	done := map[string]bool{}
	prober, err := kmodule.NewProber(kmodule.ProbeOpts{})
	if err != nil {
		return nil, []error{fmt.Errorf("list kernel modules: %w", err)}
	}
	probe := func(name string, must bool) {
		if done[name] {
			return
		}
		done[name] = true
		if err := prober.Probe(name, ""); err == nil {
			loaded = append(loaded, name)
		} else if must {
			problems = append(problems, fmt.Errorf("load module %s: %w", name, err))
		}
	}
	for _, m := range always {
		probe(m, false)
	}
	for start, last := time.Now(), time.Now(); time.Since(start) < settleLimit && time.Since(last) < settleQuiet; {
		before := len(done)
		for _, m := range Wanted(sys, aliases) {
			probe(m, true)
		}
		if len(done) != before {
			last = time.Now()
		}
		time.Sleep(settlePoll)
	}
	return loaded, problems
}
