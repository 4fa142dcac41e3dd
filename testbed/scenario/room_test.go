package scenario

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

func TestConsoleKeepsTheOneTimeCodeOutOfTheLog(t *testing.T) {
	t.Parallel()
	said := "level=INFO msg=starts\nfirstlight: page http://127.0.0.1:8080/\nfirstlight: one-time code AB-12 makes the first administrator\nfirstlight: ready\n"
	// What the program writes comes in pieces of any size.
	for _, size := range []int{1, 7, len(said)} {
		var log bytes.Buffer
		var told []string
		c := &console{log: &log, told: func(line string) { told = append(told, line) }}
		for piece := range slices.Chunk([]byte(said), size) {
			if n, err := c.Write(piece); err != nil || n != len(piece) {
				t.Fatalf("got %d, %v, want %d", n, err, len(piece))
			}
		}
		want := []string{"firstlight: page http://127.0.0.1:8080/", "firstlight: one-time code AB-12 makes the first administrator", "firstlight: ready"}
		if !slices.Equal(told, want) {
			t.Errorf("pieces of %d: told %q, want %q", size, told, want)
		}
		if text := log.String(); strings.Contains(text, "AB-12") || !strings.Contains(text, "firstlight: ready\n") || !strings.Contains(text, "msg=starts\n") {
			t.Errorf("pieces of %d: log %q, want all but the code", size, text)
		}
	}
}

func TestConsoleBoundsALine(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	c := &console{log: &log, told: func(string) {}}
	if _, err := fmt.Fprint(c, strings.Repeat("x", 3*maxConsoleLine)); err != nil {
		t.Fatal(err)
	}
	if len(c.rest) >= maxConsoleLine || log.Len()+len(c.rest) != 3*maxConsoleLine {
		t.Errorf("%d bytes held and %d logged of %d", len(c.rest), log.Len(), 3*maxConsoleLine)
	}
}

func TestRoomDeclares(t *testing.T) {
	t.Parallel()
	c := RoomConfig{Dir: "/room", Page: "127.0.0.1:8080", Told: func(string) {}, Machines: []RoomMachine{
		{Name: "r1u01", Firmware: UEFI, Disk: "D1"}, {Name: "r1u02", Firmware: BIOS, Disk: "D2", Record: "D9"}}}
	o, err := NewRoom(c)
	if err != nil {
		t.Fatal(err)
	}
	if m := o.run.machines[1]; m.box.says == nil || m.box.says(o.run) != "D9" || m.box.disks[0].serial != "D2" || o.run.machines[0].box.says != nil {
		t.Errorf("got %+v, want a record that names another disk than the machine has", m.box)
	}
	var text bytes.Buffer
	if err := toml.NewEncoder(&text).Encode(o.run.newServeConfig()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"[web]", `listen = "127.0.0.1:8080"`, "insecure_loopback = true", "discovery = true"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("got %s, want %s in it", text.String(), want)
		}
	}
	text.Reset()
	r := &run{}
	if err := toml.NewEncoder(&text).Encode(r.newServeConfig()); err != nil || strings.Contains(text.String(), "web") {
		t.Errorf("got %s, %v, want no page where a run asks for none", text.String(), err)
	}
	for name, bad := range map[string]RoomConfig{"no machine": {Dir: "/room", Told: c.Told}, "no folder": {Machines: c.Machines, Told: c.Told}, "nobody": {Machines: c.Machines, Dir: "/room"}} {
		if _, err := NewRoom(bad); err == nil {
			t.Errorf("%s: want an error", name)
		}
	}
	if err := o.Close(); err != nil {
		t.Errorf("close of what was never started: %v", err)
	}
}
