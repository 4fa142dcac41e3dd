package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// What is found by MAC and by token is what a look at every lease finds, whatever happened before, and in every copy of the book.
func TestSearchFindsWhatEveryLeaseSays(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	mac := func() string { return fmt.Sprintf("52:54:00:00:00:%02x", r.IntN(12)) }
	book := Book{policy: Policy{Generation: 1, Discovery: true}, leases: map[string]Lease{}}
	now, made := noon, 0
	fresh := func() (string, string) { made++; return fmt.Sprint("l", made), fmt.Sprint("t", made) }
	var past []Book
	for range 2000 {
		now = now.Add(time.Duration(r.IntN(120)) * time.Second)
		book.owned = false
		past = append(past[max(0, len(past)-3):], book)
		switch id, token := fresh(); r.IntN(5) {
		case 0:
			book.Prepare(now, Lease{ID: id, NodeID: "n" + id, MACs: []string{mac(), mac()}, Expires: now.Add(time.Hour)}, token)
		case 1:
			book.Boot(now, Boot{MAC: mac(), Firmware: true}, fresh)
		case 2:
			if l, ok := book.ByMAC(now, mac()); ok {
				book.Close(now, l.ID, Consumed)
			}
		case 3:
			book.own()
			book.forget(now)
		case 4:
			book.remove("none")
		}
		for _, b := range append(past, book) {
			finds(t, b, now)
		}
	}
	if made < 1000 || len(book.leases) == 0 {
		t.Fatalf("got %d leases of %d that were made: the search was not put to a test", len(book.leases), made)
	}
}

// finds holds a book's searches against its leases.
func finds(t *testing.T, b Book, now time.Time) {
	t.Helper()
	byMAC := map[string]int{}
	for _, l := range b.leases {
		if got, ok := b.ByToken(now, l.Token); !ok || got.ID != l.ID {
			t.Fatalf("token of lease %s: got lease %q, %v", l.ID, got.ID, ok)
		}
		for _, mac := range l.MACs {
			byMAC[mac]++
			got, ok := b.ByMAC(now, mac)
			if !ok || l.at(now).State.Live() && !got.State.Live() || l.at(now).State.Live() == got.State.Live() && l.Opened.After(got.Opened) {
				t.Fatalf("MAC of lease %s: got lease %q, %v, which is neither live nor newer", l.ID, got.ID, ok)
			}
		}
	}
	if len(b.byMAC) != len(byMAC) || len(b.byToken) != len(b.leases) {
		t.Fatalf("%d MACs and %d tokens are found, the leases have %d and %d", len(b.byMAC), len(b.byToken), len(byMAC), len(b.leases))
	}
}
