package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"firstlight/imagebuild/internal/kmodtest"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"imagebuild": main}) }

// TestScripts runs the command as a person does. "inputs" lays out a kernel package in kernel/, a static program as static and
// a dynamic one as dynamic. Set UPDATE_SCRIPTS to have expected output written anew.
func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		UpdateScripts:       os.Getenv("UPDATE_SCRIPTS") != "",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"inputs": func(ts *testscript.TestScript, _ bool, _ []string) {
				ts.Check(os.CopyFS(ts.MkAbs("kernel"), kmodtest.Full()))
				ts.Check(os.WriteFile(ts.MkAbs("static"), kmodtest.Program(""), 0o755))
				ts.Check(os.WriteFile(ts.MkAbs("dynamic"), kmodtest.Program("/lib64/ld-linux-x86-64.so.2"), 0o755))
			},
			// "later DIR" gives everything in it another time.
			"later": func(ts *testscript.TestScript, _ bool, args []string) {
				for _, a := range args {
					ts.Check(filepath.WalkDir(ts.MkAbs(a), func(p string, _ os.DirEntry, err error) error {
						if err != nil {
							return err
						}
						return os.Chtimes(p, time.Unix(1, 0), time.Unix(1, 0))
					}))
				}
			},
		},
	})
}
