package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/store"
)

// Bounds of requests that may be sent again.
const (
	// keyLife is how long an answer is kept.
	keyLife = 24 * time.Hour
	// maxKey bounds a key in bytes.
	maxKey = 128
	// maxKept bounds an answer that is kept; of a larger one only its status is.
	maxKept = 64 << 10
	// maxKeys bounds the answers that are kept; beyond it the oldest go first.
	maxKeys    = 4096
	sweepEvery = time.Hour
)

// keptPrefix of the store's keys: kept by the hash of who asked and of his key.
const keptPrefix = "requests/"

// kept is what is stored of a request: first that it began, then its answer.
type kept struct {
	At time.Time `json:"at"`
	// SHA256 is an HMAC under the request's key over method, path and body: another request under the same key is a mistake. A plain
	// hash of a body that has a password would let whoever reads the store try passwords fast.
	SHA256 []byte `json:"sha256"`
	Done   bool   `json:"done"`
	Code   int    `json:"code"`
	Body   []byte `json:"body"`
}

// requests remembers requests that carry a key. Its zero store remembers nothing.
type requests struct {
	store store.Store
	now   func() time.Time

	mu      sync.Mutex
	running map[string]bool
	swept   time.Time
	count   int
}

// again answers a request that has a key: the first time by doing it, later with the first answer.
func (s *Server) again(w http.ResponseWriter, r *http.Request, rt *route, p auth.Principal, key string, t *trail) {
	if len(key) > maxKey {
		s.refuse(w, r, fault.New(fault.Usage, rt.id, "", fmt.Errorf("%s of %d bytes, want at most %d", keyHeader, len(key), maxKey), "give a shorter one"))
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.refuse(w, r, fault.New(fault.Usage, rt.id, "", fmt.Errorf("request body: %w", err), "send it again"))
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	mac := hmac.New(sha256.New, []byte(key))
	fmt.Fprintf(mac, "%s %s\x00%s", r.Method, r.URL.RequestURI(), body)
	sum := mac.Sum(nil)
	name := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", p.Kind, p.Name, key))
	id := keptPrefix + hex.EncodeToString(name[:])
	rev, first, err := s.once.begin(r.Context(), id, sum, rt.id)
	if err != nil {
		s.audit(r, rt, t, err)
		s.refuse(w, r, err)
		return
	}
	if first != nil {
		if first.Body == nil {
			s.refuse(w, r, fault.New(fault.Conflict, rt.id, "", errors.New("this was asked and answered already, and the answer is not kept"),
				"look at what it did; what was shown once is made anew"))
			return
		}
		replay(w, first.Code, first.Body)
		return
	}
	defer s.once.end(id)
	// Whoever asked may go away meanwhile: what he gets when he asks again is the answer, not that he went.
	r = r.WithContext(context.WithoutCancel(r.Context()))
	v, err := rt.do(r)
	s.audit(r, rt, t, err)
	code, out := http.StatusOK, []byte(nil)
	if err != nil {
		var refused refusal
		code, refused = s.refusal(r, err)
		v = refused
	}
	if out, err = encode(v); err != nil {
		answer(w, code, v)
		return
	}
	keep := kept{SHA256: sum, Code: code, Body: out}
	if rt.once && code == http.StatusOK {
		keep.Body = nil
	}
	if err := s.once.finish(r.Context(), id, rev, keep); err != nil {
		s.cfg.Log.Error("keep an answer", "route", rt.id, "error", err)
	}
	head(w, "application/json")
	w.WriteHeader(code)
	w.Write(out)
}

// begin notes that a request begins, before anything of it is done; or returns its first answer.
func (q *requests) begin(ctx context.Context, id string, sum []byte, op string) (rev int64, first *kept, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running[id] {
		return 0, nil, fault.New(fault.Conflict, op, "", errors.New("the same request is still running"), "wait for its answer")
	}
	if err := q.sweep(ctx); err != nil {
		return 0, nil, err
	}
	e, err := q.store.Get(ctx, id)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return 0, nil, err
	}
	if err == nil {
		var k kept
		if err := json.Unmarshal(e.Value, &k); err != nil {
			return 0, nil, fmt.Errorf("decode %s: %w", id, err)
		}
		switch {
		case q.now().Sub(k.At) > keyLife:
		case !bytes.Equal(k.SHA256, sum):
			return 0, nil, fault.New(fault.Conflict, op, "", errors.New("this "+keyHeader+" was used for another request"), "use a new key for a new request")
		case !k.Done:
			return 0, nil, fault.New(fault.Conflict, op, "", errors.New("the appliance stopped while it did this, at "+k.At.UTC().Format(time.RFC3339)),
				"look at what it did, then order again under a new key")
		default:
			return 0, &k, nil
		}
	}
	rev, err = q.put(ctx, id, kept{At: q.now(), SHA256: sum}, e.Rev)
	if err != nil {
		return 0, nil, err
	}
	q.running[id] = true
	q.count++
	return rev, nil, nil
}

func (q *requests) put(ctx context.Context, id string, k kept, rev int64) (int64, error) {
	b, err := json.Marshal(k)
	if err != nil {
		return 0, err
	}
	return q.store.Put(ctx, id, b, rev)
}

// finish keeps the answer. That the appliance could not do its part is none: it may be asked again.
func (q *requests) finish(ctx context.Context, id string, rev int64, k kept) error {
	if k.Code >= http.StatusInternalServerError {
		return q.drop(ctx, id, rev)
	}
	k.At, k.Done = q.now(), true
	if len(k.Body) > maxKept {
		k.Body = nil
	}
	_, err := q.put(ctx, id, k, rev)
	return err
}

func (q *requests) end(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.running, id)
}

// sweep forgets what is too old, and the oldest when there are too many; the mutex is held.
func (q *requests) sweep(ctx context.Context) error {
	now := q.now()
	if now.Sub(q.swept) < sweepEvery && q.count < maxKeys {
		return nil
	}
	all, err := q.store.List(ctx, keptPrefix)
	if err != nil {
		return err
	}
	// Revisions grow, so the oldest have the least.
	slices.SortFunc(all, func(a, b store.Entry) int { return cmp.Compare(a.Rev, b.Rev) })
	left := len(all)
	for _, e := range all {
		var k kept
		fresh := json.Unmarshal(e.Value, &k) == nil && now.Sub(k.At) <= keyLife && left < maxKeys
		if fresh || q.running[e.Key] {
			continue
		}
		if err := q.drop(ctx, e.Key, e.Rev); err != nil {
			return err
		}
		left--
	}
	q.swept, q.count = now, left
	return nil
}

func (q *requests) drop(ctx context.Context, id string, rev int64) error {
	err := q.store.Delete(ctx, id, rev)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrConflict) {
		return nil
	}
	return err
}
