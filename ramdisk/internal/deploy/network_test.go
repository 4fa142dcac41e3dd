package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"firstlight/ramdisk/internal/deploy/deploytest"
	"firstlight/ramdisk/internal/disk/disktest"
)

// wire is a network in memory: it lives in the bubble of a test, where waiting takes no time.
type wire struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (w *wire) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.done:
		return nil, net.ErrClosed
	}
}

func (w *wire) Close() error   { w.once.Do(func() { close(w.done) }); return nil }
func (w *wire) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 77, 0, 2), Port: 80} }

func (w *wire) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case w.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.done:
		return nil, errors.New("connection refused")
	}
}

// overHTTP deploys the bench's image over HTTP in memory, in a bubble. fault has the first word on each request for path, with the
// number of the try; what it leaves alone is served well.
func overHTTP(t *testing.T, b *bench, img *deploytest.Image, path string, fault func(w http.ResponseWriter, r *http.Request, try int) bool) (took time.Duration, tries int, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &wire{conns: make(chan net.Conn), done: make(chan struct{})}
		var mu sync.Mutex
		s := &http.Server{Handler: img.Handler(b.blobs.data["http://site/manifest"], func(rw http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != path {
				return false
			}
			mu.Lock()
			tries++
			n := tries
			mu.Unlock()
			return fault(rw, r, n)
		})}
		go s.Serve(w)
		h := newHTTP(w.dial)
		b.d.Fetch = h
		start := time.Now()
		_, err = b.d.Run(t.Context(), b.req)
		took = time.Since(start)
		h.client.CloseIdleConnections()
		s.Close()
		synctest.Wait()
	})
	return took, tries, err
}

// half answers with a length and brings less.
func half(w http.ResponseWriter, then func()) bool {
	w.Header().Set("Content-Length", "100")
	io.WriteString(w, "half")
	w.(http.Flusher).Flush()
	then()
	return true
}

func status(code int, after string) func(http.ResponseWriter, *http.Request, int) bool {
	return func(w http.ResponseWriter, _ *http.Request, _ int) bool {
		if after != "" {
			w.Header().Set("Retry-After", after)
		}
		w.WriteHeader(code)
		return true
	}
}

// until spoils the first n tries.
func until(n int, f func(http.ResponseWriter, *http.Request, int) bool) func(http.ResponseWriter, *http.Request, int) bool {
	return func(w http.ResponseWriter, r *http.Request, try int) bool { return try <= n && f(w, r, try) }
}

func cut(w http.ResponseWriter, _ *http.Request, _ int) bool {
	return half(w, func() { panic(http.ErrAbortHandler) })
}

func stall(w http.ResponseWriter, r *http.Request, _ int) bool {
	return half(w, func() { <-r.Context().Done() })
}

func silence(_ http.ResponseWriter, r *http.Request, _ int) bool {
	<-r.Context().Done()
	return true
}

func drip(w http.ResponseWriter, r *http.Request, _ int) bool {
	w.Header().Set("Content-Length", "100")
	for range 100 {
		if _, err := io.WriteString(w, "x"); err != nil {
			return true
		}
		w.(http.Flusher).Flush()
		select {
		case <-time.After(20 * time.Second):
		case <-r.Context().Done():
			return true
		}
	}
	return true
}

func send(text string) func(http.ResponseWriter, *http.Request, int) bool {
	return func(w http.ResponseWriter, _ *http.Request, _ int) bool { io.WriteString(w, text); return true }
}

