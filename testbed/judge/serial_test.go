package judge

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestOSLine(t *testing.T) {
	t.Parallel()
	serial := "Booting\r\n[   3.1] x\r\nFIRSTLIGHT-OS nonce=abc123 disk-serial=FLT01 boot-id=0f0e7c1a-1111-4222-8333-444455556666 uptime=4.21\r\n"
	got, err := ParseOS(OSLine.FindStringSubmatch(serial))
	if err != nil {
		t.Fatal(err)
	}
	if want := (OS{"abc123", "FLT01", "0f0e7c1a-1111-4222-8333-444455556666", "4.21"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := ParseOS(OSLine.FindStringSubmatch("FIRSTLIGHT-OS nonce= disk-serial=x")); err == nil {
		t.Error("a line without a nonce is taken")
	}
}

// SEC-04 as the judge sees it: the machine says the clock that it found, and what it made of it.
func TestSEC04_ClockLine(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	line := func(found, set string) string {
		return "firstlight: clock found " + found + ", set to " + set + " from the site's assertion\r\n"
	}
	for name, c := range map[string]struct {
		serial string
		year   int
		ok     bool
	}{
		"past":        {line("2000-01-01T00:00:12Z", "2026-05-01T11:55:00Z"), 2000, true},
		"future":      {line("2090-01-01T00:00:12Z", "2026-05-01T11:55:00Z"), 2090, true},
		"any":         {line("2026-05-01T11:54:58Z", "2026-05-01T11:55:00Z"), 0, true},
		"not set":     {line("2000-01-01T00:00:12Z", "2000-01-01T00:00:12Z"), 2000, false},
		"wrong clock": {line("2026-05-01T11:54:58Z", "2026-05-01T11:55:00Z"), 2000, false},
		"silent":      {"firstlight: network\n", 0, false},
		"no times":    {"firstlight: clock found -, set to -\n", 0, false},
	} {
		got := Clock(c.serial, c.year, now, 20*time.Minute)
		if got.OK != c.ok {
			t.Errorf("%s: ok = %v (%s), want %v", name, got.OK, got.Detail, c.ok)
		}
	}
}

func TestLastWords(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "serial.log")
	if err := os.WriteFile(path, []byte("noise\r\nfirstlight: one\r\n\x1b[2Jnoise firstlight: two\x1b[0m\r\nnoise\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	serial, err := ReadSerial(path)
	if err != nil {
		t.Fatal(err)
	}
	got := LastWords(serial, 1)
	if len(got) != 1 || got[0] != "firstlight: two[0m" {
		t.Errorf("got %q, want the last line without control characters", got)
	}
}

func FuzzOSLine(f *testing.F) {
	f.Add("FIRSTLIGHT-OS nonce=a disk-serial=b boot-id=0f0e7c1a-1111-4222-8333-444455556666 uptime=1")
	f.Add("firstlight: clock found 2000-01-01T00:00:12Z, set to 2026-01-01T00:00:00Z")
	f.Fuzz(func(t *testing.T, s string) {
		if m := OSLine.FindStringSubmatch(s); m != nil {
			if _, err := ParseOS(m); err != nil {
				t.Errorf("a matching line is refused: %v", err)
			}
		}
		Clock(s, 2000, time.Unix(0, 0), time.Hour)
		LastWords(s, 3)
	})
}
