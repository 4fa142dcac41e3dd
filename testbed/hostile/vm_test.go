package hostile

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"firstlight/testbed/fixtures"
	"firstlight/testbed/judge"
	"firstlight/testbed/netlab"
)

// TestVM is the scenario hostile-gateway by itself: the real agent as process 1 of a virtual machine.
func TestVM(t *testing.T) {
	if os.Getenv("FIRSTLIGHT_VM_TEST") == "" {
		t.Skip("takes minutes under software emulation: set FIRSTLIGHT_VM_TEST=1 to run it (as root, after make build)")
	}
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	disk, err := (&fixtures.Cache{Bin: bin}).RAMDisk(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	lab, err := netlab.New(t.Context(), netlab.Config{Name: "hostile", Dir: t.TempDir(), Machines: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	checks := 0
	err = Run(t.Context(), Config{Dir: dir, Lab: lab, RAMDisk: disk, Port: 8443, Log: slog.New(slog.DiscardHandler), Say: t.Logf,
		Check: func(cs ...judge.Check) {
			for _, c := range cs {
				checks++
				t.Logf("%v %s: %s", c.OK, c.Name, c.Detail)
				if !c.OK {
					t.Errorf("%s: got %s", c.Name, c.Detail)
				}
			}
		}})
	if err != nil {
		serial, _ := os.ReadFile(filepath.Join(dir, "serial.log"))
		t.Fatalf("%v; serial line:\n%s", err, serial)
	}
	if want := len(trials()) + 2; checks != want {
		t.Errorf("got %d checks, want %d", checks, want)
	}
}
