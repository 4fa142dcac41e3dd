package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fleet"
)

// keyed sends one request with a key.
func keyed(t *testing.T, h http.Handler, method, path, key, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set(keyHeader, key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// What is shown once is not in the kept answer, and what is kept of a request tells nothing of a password in it.
func TestKeptAnswersHaveNoSecrets(t *testing.T) {
	t.Parallel()
	use, _ := withAccounts(t)
	l := start(t, self(), use, func(l *lab) {
		l.config.MintJoin = func(context.Context, time.Duration) (JoinToken, error) {
			return JoinToken{NodeID: "site-1", Token: []byte("joinsecret")}, nil
		}
	})
	_, h := l.as(anna(auth.RoleAdmin))
	user := `{"name":"ben","role":"viewer","password":"correct horse battery"}`
	var values []string
	for i, x := range []struct{ path, body string }{{"/v1/tokens", `{"name":"ci-7","role":"viewer","life_s":3600}`}, {"/v1/join-tokens", `{"life_s":600}`}, {"/v1/users", user}} {
		key := fmt.Sprint("key-", i)
		w := keyed(t, h, "POST", x.path, key, x.body)
		if w.Code != http.StatusOK {
			t.Fatalf("%s: got %d %s", x.path, w.Code, w.Body)
		}
		var got struct{ Value, Token string }
		if json.Unmarshal(w.Body.Bytes(), &got); got.Value+got.Token != "" {
			values = append(values, got.Value+got.Token)
			if w := keyed(t, h, "POST", x.path, key, x.body); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "not kept") {
				t.Errorf("%s again: got %d %s, want that it was done and the answer is not kept", x.path, w.Code, w.Body)
			}
		}
	}
	if len(values) != 2 {
		t.Fatalf("got values %q, want a token and a join token", values)
	}
	all, err := l.store.List(t.Context(), keptPrefix)
	if err != nil || len(all) != 3 {
		t.Fatalf("got %d kept, %v, want 3", len(all), err)
	}
	plain := sha256.Sum256([]byte("POST /v1/users\x00" + user))
	for _, e := range all {
		var k kept
		if err := json.Unmarshal(e.Value, &k); err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			if bytes.Contains(k.Body, []byte(v)) {
				t.Errorf("the store has a secret that is shown once: %s", k.Body)
			}
		}
		if bytes.Equal(k.SHA256, plain[:]) {
			t.Error("the store has a fast hash of a password")
		}
	}
}

// Who only looks, and what changes nothing, takes no place among the answers that are kept.
func TestKeysAreForWhatChangesSomething(t *testing.T) {
	t.Parallel()
	l := ready(t)
	_, viewer := l.as(anna(auth.RoleViewer))
	_, operator := l.as(anna(auth.RoleOperator))
	for i := range 5 {
		if w := keyed(t, viewer, "POST", "/v1/nothing", fmt.Sprint("k", i), "{}"); w.Code != http.StatusBadRequest {
			t.Errorf("got %d %s, want that there is nothing", w.Code, w.Body)
		}
		keyed(t, operator, "POST", "/v1/machines/m1/preview", fmt.Sprint("p", i), `{"image":"demo"}`)
		keyed(t, operator, "PUT", "/v1/uploads/x/blobs/"+strings.Repeat("0", 64), fmt.Sprint("b", i), "x")
	}
	if all, err := l.store.List(t.Context(), keptPrefix); err != nil || len(all) != 0 {
		t.Errorf("got %d kept, %v, want none", len(all), err)
	}
}

// APP-04: of many equal requests at one moment one is done; the others get its answer, or are told that it runs.
func TestAPP04SameKeyAtOnce(t *testing.T) {
	t.Parallel()
	use, _ := withAccounts(t)
	l := ready(t, use)
	_, h := l.as(anna(auth.RoleOperator))
	var wg sync.WaitGroup
	codes := make([]int, 16)
	for i := range codes {
		wg.Go(func() { codes[i] = keyed(t, h, "POST", "/v1/machines/m1/protect", "click", `{"reason":"x"}`).Code })
	}
	wg.Wait()
	done := 0
	for _, c := range codes {
		if c != http.StatusOK && c != http.StatusConflict {
			t.Errorf("got %d, want the answer or a conflict", c)
		}
		if c == http.StatusOK {
			done++
		}
	}
	events, err := fleet.NewRepo(l.store).Events(t.Context(), "m1", 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range events {
		if e.Kind == "machine.protected" {
			n++
		}
	}
	if done == 0 || n != 1 {
		t.Errorf("got %d answers and %d acts, want one act", done, n)
	}
}
