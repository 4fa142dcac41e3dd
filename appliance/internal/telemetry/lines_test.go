package telemetry

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// Every line that the control plane logs about a machine or its workflow names both, so that it leads to the trace; one about an agent
// gets them from the agent's node.
func TestLogLinesNameMachineAndWorkflow(t *testing.T) {
	t.Parallel()
	lines := 0
	for _, dir := range []string{"../executor", "../control"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: got %v, %v", dir, files, err)
		}
		for _, path := range files {
			if ok, _ := filepath.Match("*_test.go", filepath.Base(path)); ok {
				continue
			}
			set := token.NewFileSet()
			f, err := parser.ParseFile(set, path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || !logs(call) {
					return true
				}
				lines++
				var keys []string
				for _, a := range call.Args {
					if l, ok := a.(*ast.BasicLit); ok && l.Kind == token.STRING {
						s, _ := strconv.Unquote(l.Value)
						keys = append(keys, s)
					}
				}
				machine, workflow := slices.Contains(keys, KeyMachine), slices.Contains(keys, KeyWorkflow)
				if machine != workflow || slices.Contains(keys[1:], "node") && !debug(call) {
					t.Errorf("%s: %q names %v: want machine and workflow together", set.Position(call.Pos()), keys[0], keys[1:])
				}
				return true
			})
		}
	}
	if lines < 15 {
		t.Errorf("found %d lines: this test does not see them any more", lines)
	}
}

// debug says whether a line is for us alone: looking up whose agent it is would cost more than the line is worth.
func debug(call *ast.CallExpr) bool { return call.Fun.(*ast.SelectorExpr).Sel.Name == "Debug" }

// logs says whether a call is X.Info, X.Warn and so on with a text first.
func logs(call *ast.CallExpr) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, sel.Sel.Name) || len(call.Args) == 0 {
		return false
	}
	l, ok := call.Args[0].(*ast.BasicLit)
	return ok && l.Kind == token.STRING
}
