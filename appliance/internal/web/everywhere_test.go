package web_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"firstlight/appliance/internal/web/webtest"
)

// Every page says that everything is stopped, since when, by whom and why, and offers the way on to those who may; open pages too.
func TestEveryPageSaysThatEverythingIsStopped(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	omar, vera := s.client(t, "omar"), s.client(t, "vera")
	const says, way, hidden = "Everything was stopped", `href="/site/resume"`, `id="stopped" role="status" hidden`
	stream := omar.request("GET", "/live/fleet", map[string]string{"Sec-Fetch-Site": "same-origin"})
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for sc := bufio.NewScanner(stream.Body); sc.Scan(); {
			lines <- sc.Text()
		}
	}()
	told := func(want string) {
		t.Helper()
		limit := time.After(patience)
		for {
			select {
			case l, ok := <-lines:
				if !ok {
					t.Fatalf("the stream ended before %q", want)
				}
				if strings.Contains(l, want) {
					return
				}
			case <-limit:
				t.Fatalf("no %q", want)
			}
		}
	}
	told(hidden)
	pages := []string{"/", "/?q=r12", "/machines/r12u01", "/discovered", "/images", "/health"}
	for _, path := range pages {
		if page := body(t, omar.request("GET", path, nil)); strings.Contains(page, says) || !strings.Contains(page, hidden) {
			t.Errorf("%s says that everything is stopped, or has no place for it", path)
		}
	}
	sent := map[string]string{"reason": "smoke <b>in aisle 4</b>", "key": "k-1"}
	if resp := omar.form("POST", "/site/stop", sent); resp.StatusCode != http.StatusSeeOther {
		t.Fatalf("stop: %s", resp.Status)
	}
	told(says)
	for _, path := range pages {
		page := body(t, omar.request("GET", path, nil))
		if !strings.Contains(page, says) || !strings.Contains(page, "<bdi>omar</bdi>") || !strings.Contains(page, "smoke &lt;b&gt;") || !strings.Contains(page, way) {
			t.Errorf("%s does not say who stopped everything and why, or how to go on", path)
		}
		if page := body(t, vera.request("GET", path, nil)); !strings.Contains(page, says) || strings.Contains(page, way) {
			t.Errorf("%s: a viewer is not told, or is offered what he may not", path)
		}
	}
	if resp := omar.form("POST", "/site/resume", map[string]string{"key": "k-2"}); resp.StatusCode != http.StatusSeeOther {
		t.Fatalf("resume: %s", resp.Status)
	}
	told(hidden)
	if page := body(t, omar.request("GET", "/images", nil)); strings.Contains(page, says) {
		t.Error("it still says that everything is stopped")
	}
}

// The header counts the machines that need a person on every page, and is quiet when there are none; that it could not be counted
// takes no page away.
func TestEveryPageCountsWhoNeedsYou(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	c := s.client(t, "vera")
	const want = `3<span class="words"> need you</span>`
	for _, path := range []string{"/", "/machines/r12u01", "/images", "/health"} {
		page := body(t, c.request("GET", path, nil))
		_, link, _ := strings.Cut(page, `id="needs" `)
		if head, _, _ := strings.Cut(link, "</a>"); strings.Contains(head, `need" hidden`) || !strings.Contains(head, want) {
			t.Errorf("%s: %q", path, head)
		}
	}
	s.fleet.Break("/v1/machines", http.ErrServerClosed)
	if resp := c.request("GET", "/images", nil); resp.StatusCode != http.StatusOK || !strings.Contains(body(t, resp), `id="needs" href="/?state=need" hidden`) {
		t.Errorf("images without the count: %s", resp.Status)
	}
	empty := newSite(t, webtest.Empty, false)
	if page := body(t, empty.client(t, "vera").request("GET", "/images", nil)); !strings.Contains(page, `id="needs" href="/?state=need" hidden`) {
		t.Error("nobody needs anybody, and the header says otherwise")
	}
}

// A page that was loaded before the first machine came has no place for what its stream would send: it is told to load again.
func TestAStreamOfOtherPartsThanThePageHasEndsIt(t *testing.T) {
	t.Parallel()
	s := newSite(t, webtest.New, false)
	stream := s.client(t, "omar").request("GET", "/live/fleet?parts=headline.nothing", map[string]string{"Sec-Fetch-Site": "same-origin"})
	got, err := io.ReadAll(stream.Body)
	if err != nil || string(got) != "event: over\ndata: .\n\n" {
		t.Errorf("got %q, %v; want the word that it is over, and the end", got, err)
	}
}
