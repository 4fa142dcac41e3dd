// Package rules holds the tree's own rules as data: who may import whom, and what a folder must have. Its tests check the tree and
// print the reason with each breach.
//
// It is for its own tests; nothing imports it.
package rules

import (
	"fmt"
	"path"
	"strings"
)

// Module is the path of our module.
const Module = "firstlight"

// Part is a row of the import table: a stretch of the tree, its rank and the reason.
type Part struct {
	// Prefix of import paths below Module; "a" covers a and a/b, not ab. The longest one that fits decides.
	Prefix string
	Rank   int
	// May lists further prefixes that the part may import. A part may always import itself.
	May []string
	// Why is said when the row is broken.
	Why string
}

// Table is design.md's "who may import whom".
var Table = []Part{
	{Prefix: "gateway-client/proto", Rank: 0, Why: "generated messages stand on nothing of ours"},
	{Prefix: "gateway-client/ident", Rank: 0, May: []string{"gateway-client/proto"}, Why: "typed names stand on the generated messages alone: everybody uses them"},
	{Prefix: "gateway-client/envelope", Rank: 0, May: []string{"gateway-client/proto", "gateway-client/ident"},
		Why: "signed envelopes are used by every rank, so they stand on names and messages alone"},
	{Prefix: "gateway-client", Rank: 1, May: rank0, Why: "the wire knows no product: rank 1 imports rank 0 and itself"},
	{Prefix: "bmc", Rank: 1, Why: "bmc imports nothing of ours: it is a library for management controllers that knows no product"},
	{Prefix: "ipxe", Rank: 1, Why: "ipxe imports nothing of ours: scripts are values, whoever makes them"},
	{Prefix: "imagebuild", Rank: 1, May: rank0, Why: "image making knows neither sites nor machines: rank 1 imports rank 0 and itself, never another part of rank 1"},
	{Prefix: "site", Rank: 2, May: below2, Why: "the site agent stands on the wire and the libraries; it never knows the machine agent or the appliance"},
	{Prefix: "ramdisk", Rank: 2, May: below2, Why: "the machine agent stands on the wire and the libraries; it never knows the site agent or the appliance"},
	{Prefix: "appliance", Rank: 3, May: append([]string{"site", "ramdisk"}, below2...), Why: "the appliance is the composition root: it imports rank 2 and below"},
	{Prefix: "testbed", Rank: 4, May: append([]string{"site", "ramdisk", "appliance"}, below2...), Why: "the testbed may import everything public"},
}

var (
	rank0  = []string{"gateway-client/proto", "gateway-client/ident", "gateway-client/envelope"}
	below2 = []string{"gateway-client", "bmc", "ipxe", "imagebuild"}
)

// Kind of a file that imports.
type Kind int

// The kinds of files. An external test (package x_test) may use the testbed's leaf fakes and what any rank below the testbed
// offers; a test inside its package is bound as the package is.
const (
	Production Kind = iota
	InternalTest
	ExternalTest
)

// leafFakes are the packages of the testbed that external tests of others may import.
var leafFakes = []string{"testbed/bmcsim", "testbed/memnet", "testbed/fixtures", "testbed/fault", "testbed/netlab"}

// Import returns an error with the reason if package from (a path below Module) must not import to (a whole import path).
func Import(from, to string, kind Kind) error {
	rest, ours := strings.CutPrefix(to, Module+"/")
	if !ours {
		if to == "testing" && kind == Production && !forTests(from) {
			return fmt.Errorf("%s imports testing: production code does not carry the test framework; twins live in packages whose name ends in test", from)
		}
		return nil
	}
	p, ok := partOf(from)
	if !ok {
		return fmt.Errorf("%s is in no part of the import table: the top level holds the folders that it names", from)
	}
	if covers(p.Prefix, rest) || anyCovers(p.May, rest) {
		return nil
	}
	if kind == ExternalTest && anyCovers(leafFakes, rest) {
		return nil
	}
	return fmt.Errorf("%s must not import %s: %s", from, rest, p.Why)
}

// forTests says whether the package exists for tests: it then may import testing.
func forTests(pkg string) bool {
	return covers("testbed", pkg) || strings.HasSuffix(path.Base(pkg), "test")
}

// partOf returns the row with the longest prefix that covers the package.
func partOf(pkg string) (Part, bool) {
	var best Part
	found := false
	for _, p := range Table {
		if covers(p.Prefix, pkg) && (!found || len(p.Prefix) > len(best.Prefix)) {
			best, found = p, true
		}
	}
	return best, found
}

func covers(prefix, pkg string) bool { return pkg == prefix || strings.HasPrefix(pkg, prefix+"/") }

func anyCovers(prefixes []string, pkg string) bool {
	for _, p := range prefixes {
		if covers(p, pkg) {
			return true
		}
	}
	return false
}

// MaxLines bounds a file that a person wrote.
const MaxLines = 700

// TopLevel lists what may lie at the top, beside names that begin with a dot. bin holds what is made; shared is the folder of
// specifications where a checkout has one.
var TopLevel = []string{"gateway-client", "bmc", "ipxe", "site", "ramdisk", "imagebuild", "appliance", "testbed",
	"go.mod", "go.sum", "Makefile", "README.md", "LICENSE", "bin", "shared"}
