package lease

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"firstlight/gateway-client/ident"
	"firstlight/site/internal/statefile"
)

// maxFile bounds what is read back, in bytes.
const maxFile = 32 << 20

// Table is a Book with a clock and a file: every durable change is on the disk before the method that makes it returns. Its
// methods are the Book's; they may be called from any goroutine, and what they return is a copy.
type Table struct {
	path string
	now  func() time.Time

	mu   sync.Mutex
	book Book
}

// Load reads the leases from path, which need not exist yet. The policy is set by SetPolicy.
func Load(path string, now func() time.Time) (*Table, error) {
	t := &Table{path: path, now: now, book: Book{leases: map[string]Lease{}}}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil && info.Size() > maxFile {
		err = fmt.Errorf("%d bytes, the most is %d", info.Size(), maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	var all []Lease
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, fmt.Errorf("read leases %s: %w", path, err)
	}
	for _, l := range all {
		t.book.leases[l.ID] = l
	}
	return t, nil
}

// step takes one step of the book, and keeps it unless what must be on the disk cannot be written.
func (t *Table) step(do func(b *Book, now time.Time)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := t.book
	next.owned, next.durable = false, false
	do(&next, t.now())
	if next.durable {
		if err := t.store(next.leases); err != nil {
			return err
		}
	}
	t.book = next
	return nil
}

func (t *Table) store(leases map[string]Lease) error {
	all := make([]Lease, 0, len(leases))
	for _, l := range leases {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b Lease) int {
		return cmp.Or(a.Opened.Compare(b.Opened), strings.Compare(a.ID, b.ID))
	})
	b, err := json.MarshalIndent(all, "", " ")
	if err == nil {
		err = statefile.Write(t.path, b)
	}
	if err != nil {
		return fmt.Errorf("store leases: %w", err)
	}
	return nil
}

func freshToken() string { return strings.ToLower(rand.Text()) }

func freshLease() (id, token string) { return ident.New("lease"), freshToken() }

// SetPolicy is Book.SetPolicy. It writes nothing: whoever calls it keeps the policy.
func (t *Table) SetPolicy(p Policy) (err error) {
	return errors.Join(t.step(func(b *Book, _ time.Time) { err = b.SetPolicy(p) }), err)
}

// Prepare is Book.Prepare.
func (t *Table) Prepare(l Lease) (err error) {
	if serr := t.step(func(b *Book, now time.Time) { err = b.Prepare(now, l, freshToken()) }); serr != nil {
		return serr
	}
	return err
}

// Close is Book.Close.
func (t *Table) Close(id string, s State) error {
	return t.step(func(b *Book, now time.Time) { b.Close(now, id, s) })
}

// Boot is Book.Boot. An error means that what was seen could not be kept; the answer then is Silent.
func (t *Table) Boot(q Boot) (a Answer, err error) {
	err = t.step(func(b *Book, now time.Time) { a = b.Boot(now, q, freshLease) })
	if err != nil {
		return Answer{Verdict: Silent}, err
	}
	return a, nil
}

// Transferred is Book.Transferred.
func (t *Table) Transferred(token string) error {
	return t.step(func(b *Book, now time.Time) { b.Transferred(now, token) })
}

// Script is Book.Script; an error that is no *Refusal means that the fetch could not be kept.
func (t *Table) Script(token string, client netip.Addr) (l Lease, ok bool, err error) {
	if serr := t.step(func(b *Book, now time.Time) { l, ok, err = b.Script(now, token, client) }); serr != nil {
		return l, ok, serr
	}
	return l, ok, err
}

// Files is Book.Files.
func (t *Table) Files(token string, client netip.Addr) (Lease, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.book.Files(t.now(), token, client)
}

// ByMAC is Book.ByMAC.
func (t *Table) ByMAC(mac string) (Lease, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.book.ByMAC(t.now(), mac)
}

// ByToken is Book.ByToken.
func (t *Table) ByToken(token string) (Lease, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.book.ByToken(t.now(), token)
}

// ByClient is Book.ByClient.
func (t *Table) ByClient(a netip.Addr) (Lease, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.book.ByClient(t.now(), a)
}
