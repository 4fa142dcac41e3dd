package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fault"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
	"firstlight/imagebuild/manifest"
)

// packed writes an image as `imagebuild pack` does and returns its directory.
func packed(t *testing.T, fill string) string {
	t.Helper()
	const chunk = 1 << 20
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "blobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	m := manifest.Manifest{Version: manifest.Version, Name: "demo", RawSize: 2 * chunk, ChunkSize: chunk}
	for i, offset := range []int64{0, chunk} {
		raw := bytes.Repeat([]byte(fill+fmt.Sprint(i)), chunk)[:chunk]
		blob := enc.EncodeAll(raw, nil)
		c := manifest.Chunk{Offset: offset, RawSize: chunk, Size: int64(len(blob)), Raw: manifest.DigestOf(raw), Compressed: manifest.DigestOf(blob)}
		m.Chunks = append(m.Chunks, c)
		if err := os.WriteFile(filepath.Join(dir, "blobs", c.Compressed.String()), blob, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	body, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), body, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// ready is a lab with machine m1 and image demo.
func ready(t *testing.T, more ...func(*lab)) *lab {
	t.Helper()
	l := start(t, self(), more...)
	if _, err := l.client.AddMachine(t.Context(), machine("m1")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.client.AddImage(t.Context(), AddImage{Name: "demo", Dir: packed(t, "a")}); err != nil {
		t.Fatal(err)
	}
	return l
}

func ptr[T any](v T) *T { return &v }

// APP-03: what is written by others is data in every answer: JSON by its type, never sniffed, and without a character that markup
// begins with.
func TestAPP03NamesFromTheWireAreJSON(t *testing.T) {
	t.Parallel()
	hostile := []string{`<img src=x onerror=alert(1)>`, `" onmouseover=alert(1) x="`, `</script><script>alert(1)</script>`, `javascript:alert(1)`,
		"\u202egnp.exe", strings.Repeat("A", 64<<10), "a\x00b\nc", "\xff\xfe"}
	l := ready(t, func(l *lab) {})
	repo := fleet.NewRepo(l.store)
	for i, text := range hostile {
		h := &fleet.Hardware{Manufacturer: fleet.Clip(text), Product: fleet.Clip(text), Serial: fleet.Clip(text), Disks: []fleet.Disk{{Serial: fleet.Clip(text), Model: fleet.Clip(text)}},
			NICs: []fleet.NIC{{Name: fleet.Clip(text)}}}
		if _, err := repo.Update(t.Context(), "m1", func(m *fleet.Record) error { m.Hardware = h; return nil }); err != nil {
			t.Fatal(err)
		}
		if err := repo.Emit(t.Context(), fleet.Event{Machine: "m1", Kind: text, Source: "site-1", Fields: map[string]string{text: text}, Message: text}); err != nil {
			t.Fatal(err)
		}
		_, handler := l.as(anna(auth.RoleAdmin))
		for _, path := range []string{"/v1/machines", "/v1/machines?view=full", "/v1/machines/m1", "/v1/machines/m1/timeline", "/v1/machines/m1/log", "/v1/events",
			"/v1/machines/%3Cimg%20src=x%3E", "/%3Cscript%3E", "/v1/machines?sort=%3Cscript%3E"} {
			w := ask(t, handler, "GET", path, "")
			head := w.Result().Header
			if head.Get("Content-Type") != "application/json" || head.Get("X-Content-Type-Options") != "nosniff" || head.Get("Cache-Control") != "no-store" {
				t.Errorf("%s: got %v, want JSON that is not sniffed and not kept", path, head)
			}
			if bytes.ContainsAny(w.Body.Bytes(), "<>") || !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s with text %d: got a body that markup could begin in", path, i)
			}
		}
	}
}

// APP-04: an order on a machine that is not as it was shown is refused, and says what it is now.
func TestAPP04StaleVersionIsRefused(t *testing.T) {
	t.Parallel()
	l := ready(t)
	c, _ := l.as(anna(auth.RoleOperator))
	shown, err := c.Machine(t.Context(), "m1")
	if err != nil || shown.Version == "" || shown.Row.Version != shown.Version {
		t.Fatalf("got %+v, %v, want a version", shown, err)
	}
	if _, err := c.SetMachine(t.Context(), "m1", SetMachine{DiskSerials: &[]string{"S1", "S2"}, Version: shown.Version}); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"provision": func() error {
			_, err := c.Provision(t.Context(), "m1", Provision{Image: "demo", Disks: ptr(1), Version: shown.Version})
			return err
		},
		"remove": func() error { _, err := c.RemoveMachine(t.Context(), "m1", shown.Version); return err },
		"set": func() error {
			_, err := c.SetMachine(t.Context(), "m1", SetMachine{Place: ptr("x"), Version: shown.Version})
			return err
		},
		"protect": func() error { _, err := c.Protect(t.Context(), "m1", Reason{Version: shown.Version}); return err },
		"cancel":  func() error { _, err := c.Cancel(t.Context(), "m1", Reason{Version: shown.Version}); return err },
		"resume":  func() error { _, err := c.Resume(t.Context(), "m1", Act{Version: shown.Version}); return err },
		"retry": func() error {
			_, err := c.Retry(t.Context(), "m1", Retry{Disks: ptr(1), Version: shown.Version})
			return err
		},
		"adopt": func() error { _, err := c.Adopt(t.Context(), "m1", Adopt{Version: shown.Version}); return err },
	} {
		f := fault.Of(call(), "", "")
		if f.Kind != fault.Conflict || !strings.Contains(f.Error(), "changed since it was shown") || f.Next == "" {
			t.Errorf("%s: got %v, want a conflict that says so", name, f)
		}
	}
	if l.flows.order.Machine != "" {
		t.Errorf("got order %+v, want none", l.flows.order)
	}
	// What changes by itself while a machine works does not make what was shown old.
	before, err := c.Machine(t.Context(), "m1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fleet.NewRepo(l.store).Update(t.Context(), "m1", func(m *fleet.Record) error {
		m.Connected = &fleet.Connection{Role: "node", Since: fleet.At(now)}
		m.Alarm(now, "x")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	after, err := c.Machine(t.Context(), "m1")
	if err != nil || after.Version != before.Version || after.Connected == nil {
		t.Errorf("got %+v, %v, want the same version", after, err)
	}
}

// APP-04: the number of disks that will be wiped is said by whoever orders it, and it is the true one.
func TestAPP04DisksAreCounted(t *testing.T) {
	t.Parallel()
	l := ready(t)
	c, _ := l.as(anna(auth.RoleOperator))
	for name, tc := range map[string]struct {
		disks *int
		kind  fault.Kind
	}{"not said": {nil, fault.Invalid}, "too many": {ptr(2), fault.Conflict}, "none": {ptr(0), fault.Conflict}} {
		_, err := c.Provision(t.Context(), "m1", Provision{Image: "demo", Disks: tc.disks})
		if f := fault.Of(err, "", ""); f.Kind != tc.kind || !strings.Contains(f.Error(), "S1") {
			t.Errorf("%s: got %v, want %s that names the disk", name, err, tc.kind)
		}
	}
	if l.flows.order.Machine != "" {
		t.Fatalf("got order %+v, want none", l.flows.order)
	}
	if _, err := c.Provision(t.Context(), "m1", Provision{Image: "demo", Disks: ptr(1)}); err != nil || l.flows.order.By != "anna" {
		t.Errorf("got %v, order %+v, want it ordered by anna", err, l.flows.order)
	}
	// This host's own command may leave it out: it asks by itself. A wrong number is refused there too.
	if _, err := l.client.Provision(t.Context(), "m1", Provision{Image: "demo"}); err != nil {
		t.Error(err)
	}
	if _, err := l.client.Provision(t.Context(), "m1", Provision{Image: "demo", Disks: ptr(3)}); fault.Of(err, "", "").Kind != fault.Conflict {
		t.Errorf("got %v, want a conflict", err)
	}
}

// APP-04: the second click is harmless, also after a restart; another request under the key, or another person with it, is another thing.
func TestAPP04SameKeyIsDoneOnce(t *testing.T) {
	t.Parallel()
	l := ready(t)
	c, h := l.as(anna(auth.RoleOperator))
	ctx := WithKey(t.Context(), "click-1")
	first, err := c.Provision(ctx, "m1", Provision{Image: "demo", Disks: ptr(1)})
	if err != nil {
		t.Fatal(err)
	}
	l.flows.order, l.flows.err = executor.Order{}, executor.ErrBusy
	again, err := c.Provision(ctx, "m1", Provision{Image: "demo", Disks: ptr(1)})
	if err != nil || again.Version != first.Version || l.flows.order.Machine != "" {
		t.Errorf("got %v, order %+v, want the first answer and no second order", err, l.flows.order)
	}
	// A new process knows it too.
	other := NewServer(l.config)
	r := httptest.NewRequestWithContext(auth.WithPrincipal(t.Context(), anna(auth.RoleOperator)), "POST", "/v1/machines/m1/provision", strings.NewReader(`{"image":"demo","disks":1}`))
	r.Header.Set(keyHeader, "click-1")
	w := httptest.NewRecorder()
	other.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK || w.Result().Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("after a restart: got %d %s, want the first answer", w.Code, w.Body)
	}
	if _, err := c.Provision(ctx, "m1", Provision{Image: "demo", Disks: ptr(2)}); fault.Of(err, "", "").Kind != fault.Conflict || !strings.Contains(err.Error(), keyHeader) {
		t.Errorf("another request: got %v, want a conflict about the key", err)
	}
	ben, _ := l.as(auth.Principal{Kind: auth.KindUser, Name: "ben", Role: auth.RoleOperator})
	if _, err := ben.Provision(ctx, "m1", Provision{Image: "demo", Disks: ptr(1)}); !strings.Contains(fmt.Sprint(err), "busy") {
		t.Errorf("another person: got %v, want it asked anew", err)
	}
	// A refusal is an answer too; that the appliance could not is none.
	l.flows.err = executor.ErrBusy
	ctx = WithKey(t.Context(), "click-2")
	for range 2 {
		if _, err := c.Provision(ctx, "m1", Provision{Image: "demo", Disks: ptr(1)}); fault.Of(err, "", "").Kind != fault.Conflict {
			t.Errorf("got %v, want busy", err)
		}
		l.flows.err = nil
	}
	ctx = WithKey(t.Context(), "click-3")
	l.flows.err = executor.ErrStopped
	if _, err := c.Provision(ctx, "m1", Provision{Image: "demo", Disks: ptr(1)}); fault.Of(err, "", "").Kind != fault.Unavailable {
		t.Errorf("got %v, want unavailable", err)
	}
	l.flows.err = nil
	if _, err := c.Provision(ctx, "m1", Provision{Image: "demo", Disks: ptr(1)}); err != nil {
		t.Errorf("got %v, want it done now", err)
	}
	if w := ask(t, h, "POST", "/v1/machines/m1/resume", ""); w.Code != http.StatusOK {
		t.Errorf("without a key: got %d %s", w.Code, w.Body)
	}
}

// A process that ended in the middle leaves a key of which nobody knows what came of it: that is said, and nothing is done again.
func TestAPP04KeyOfAnUnfinishedRequest(t *testing.T) {
	t.Parallel()
	l := ready(t)
	q := requests{store: l.store, now: func() time.Time { return now }, running: map[string]bool{}}
	if _, first, err := q.begin(t.Context(), keptPrefix+"x", []byte("sum"), "provision"); err != nil || first != nil {
		t.Fatal(err)
	}
	if _, _, err := q.begin(t.Context(), keptPrefix+"x", []byte("sum"), "provision"); !strings.Contains(fmt.Sprint(err), "still running") {
		t.Errorf("got %v, want that it still runs", err)
	}
	q.running = map[string]bool{}
	_, _, err := q.begin(t.Context(), keptPrefix+"x", []byte("sum"), "provision")
	if f := fault.Of(err, "", ""); f.Kind != fault.Conflict || !strings.Contains(f.Error(), "stopped while") {
		t.Errorf("got %v, want that nobody knows", err)
	}
	// After a day the key is as good as new.
	q.now = func() time.Time { return now.Add(keyLife + time.Second) }
	if _, first, err := q.begin(t.Context(), keptPrefix+"x", []byte("other"), "provision"); err != nil || first != nil {
		t.Errorf("got %v, %v, want a new request", first, err)
	}
}

func TestKeysAreBounded(t *testing.T) {
	t.Parallel()
	l := ready(t)
	q := requests{store: l.store, now: func() time.Time { return now }, running: map[string]bool{}}
	for i := range maxKeys + 10 {
		id := fmt.Sprintf("%s%05d", keptPrefix, i)
		rev, _, err := q.begin(t.Context(), id, []byte("s"), "x")
		if err != nil {
			t.Fatal(err)
		}
		if err := q.finish(t.Context(), id, rev, kept{SHA256: []byte("s"), Code: 200, Body: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
		q.end(id)
	}
	all, err := l.store.List(t.Context(), keptPrefix)
	if err != nil || len(all) > maxKeys+1 {
		t.Errorf("got %d keys, %v, want at most %d", len(all), err, maxKeys+1)
	}
	if _, first, err := q.begin(t.Context(), fmt.Sprintf("%s%05d", keptPrefix, maxKeys+9), []byte("s"), "x"); err != nil || first == nil {
		t.Errorf("got %v, %v, want the newest still known", first, err)
	}
	q.now = func() time.Time { return now.Add(2 * keyLife) }
	if _, _, err := q.begin(t.Context(), keptPrefix+"new", []byte("s"), "x"); err != nil {
		t.Fatal(err)
	}
	if all, err := l.store.List(t.Context(), keptPrefix); err != nil || len(all) != 1 {
		t.Errorf("got %d keys, %v, want the new one", len(all), err)
	}
}

// APP-02: an upload that would touch what the database needs is refused in the usual three parts, and goes on once there is room.
func TestAPP02NoRoomInWords(t *testing.T) {
	t.Parallel()
	cause := fmt.Errorf("%w: it needs 900 MiB, and of the 1000 MiB that are free in /x, 512 MiB stay reserved for the appliance's own database", images.ErrNoRoom)
	f := fault.Of(imageFault("add image", "demo", cause), "", "")
	if f.Kind != fault.Conflict || !strings.Contains(f.Error(), "reserved") || !strings.Contains(f.Next, "remove images") {
		t.Errorf("got %+v, want what is missing, why and what to do", f)
	}
}

func TestUploadOverTheAPI(t *testing.T) {
	t.Parallel()
	l := start(t, self())
	dir := packed(t, "u")
	body, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	c, _ := l.as(anna(auth.RoleOperator))
	for _, client := range []*Client{c, l.client} {
		name := "one"
		if client == l.client {
			name = "two"
		}
		up, err := client.BeginUpload(t.Context(), BeginUpload{Name: name, Manifest: body})
		if err != nil {
			t.Fatal(err)
		}
		if len(up.Missing) > 0 {
			if _, err := client.FinishUpload(t.Context(), up.ID); fault.Of(err, "", "").Kind != fault.Conflict {
				t.Errorf("finish too early: got %v, want a conflict", err)
			}
		}
		for _, sum := range up.Missing {
			blob, err := os.ReadFile(filepath.Join(dir, "blobs", sum))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := client.PutBlob(t.Context(), up.ID, sum, int64(len(blob)), bytes.NewReader(blob[1:])); err == nil {
				t.Error("a cut blob was taken")
			}
			if up, err = client.PutBlob(t.Context(), up.ID, sum, int64(len(blob)), bytes.NewReader(blob)); err != nil {
				t.Fatal(err)
			}
		}
		if now, err := client.Upload(t.Context(), up.ID); err != nil || now.Have != now.Total || len(now.Missing) != 0 {
			t.Errorf("got %+v, %v, want all of it", now, err)
		}
		img, err := client.FinishUpload(t.Context(), up.ID)
		if err != nil || img.Name != name {
			t.Fatalf("got %+v, %v", img, err)
		}
	}
	for name, err := range map[string]error{
		"upload": second(c.Upload(t.Context(), "none")), "blob": second(c.PutBlob(t.Context(), "none", strings.Repeat("0", 64), 1, strings.NewReader("x"))),
		"finish": second(c.FinishUpload(t.Context(), "none")), "drop": second(c.DropUpload(t.Context(), "none")), "image": second(c.RemoveImage(t.Context(), "none")),
	} {
		if fault.Of(err, "", "").Kind != fault.NotFound {
			t.Errorf("%s: got %v, want not found", name, err)
		}
	}
	if all, err := c.Images(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("got %+v, %v, want two images", all, err)
	}
}

// An image stays while a machine is being installed with it.
func TestRemoveImageInUse(t *testing.T) {
	t.Parallel()
	l := ready(t)
	repo := fleet.NewRepo(l.store)
	run := &fleet.Run{Workflow: fleet.Workflow{ID: "wf-1", Image: "demo", State: fleet.WorkflowRunning}, Machine: "m1"}
	rev, err := repo.SaveRun(t.Context(), run, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := repo.Update(t.Context(), "m1", func(m *fleet.Record) error { m.Workflow = "wf-1"; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := l.roster.Refresh(t.Context(), "m1"); err != nil {
		t.Fatal(err)
	}
	_, err = l.client.RemoveImage(t.Context(), "demo")
	if f := fault.Of(err, "", ""); f.Kind != fault.Conflict || !strings.Contains(f.Error(), "m1") {
		t.Errorf("got %v, want a conflict that names m1", err)
	}
	run.State = fleet.WorkflowDone
	if _, err := repo.SaveRun(t.Context(), run, rev); err != nil {
		t.Fatal(err)
	}
	if err := l.roster.Refresh(t.Context(), "m1"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.client.RemoveImage(t.Context(), "demo"); err != nil {
		t.Error(err)
	}
}

func TestRetry(t *testing.T) {
	t.Parallel()
	l := ready(t)
	if _, err := l.client.Retry(t.Context(), "m1", Retry{}); fault.Of(err, "", "").Kind != fault.Conflict {
		t.Errorf("a new machine: got %v, want a conflict", err)
	}
	img, err := l.client.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	repo := fleet.NewRepo(l.store)
	run := &fleet.Run{Workflow: fleet.Workflow{ID: "wf-1", Image: "demo", ManifestSHA256: img[0].ManifestSHA256, State: fleet.WorkflowFailed, PauseAfter: []string{"wipe"}}, Machine: "m1",
		Disks: []fleet.DiskState{{Serial: "S1"}}}
	rev, err := repo.SaveRun(t.Context(), run, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := repo.Update(t.Context(), "m1", func(m *fleet.Record) error { m.Workflow = "wf-1"; return nil }); err != nil {
		t.Fatal(err)
	}
	c, _ := l.as(anna(auth.RoleTechnician))
	if _, err := c.Retry(t.Context(), "m1", Retry{}); fault.Of(err, "", "").Kind != fault.Invalid {
		t.Errorf("without the number of disks: got %v, want it refused", err)
	}
	if _, err := c.Retry(t.Context(), "m1", Retry{Disks: ptr(1)}); err != nil {
		t.Fatal(err)
	}
	if o := l.flows.order; o.Machine != "m1" || o.Image.Name != "demo" || fmt.Sprint(o.PauseAfter) != "[wipe]" || o.By != "anna" || o.Reinstall {
		t.Errorf("got %+v, want the same order again", o)
	}
	// Another disk was named since: an order without a version may not mean it, one with a version was given by somebody who saw it.
	l.flows.order = executor.Order{}
	shown, err := l.client.SetMachine(t.Context(), "m1", SetMachine{DiskSerials: &[]string{"S7"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, who := range map[string]*Client{"technician": c, "this host": l.client} {
		if _, err := who.Retry(t.Context(), "m1", Retry{Disks: ptr(1)}); fault.Of(err, "", "").Kind != fault.Conflict || !strings.Contains(err.Error(), "S7") || l.flows.order.Machine != "" {
			t.Errorf("%s, another disk: got %v, order %+v, want a conflict that names it", name, err, l.flows.order)
		}
	}
	if _, err := c.Retry(t.Context(), "m1", Retry{Disks: ptr(1), Version: shown.Version}); err != nil {
		t.Errorf("another disk, shown: %v", err)
	}
	run.ManifestSHA256 = strings.Repeat("0", 64)
	if _, err := repo.SaveRun(t.Context(), run, rev); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Retry(t.Context(), "m1", Retry{Disks: ptr(1)}); fault.Of(err, "", "").Kind != fault.Conflict {
		t.Errorf("another image of that name: got %v, want a conflict", err)
	}
}

func TestSetAdoptRemove(t *testing.T) {
	t.Parallel()
	var forgotten []string
	l := ready(t, func(l *lab) { l.config.Forget = func(node string) { forgotten = append(forgotten, node) } })
	ctx := t.Context()
	m, err := l.client.SetMachine(ctx, "m1", SetMachine{Place: ptr("rack 12 unit 4"), BMCPassword: ptr("s3cret!")})
	if err != nil || m.Place != "rack 12 unit 4" || m.Row.Place != m.Place {
		t.Fatalf("got %+v, %v", m, err)
	}
	if p, err := l.client.Page(ctx, Query{Q: "rack 12"}); err != nil || len(p.Rows) != 1 {
		t.Errorf("got %+v, %v, want it found by its place at once", p, err)
	}
	if _, err := l.client.SetMachine(ctx, "m1", SetMachine{}); fault.Of(err, "", "").Kind != fault.Usage {
		t.Errorf("nothing to set: got %v", err)
	}
	if m, err = l.client.Adopt(ctx, "m1", Adopt{Reason: "customer data"}); err != nil || m.State != fleet.MachineAdopted || m.Protected == nil || m.Protected.Why != "customer data" {
		t.Fatalf("got %+v, %v, want it adopted", m, err)
	}
	if _, err := l.client.RemoveMachine(ctx, "m1", ""); fault.Of(err, "", "").Kind != fault.Conflict {
		t.Errorf("got %v, want a protected machine to stay", err)
	}
	if _, err := l.client.Unprotect(ctx, "m1", Act{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.client.RemoveMachine(ctx, "m1", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := l.client.Machine(ctx, "m1"); fault.Of(err, "", "").Kind != fault.NotFound {
		t.Errorf("got %v, want it gone", err)
	}
	if len(forgotten) != 1 || forgotten[0] != m.NodeID {
		t.Errorf("got %q forgotten, want %s", forgotten, m.NodeID)
	}
	events, err := l.client.Events(ctx, "", 100)
	if err != nil || strings.Contains(fmt.Sprint(events), "s3cret!") || strings.Contains(l.log.String(), "s3cret!") {
		t.Errorf("got %v, or a password in events or log", err)
	}
	// A discovered machine that is adopted gets its name with it.
	repo := fleet.NewRepo(l.store)
	found, _, err := repo.Discover(ctx, "52:54:00:00:00:77", fleet.Claims{}, "SN1", now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.client.Adopt(ctx, found.Name, Adopt{}); fault.Of(err, "", "").Kind != fault.Invalid {
		t.Errorf("without a name: got %v, want it refused", err)
	}
	if m, err := l.client.Adopt(ctx, found.Name, Adopt{Name: "db7"}); err != nil || m.Name != "db7" || m.Protected == nil {
		t.Errorf("got %+v, %v, want db7", m, err)
	}
	if all, err := l.client.Discovered(ctx); err != nil || len(all) != 0 {
		t.Errorf("got %+v, %v, want nothing left to enrol", all, err)
	}
}

func TestBadQueries(t *testing.T) {
	t.Parallel()
	l := start(t, self())
	for _, q := range []Query{{Limit: MaxPage + 1}, {Limit: -1}, {View: ViewFull, Limit: MaxFull + 1}, {View: "x"}, {Sort: "x"}, {State: "x"}, {Cursor: "x"}, {Q: strings.Repeat("x", MaxQuery+1)}} {
		if _, err := l.client.Page(t.Context(), q); fault.Of(err, "", "").Kind != fault.Usage {
			t.Errorf("%+v: got %v, want it refused", q, err)
		}
	}
	_, h := l.as(anna(auth.RoleAdmin))
	w := ask(t, h, "POST", "/v1/stop", `{"reason":"`+strings.Repeat("x", maxRequest)+`"}`)
	if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "over") {
		t.Errorf("a body that is too long: got %d %s", w.Code, w.Body)
	}
	if _, err := l.client.Timeline(t.Context(), "m9", 1, ""); fault.Of(err, "", "").Kind != fault.NotFound {
		t.Errorf("got %v, want not found", err)
	}
}
