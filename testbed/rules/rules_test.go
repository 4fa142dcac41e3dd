package rules

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root is the module's folder as seen from this package's.
const root = "../.."

// source is one Go file of the tree.
type source struct {
	path string // below root
	pkg  string // folder below root
	file *ast.File
	kind Kind
}

// tree parses every Go file as far as imports and comments before them.
func tree(t *testing.T) []source {
	t.Helper()
	var out []source
	fset := token.NewFileSet()
	walk(t, func(name string) {
		if !strings.HasSuffix(name, ".go") {
			return
		}
		f, err := parser.ParseFile(fset, filepath.Join(root, name), nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		s := source{path: name, pkg: path.Dir(name), file: f}
		switch {
		case strings.HasSuffix(f.Name.Name, "_test"):
			s.kind = ExternalTest
		case strings.HasSuffix(name, "_test.go"):
			s.kind = InternalTest
		}
		out = append(out, s)
	})
	if len(out) == 0 {
		t.Fatal("no Go file found")
	}
	return out
}

// walk calls f with every file that a person may have written.
func walk(t *testing.T, f func(name string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		skip := rel == "bin" || rel == "shared" || d.Name() == "node_modules" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && rel != "." && rel != ".ci"
		switch {
		case d.IsDir() && skip:
			return fs.SkipDir
		case d.Type().IsRegular() && !strings.HasPrefix(d.Name(), "."):
			f(rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestImportTable(t *testing.T) {
	t.Parallel()
	for _, s := range tree(t) {
		for _, i := range s.file.Imports {
			to, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Errorf("%s: %v", s.path, err)
				continue
			}
			if err := Import(s.pkg, to, s.kind); err != nil {
				t.Errorf("%s: %v", s.path, err)
			}
		}
	}
}

func TestImportTableHoldsWhatItIsFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to string
		kind     Kind
		ok       bool
	}{
		{"gateway-client/ident", "firstlight/gateway-client/proto/bettercompute/common/v1", Production, true},
		{"gateway-client/ident", "firstlight/gateway-client/envelope", Production, false},
		{"gateway-client/session", "firstlight/gateway-client/link", Production, true},
		{"gateway-client/session", "firstlight/bmc", Production, false},
		{"bmc/redfish", "firstlight/bmc", Production, true},
		{"bmc/redfish", "firstlight/gateway-client/ident", Production, false},
		{"bmc/redfish", "firstlight/testbed/bmcsim", InternalTest, false},
		{"bmc/redfish", "firstlight/testbed/bmcsim", ExternalTest, true},
		{"ipxe", "firstlight/gateway-client/ident", Production, false},
		{"imagebuild/manifest", "firstlight/gateway-client/envelope", Production, true},
		{"imagebuild/manifest", "firstlight/gateway-client/link", Production, false},
		{"site", "firstlight/ramdisk", Production, false},
		{"site/internal/lease", "firstlight/ipxe", Production, true},
		{"ramdisk", "firstlight/site", Production, false},
		{"ramdisk/internal/deploy", "firstlight/imagebuild/manifest", Production, true},
		{"ramdisk", "firstlight/appliance", Production, false},
		{"appliance/internal/api", "firstlight/site", Production, true},
		{"appliance", "firstlight/testbed/peer", Production, false},
		{"appliance", "firstlight/testbed/peer", ExternalTest, false},
		{"testbed/scenario", "firstlight/gateway-client/session", Production, true},
		{"appliance", "testing", Production, false},
		{"appliance", "testing", InternalTest, true},
		{"bmc/bmctest", "testing", Production, true},
		{"elsewhere", "firstlight/bmc", Production, false},
		{"sitemap", "firstlight/site", Production, false},
	} {
		if err := Import(c.from, c.to, c.kind); (err == nil) != c.ok {
			t.Errorf("%s imports %s (kind %d): %v, want allowed %v", c.from, c.to, c.kind, err, c.ok)
		}
	}
}

// Ranks go down only: a part may import what has a lower rank, or its own.
func TestTableGoesDown(t *testing.T) {
	t.Parallel()
	for _, p := range Table {
		for _, m := range p.May {
			q, ok := partOf(m)
			if !ok || q.Rank > p.Rank || q.Rank == p.Rank && p.Rank > 0 {
				t.Errorf("%s (rank %d) may import %s (rank %d): ranks go down", p.Prefix, p.Rank, m, q.Rank)
			}
		}
	}
}

func TestEveryPackageHasOnePackageComment(t *testing.T) {
	t.Parallel()
	docs := map[string][]string{}
	production := map[string]bool{}
	for _, s := range tree(t) {
		if s.kind != Production || ast.IsGenerated(s.file) {
			continue
		}
		production[s.pkg] = true
		if s.file.Doc == nil || strings.TrimSpace(s.file.Doc.Text()) == "" {
			continue
		}
		docs[s.pkg] = append(docs[s.pkg], path.Base(s.path))
		if want := beginnings(s); !slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(s.file.Doc.Text(), w) }) {
			t.Errorf("%s: package comment begins %.40q, want one of %q", s.path, s.file.Doc.Text(), want)
		}
	}
	for pkg := range production {
		if n := len(docs[pkg]); n != 1 {
			t.Errorf("%s has %d package comments %v, want one: what it is for, what it is not, who may import it", pkg, n, docs[pkg])
		}
	}
}

// beginnings are how a package's or a command's comment may begin (go.dev/doc/comment).
func beginnings(s source) []string {
	if s.file.Name.Name != "main" {
		return []string{"Package " + s.file.Name.Name + " "}
	}
	name := path.Base(s.pkg)
	return []string{"Command " + name + " ", strings.ToUpper(name[:1]) + name[1:] + " "}
}

// written lists the endings of files that people write by hand and read.
var written = []string{".go", ".md", ".sh", ".proto", ".js", ".css", ".html", ".toml", ".yaml", ".yml", "Makefile", "run"}

func TestNoFileIsTooLong(t *testing.T) {
	t.Parallel()
	walk(t, func(name string) {
		if !slices.ContainsFunc(written, func(end string) bool { return strings.HasSuffix(name, end) }) {
			return
		}
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			return
		}
		if generated(b) {
			return
		}
		if n := bytes.Count(b, []byte("\n")); n > MaxLines {
			t.Errorf("%s has %d lines, at most %d: split it by meaning", name, n, MaxLines)
		}
	})
}

// generated says whether the file says so in its first lines, as Go's tools have it.
func generated(b []byte) bool {
	head := string(b[:min(len(b), 500)])
	return strings.Contains(head, "// Code generated ") && strings.Contains(head, "DO NOT EDIT")
}

func TestTopLevelHoldsWhatItMay(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(TopLevel, e.Name()) {
			t.Errorf("%s lies at the top: everything but the eight folders and what tools expect there lives in the folder it belongs to", e.Name())
		}
	}
}
