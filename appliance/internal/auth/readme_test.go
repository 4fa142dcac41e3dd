package auth

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The README shows the table that decides, and the bounds that hold.
func TestReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"| permission | viewer | technician | operator | admin |"}
	for _, p := range Permissions() {
		row := fmt.Sprintf("| `%s` |", p)
		for _, r := range Roles() {
			if r.Allows(p) {
				row += " yes |"
			} else {
				row += " – |"
			}
		}
		want = append(want, row)
	}
	limit := func(r rule) string { return fmt.Sprintf("%d, then one in %.0f s", r.burst, r.every.Seconds()) }
	want = append(want,
		fmt.Sprintf("| password | %d to %d bytes", MinPassword, MaxPassword),
		fmt.Sprintf("argon2id (%d MiB, %d passes)", DefaultCost.MemoryKiB>>10, DefaultCost.Passes),
		fmt.Sprintf("per name and address %d at once, then one in %.0f s", perPair.burst, perPair.every.Seconds()),
		"per address (IPv6: per /64) "+limit(perAddress),
		fmt.Sprintf("per name %d, then one a minute", perName.burst),
		fmt.Sprintf("ends after %.0f h without use, after %.0f days", IdleLife.Hours(), SessionLife.Hours()/24),
		fmt.Sprintf("%d a user", MaxSessions),
		fmt.Sprintf("2 years, %.0f days unless said", TokenLife.Hours()/24),
		fmt.Sprintf("| users, tokens, audit entries | %d, %d, %d,000 ", MaxUsers, MaxTokens, MaxAudit/1000),
	)
	for _, w := range want {
		if !strings.Contains(string(text), w) {
			t.Errorf("README.md of appliance does not say %q", w)
		}
	}
	if perName.every.Minutes() != 1 || MaxTokenLife.Hours() != 2*365*24 || MinTokenLife.Minutes() != 1 {
		t.Error("README.md of appliance says other bounds in words")
	}
}
