package main

import (
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"machine-agent": main}) }

func TestCommand(t *testing.T) { testscript.Run(t, testscript.Params{Dir: "testdata"}) }
