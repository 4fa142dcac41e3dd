package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"

	"firstlight/appliance/internal/store"
)

// Bounds of the audit log.
const (
	// MaxAudit bounds the entries kept; the oldest go first.
	MaxAudit = 20_000
	// MaxAuditPage bounds what Entries returns.
	MaxAuditPage = 500
	// maxAuditText bounds each text of an entry in bytes.
	maxAuditText = 256
)

// Outcome says what came of it.
type Outcome string

// The outcomes.
const (
	Done   Outcome = "done"
	Denied Outcome = "denied"
	Failed Outcome = "failed"
)

// Nobody is Entry.Who of somebody who is not known.
const Nobody = "nobody"

// Entry says that somebody did something, or tried.
type Entry struct {
	// Seq is the entry's number, from 1; Record gives it.
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	// Who is Principal.String, or Nobody.
	Who  string `json:"who"`
	Role Role   `json:"role,omitempty"`
	// From is the address, empty for the unix socket.
	From string `json:"from,omitempty"`
	// What and Object: "provision", "machine r12u04".
	What    string  `json:"what"`
	Object  string  `json:"object,omitempty"`
	Outcome Outcome `json:"outcome"`
	// Detail is why, or with which options; never a secret.
	Detail string `json:"detail,omitempty"`
}

// ring knows the numbers of the entries: from first up to but not next, without gaps but for what was lost.
type ring struct {
	mu          sync.Mutex
	loaded      bool
	first, next uint64
}

func auditKey(seq uint64) string { return fmt.Sprintf("%s%016x", auditPrefix, seq) }

// Record adds an entry, gives it number and, where it has none, time, and cuts what is too long. Of many refusals of one person, or of
// people whom nobody knows, few are written, and how many were not: they would push out what was done.
func (a *Accounts) Record(ctx context.Context, e Entry) error {
	if e.Time.IsZero() {
		e.Time = a.cfg.Now()
	}
	e.Time = e.Time.UTC()
	if e.Outcome == Denied {
		unsaid, ok := a.limits.say(clip(e.Who), e.Time)
		if !ok {
			return nil
		}
		if unsaid > 0 {
			e.Detail = fmt.Sprintf("%d refusals before this one were not written; %s", unsaid, e.Detail)
		}
	}
	a.ring.mu.Lock()
	defer a.ring.mu.Unlock()
	for _, s := range []*string{&e.Who, &e.From, &e.What, &e.Object, &e.Detail} {
		*s = clip(*s)
	}
	for range maxTries {
		if err := a.loadRing(ctx); err != nil {
			return fmt.Errorf("record in the audit log: %w", err)
		}
		err := a.append(ctx, e)
		if err == nil {
			return a.trim(ctx)
		}
		if !errors.Is(err, store.ErrConflict) {
			return fmt.Errorf("record in the audit log: %w", err)
		}
		a.ring.loaded = false // another appliance wrote to the same store
	}
	return fmt.Errorf("record in the audit log: %w %d times", store.ErrConflict, maxTries)
}

// append writes one entry; the ring's mutex is held.
func (a *Accounts) append(ctx context.Context, e Entry) error {
	e.Seq = a.ring.next
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if _, err := a.cfg.Store.Put(ctx, auditKey(e.Seq), b, 0); err != nil {
		return err
	}
	a.ring.next++
	return nil
}

// trim drops the oldest entries; the ring's mutex is held.
func (a *Accounts) trim(ctx context.Context) error {
	for a.ring.next-a.ring.first > MaxAudit {
		err := a.update(ctx, auditKey(a.ring.first), func([]byte) ([]byte, error) { return nil, nil })
		if err != nil {
			return fmt.Errorf("drop an old entry of the audit log: %w", err)
		}
		a.ring.first++
	}
	return nil
}

// loadRing reads the numbers once; the ring's mutex is held.
func (a *Accounts) loadRing(ctx context.Context) error {
	if a.ring.loaded {
		return nil
	}
	all, err := a.cfg.Store.List(ctx, auditPrefix)
	if err != nil {
		return err
	}
	a.ring.first, a.ring.next = 1, 1
	if len(all) > 0 {
		var first, last uint64
		if _, err := fmt.Sscanf(strings.TrimPrefix(all[0].Key, auditPrefix), "%x", &first); err != nil {
			return fmt.Errorf("%s: %w", all[0].Key, err)
		}
		if _, err := fmt.Sscanf(strings.TrimPrefix(all[len(all)-1].Key, auditPrefix), "%x", &last); err != nil {
			return fmt.Errorf("%s: %w", all[len(all)-1].Key, err)
		}
		a.ring.first, a.ring.next = first, last+1
	}
	a.ring.loaded = true
	return nil
}

// Entries returns at most limit entries with numbers below before, newest first; before 0 begins with the newest.
func (a *Accounts) Entries(ctx context.Context, before uint64, limit int) ([]Entry, error) {
	a.ring.mu.Lock()
	err := a.loadRing(ctx)
	first, next := a.ring.first, a.ring.next
	a.ring.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	if before == 0 || before > next {
		before = next
	}
	out := []Entry{}
	for seq := before; seq > first && len(out) < min(limit, MaxAuditPage); seq-- {
		got, err := a.cfg.Store.Get(ctx, auditKey(seq-1))
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		var e Entry
		if err := json.Unmarshal(got.Value, &e); err != nil {
			return nil, fmt.Errorf("decode %s: %w", got.Key, err)
		}
		out = append(out, e)
	}
	return out, nil
}

// record is Record for what happens here; that it could not be recorded undoes nothing.
func (a *Accounts) record(ctx context.Context, e Entry) {
	if err := a.Record(context.WithoutCancel(ctx), e); err != nil {
		a.cfg.Log.Error("audit", "what", e.What, "outcome", e.Outcome, "error", err)
	}
}

// clip bounds a text and takes control characters out.
func clip(s string) string {
	var out strings.Builder
	for _, c := range s {
		if unicode.IsControl(c) {
			c = ' '
		}
		if out.Len()+len(string(c)) > maxAuditText {
			break
		}
		out.WriteRune(c)
	}
	return out.String()
}