// TestDEP02_BadNetworks spoils one chunk in the middle of a deploy. Each fault ends well or with its name, the chunk's, and a disk
// that does not start.
func TestDEP02_BadNetworks(t *testing.T) {
	for name, c := range map[string]struct {
		fault    func(http.ResponseWriter, *http.Request, int) bool
		want     error // nil: the deploy succeeds
		says     []string
		tries    int
		min, max time.Duration
	}{
		"503 three times":               {until(3, status(503, "")), nil, nil, 4, 3 * time.Second, 8 * time.Second},
		"503 that asks to wait":         {until(2, status(503, "7")), nil, nil, 3, 14 * time.Second, 15 * time.Second},
		"503 that asks to wait an hour": {until(1, status(503, "3600")), nil, nil, 2, RetryAfterMax, RetryAfterMax + time.Second},
		"503 for good":                  {status(503, ""), new(StatusError), []string{"given up after 6 tries", `"503 Service Unavailable"`}, FetchAttempts, 15 * time.Second, time.Minute},
		"503 for good, slowly":          {status(503, "3600"), new(StatusError), []string{"given up after 6 tries in 5m", "asks to wait 1h0m0s"}, FetchAttempts, 5 * time.Minute, 6 * time.Minute},
		"429 once":                      {until(1, status(429, "2")), nil, nil, 2, 2 * time.Second, 3 * time.Second},
		"404":                           {status(404, ""), ErrRefused, []string{`"404 Not Found"`}, 1, 0, time.Second},
		"cut once":                      {until(1, cut), nil, nil, 2, 0, 2 * time.Second},
		"cut for good":                  {cut, ErrCut, []string{"given up after 6 tries", "cut off after 4 of 100 bytes"}, FetchAttempts, 15 * time.Second, time.Minute},
		"stalls once":                   {until(1, stall), nil, nil, 2, StallTimeout, StallTimeout + 2*time.Second},
		"stalls for good":               {stall, ErrStalled, []string{"given up after 6 tries", "no byte came for 30s after 4 of 100 bytes"}, FetchAttempts, 6 * StallTimeout, 5 * time.Minute},
		"never answers":                 {silence, ErrStalled, []string{"given up after 6 tries"}, FetchAttempts, 6 * HeaderTimeout, 5 * time.Minute},
		"drips once":                    {until(1, drip), nil, nil, 2, TransferTimeout, TransferTimeout + 2*time.Second},
		"wrong content once":            {until(1, send("wrong")), nil, nil, 2, 0, 2 * time.Second},
		"wrong content":                 {send("wrong"), ErrDigest, []string{"wrong content, fetched 2 times", "5 bytes, the manifest says"}, DigestAttempts, 0, 2 * time.Second},
		"too much content":              {send(strings.Repeat("x", 1<<20)), ErrDigest, []string{"wrong content, fetched 2 times", "longer than it may be"}, DigestAttempts, 0, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			img := deploytest.New(t, deploytest.RootLast, 512, 128, nil)
			took, tries, err := overHTTP(t, b, img, img.Blob(2), c.fault)
			if tries != c.tries || took < c.min || took > c.max {
				t.Errorf("got %d tries in %s, want %d in %s to %s", tries, took, c.tries, c.min, c.max)
			}
			if c.want == nil {
				if err != nil {
					t.Errorf("got %v, want success", err)
				}
				return
			}
			var s *StatusError
			if !errors.Is(err, c.want) && !(errors.As(c.want, &s) && errors.As(err, &s)) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			b.wantUnbootable(t, err)
			for _, w := range append(c.says, "chunk 2 (bytes ") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("got %v, want it to say %q", err, w)
				}
			}
		})
	}
}

func TestDEP02_FaultsBeforeTheFirstWriteLeaveTheDisk(t *testing.T) {
	img := deploytest.New(t, deploytest.RootLast, 512, 128, nil)
	for name, path := range map[string]string{"manifest": "/manifest", "first chunk": img.Blob(0)} {
		for kind, fault := range map[string]func(http.ResponseWriter, *http.Request, int) bool{"503": status(503, "5"), "cut": cut, "stalled": stall, "wrong": send("wrong")} {
			b := newBench(t)
			_, _, err := overHTTP(t, b, img, path, fault)
			if err == nil || !strings.Contains(err.Error(), "nothing was written") || !strings.Contains(err.Error(), strings.Fields(name)[len(strings.Fields(name))-1]) {
				t.Errorf("%s of the %s: got %v, want it named and that nothing was written", kind, name, err)
			}
			b.wantUntouched(t)
		}
	}
}

func TestDEP02_WaitingIsSaid(t *testing.T) {
	b := newBench(t)
	img := deploytest.New(t, deploytest.RootLast, 512, 128, nil)
	var said []string
	b.d.Progress = func(what string, done, total int64) {
		if strings.Contains(what, "waiting") {
			said = append(said, fmt.Sprint(what, done > 0, total > 0))
		}
	}
	if _, _, err := overHTTP(t, b, img, img.Blob(len(img.Manifest.Chunks)-1), until(1, status(503, "9"))); err != nil {
		t.Fatal(err)
	}
	if len(said) != 1 || !strings.Contains(said[0], `waiting 9s for the image server (try 1 of 6: the server answered "503 Service Unavailable"`) || !strings.HasSuffix(said[0], "true true") {
		t.Errorf("got %q, want the wait and its reason, beside what is done", said)
	}
}

// TestDEP01_TooBigIsRefusedBeforeAnyChunk: not even the first chunk is asked for.
func TestDEP01_TooBigIsRefusedBeforeAnyChunk(t *testing.T) {
	b := newBench(t)
	b.disk = disktest.New("FL-1", deploytest.Size-512)
	b.machine.Disks = []*disktest.Disk{b.disk}
	img := deploytest.New(t, deploytest.RootLast, 512, 128, nil)
	_, tries, err := overHTTP(t, b, img, img.Blob(0), send("never"))
	if !errors.Is(err, ErrTooBig) || tries != 0 {
		t.Errorf("got %v after %d requests for chunk 0, want ErrTooBig after none", err, tries)
	}
	b.wantUntouched(t)
}

