package console

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
)

func TestActive(t *testing.T) {
	got := Active("tty0 ttyS0 ../evil netcon0\n")
	if want := []string{"tty0", "ttyS0"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no carrier") }

func TestSayGoesToEveryConsole(t *testing.T) {
	var a, b bytes.Buffer
	New(&a, broken{}, &b).Say("disk %s\n\x1b[31mred é", "FL-1")
	if want := "firstlight: disk FL-1 ?[31mred ?\n"; a.String() != want || b.String() != want {
		t.Errorf("got %q and %q, want %q", a.String(), b.String(), want)
	}
}

func TestLineIsBounded(t *testing.T) {
	got := Line(strings.Repeat("x", 5000))
	if len(got) != MaxLine || !strings.HasSuffix(got, "...\n") {
		t.Errorf("got %d bytes ending in %q", len(got), got[len(got)-5:])
	}
}

func TestOpenWithoutConsoles(t *testing.T) {
	Open(fstest.MapFS{}, t.TempDir()).Say("nobody hears this")
}
