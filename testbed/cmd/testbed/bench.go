package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"firstlight/testbed/bench"
)

// benchCommand is `testbed bench`.
type benchCommand struct {
	Targets  []string `arg:"" optional:"" help:"What to measure: P1, P2, P3, P14, page; all without a word."`
	Rounds   int      `default:"5" help:"How often ours and peer take turns, at least 3."`
	JSON     string   `name:"json" placeholder:"FILE" help:"Write the results here; bench.json beside this program without it, - is standard output."`
	Markdown bool     `help:"Measure nothing: print the results of the last run as a table for a document."`
}

func (c *benchCommand) run(ctx context.Context, bin string, stdout, stderr io.Writer) error {
	path := c.JSON
	if path == "" {
		path = filepath.Join(bin, "bench.json")
	}
	if c.Markdown {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("print the last results: %w (testbed bench measures)", err)
		}
		defer f.Close()
		results, err := bench.ReadJSON(f)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return bench.WriteMarkdown(stdout, results)
	}
	results, err := bench.Run(ctx, bench.Options{Bin: bin, Only: c.Targets, Rounds: c.Rounds, Out: stderr})
	if errors.Is(err, bench.ErrUsage) {
		return &exitError{exitUsage, err.Error()}
	}
	if len(results) == 0 {
		return err
	}
	var table, object bytes.Buffer
	err = errors.Join(err, bench.WriteTable(&table, results), bench.WriteJSON(&object, results))
	if path == "-" {
		_, werr := stdout.Write(object.Bytes())
		return errors.Join(err, werr)
	}
	_, werr := stdout.Write(table.Bytes())
	return errors.Join(err, werr, os.WriteFile(path, object.Bytes(), 0o644))
}