// TestMemoryIsBounded: no more than Workers chunks are under way, and an endless answer is left after its limit.
func TestMemoryIsBounded(t *testing.T) {
	b := newBench(t)
	var mu sync.Mutex
	busy, most := 0, 0
	b.d.Fetch = fetchFunc(func(ctx context.Context, url string, limit int64) ([]byte, error) {
		mu.Lock()
		busy++
		most = max(most, busy)
		mu.Unlock()
		<-time.After(time.Second)
		defer func() { mu.Lock(); busy--; mu.Unlock() }()
		return b.blobs.Fetch(ctx, url, limit)
	})
	if _, err := b.run(t); err != nil || most != Workers {
		t.Errorf("got %v, %d chunks at once, want %d", err, most, Workers)
	}
}

type fetchFunc func(context.Context, string, int64) ([]byte, error)

func (f fetchFunc) Fetch(ctx context.Context, url string, limit int64) ([]byte, error) {
	return f(ctx, url, limit)
}

func TestWIPE07_CancelledDeploy(t *testing.T) {
	operator := errors.New("cancelled: by the operator")
	t.Run("in the middle", func(t *testing.T) {
		b := newBench(t)
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		b.d.Progress = func(what string, done, _ int64) {
			if strings.HasPrefix(what, "writing the image") && done > 100<<10 {
				cancel(operator)
			}
		}
		_, err := b.d.Run(ctx, b.req)
		if !errors.Is(err, operator) || !strings.Contains(err.Error(), "stopped: cancelled: by the operator") {
			t.Errorf("got %v, want the operator's reason", err)
		}
		b.wantUnbootable(t, err)
	})
	t.Run("before the first write", func(t *testing.T) {
		for _, at := range []string{"/manifest", "/blob/"} {
			b := newBench(t)
			ctx, cancel := context.WithCancelCause(context.Background())
			b.blobs.spoil = func(url string, _ int, c []byte) ([]byte, error) {
				if strings.Contains(url, at) {
					cancel(operator)
				}
				return c, nil
			}
			_, err := b.d.Run(ctx, b.req)
			if !errors.Is(err, operator) || !strings.Contains(err.Error(), "nothing was written") {
				t.Errorf("%s: got %v, want the operator's reason and that nothing was written", at, err)
			}
			b.wantUntouched(t)
		}
	})
	t.Run("while it waits for the server", func(t *testing.T) {
		b := newBench(t)
		b.blobs.spoil = func(url string, try int, c []byte) ([]byte, error) {
			return nil, &StatusError{"503 Service Unavailable", time.Minute}
		}
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(context.Background())
			time.AfterFunc(10*time.Second, func() { cancel(operator) })
			start := time.Now()
			if _, err := b.d.Run(ctx, b.req); !errors.Is(err, operator) || time.Since(start) > 11*time.Second {
				t.Errorf("got %v after %s, want the operator's reason at once", err, time.Since(start))
			}
		})
	})
}

func TestDEP06_TwinsAreRefusedBeforeTheFirstWrite(t *testing.T) {
	for name, c := range map[string]struct {
		edit     func(old *disktest.Disk)
		excluded string
		want     []string
	}{
		"an earlier deploy":            {nil, "", []string{"FL-OLD", "PARTUUID", "disk GUID", "PCI 0000:00:07.0"}},
		"on a stick":                   {nil, "attached by USB", []string{"FL-OLD"}},
		"its first copy is damaged":    {func(d *disktest.Disk) { d.SetData(512, make([]byte, 512)) }, "", []string{"FL-OLD", "PARTUUID"}},
		"another table on that disk":   {func(d *disktest.Disk) { d.SetData(0, make([]byte, deploytest.Size)) }, "", nil},
		"that disk is not read at all": {func(d *disktest.Disk) { d.Spoil(disktest.Faults{ReadErrorFrom: 1}) }, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			old := disktest.New("FL-OLD", deploytest.Size).Named("sdb").At("PCI 0000:00:07.0")
			old.SetData(0, b.image)
			old.Info.Excluded = c.excluded
			if c.edit != nil {
				c.edit(old)
			}
			b.machine.Disks = append(b.machine.Disks, old)
			_, err := b.run(t)
			if old.Changed() != 0 {
				t.Error("the other disk was changed")
			}
			if c.want == nil {
				if err != nil {
					t.Errorf("got %v, want success", err)
				}
				return
			}
			b.wantUntouched(t)
			for _, w := range append(c.want, "nothing was written", "wipe that disk in the same workflow, or take it out") {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("got %v, want it to say %q", err, w)
				}
			}
		})
	}
}
