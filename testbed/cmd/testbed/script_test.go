package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"testbed": func() {
		err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
		if err != nil {
			fmt.Fprintln(os.Stderr, "testbed:", err)
			os.Exit(exitCode(err))
		}
	}})
}

func TestListSaysHowTheLastRunEnded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "provision.json"), []byte(`{"outcome":"active","wall_s":198.8}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "clock-past.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var text, asJSON strings.Builder
	if err := errors.Join(list(&text, dir, false), list(&asJSON, dir, true)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"provision              [active, 199 s]", "clock-past             [not run yet]"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("got %s, want it to hold %q", text.String(), want)
		}
	}
	if !strings.Contains(asJSON.String(), `"last":{"outcome":"active","wall_s":198.8}`) {
		t.Errorf("got %s, want the last run of provision", asJSON.String())
	}
}

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{Dir: "testdata/script"})
}
