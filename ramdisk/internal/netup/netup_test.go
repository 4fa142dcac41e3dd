package netup

import (
	"context"
	"errors"
	"testing"

	"firstlight/ramdisk/internal/inventory"
)

func TestBootMAC(t *testing.T) {
	for in, want := range map[string]string{
		"console=ttyS0 BOOTIF=01-52-54-00-AA-00-01 quiet": "52:54:00:aa:00:01", "BOOTIF=52:54:00:aa:00:01": "52:54:00:aa:00:01",
		"BOOTIF=52-54-00-aa-00-01": "52:54:00:aa:00:01", "quiet": "", "BOOTIF=": "", "BOOTIF=zz": "",
	} {
		if got := BootMAC(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestOrder(t *testing.T) {
	a, b := inventory.NIC{Name: "eth0", MAC: "52:54:00:aa:00:01"}, inventory.NIC{Name: "eth1", MAC: "52:54:00:aa:00:02"}
	if got := Order([]inventory.NIC{a, b}, b.MAC); len(got) != 2 || got[0][0] != b || len(got[1]) != 2 {
		t.Errorf("boot card known: got %v", got)
	}
	if got := Order([]inventory.NIC{a, b}, "52:54:00:aa:00:99"); len(got) != 1 || len(got[0]) != 2 {
		t.Errorf("boot card unknown: got %v", got)
	}
	if got := Order(nil, a.MAC); got != nil {
		t.Errorf("no card: got %v", got)
	}
	if _, err := Up(context.Background(), nil, "", t.Logf); !errors.Is(err, ErrNoCard) {
		t.Errorf("got %v, want ErrNoCard", err)
	}
}

func FuzzBootMAC(f *testing.F) {
	f.Add("BOOTIF=01-52-54-00-aa-00-01")
	f.Fuzz(func(t *testing.T, s string) { BootMAC(s) })
}
