package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"firstlight/appliance/internal/cli"
)

// openTerminal returns both ends of one: what a person types, and what a program reads.
func openTerminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return person, program
}

// APP-04: what a person at a terminal typed the number of disks for is the machine as he read of it: the order names its version, so
// that other disks, named meanwhile, are not wiped.
func TestAPP04OrdersNameWhatWasRead(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "fl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var mu sync.Mutex
	orders := map[string]map[string]any{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/machines/m1", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"name":"m1","version":"as-read","workflow":{"id":"wf-1","image":"demo","state":"failed"}}`)
	})
	mux.HandleFunc("POST /v1/machines/m1/{verb}", func(w http.ResponseWriter, r *http.Request) {
		var in map[string]any
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		orders[r.PathValue("verb")] = in
		io.WriteString(w, `{"name":"m1","machine":"m1","disks":[{"serial":"DISK0001"}]}`)
	})
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: mux}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	for verb, args := range map[string][]string{"provision": {"provision", "m1", "--image", "demo"}, "retry": {"retry", "m1"}} {
		person, program := openTerminal(t)
		io.WriteString(person, "1\n")
		var out, says bytes.Buffer
		if err := cli.Run(t.Context(), cli.Program{Args: args, Stdin: program, Stdout: &out, Stderr: &says, Socket: socket}); err != nil {
			t.Fatalf("%s: %v\n%s", verb, err, says.String())
		}
		if !strings.Contains(says.String(), "DISK0001") {
			t.Errorf("%s: nobody was told which disk: %s", verb, says.String())
		}
		for _, sent := range []string{"preview", verb} {
			if got := orders[sent]["version"]; got != "as-read" {
				t.Errorf("%s: %s names version %v, want the one that was read", verb, sent, got)
			}
		}
		if got := orders[verb]["disks"]; got != 1.0 {
			t.Errorf("%s: got %v disks", verb, got)
		}
	}
}
