package web

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"regexp"
	"strings"
	"time"

	"firstlight/appliance/internal/api"
	"firstlight/appliance/internal/auth"
	"firstlight/appliance/internal/fault"
)

// How a live stream behaves.
const (
	// liveEvery is the least time between two updates of one page.
	liveEvery = time.Second
	// beatEvery is how often a quiet stream says that it lives; page.js waits a little more than twice that.
	beatEvery = 10 * time.Second
	// peekEvery is how often a stream looks whether its session still lives.
	peekEvery = 30 * time.Second
)

// part is a piece of a page that changes on its own. A page is made of the same parts that its stream sends, so what is updated is
// what was shown. A part's template begins with an element that has class first and the part's id.
type part struct {
	id, tmpl string
	data     any
	// mark is what makes a change worth a mark for two seconds; empty is never.
	mark string
	// kids are parts inside; the template gets their HTML as Kids. While their order stays, only the changed ones are sent.
	kids []part
}

// parts builds the parts of one page, and says which machine its stream watches (empty: all).
type parts func(v *visit) (all []part, machine string, err error)

// drawnPart is a part that was rendered.
type drawnPart struct {
	id   string
	html string
	sum  [32]byte
	mark string
	// order is the ids of the kids; kids are them.
	order string
	kids  []drawnPart
}

// kidsView is what a template with parts inside gets.
type kidsView struct {
	Kids template.HTML
	P    any
}

func (v *visit) draw(f frame, p part) (drawnPart, error) {
	d := drawnPart{id: p.id, mark: p.mark}
	data := p.data
	if p.kids != nil {
		var all strings.Builder
		for _, k := range p.kids {
			kid, err := v.draw(f, k)
			if err != nil {
				return d, err
			}
			all.WriteString(kid.html)
			d.order += kid.id + " "
			d.kids = append(d.kids, kid)
		}
		data = kidsView{template.HTML(all.String()), p.data}
	}
	var out bytes.Buffer
	if err := v.s.looks.shared.ExecuteTemplate(&out, p.tmpl, view{f, data}); err != nil {
		return d, fmt.Errorf("draw %s: %w", p.tmpl, err)
	}
	d.html = strings.TrimSpace(out.String())
	d.sum = digest(d.html)
	return d, nil
}

// timeless drops what a moment is called and the key of an order: those alone are no change, the browser counts on by itself.
var timeless = regexp.MustCompile(`(<time[^>]*>)[^<]*|(name="key" value=)"k-[0-9a-f]+"`)

func digest(html string) [32]byte {
	return sha256.Sum256([]byte(timeless.ReplaceAllString(html, "$1$2")))
}

// drawAll renders parts as a page shows them, by id.
func (v *visit) drawAll(all []part) (map[string]template.HTML, error) {
	out, f := map[string]template.HTML{}, v.frame("")
	for _, p := range all {
		d, err := v.draw(f, p)
		if err != nil {
			return nil, err
		}
		out[p.id] = template.HTML(d.html)
	}
	return out, nil
}

// stream serves the live updates of a page.
func (s *Server) stream(build parts) http.HandlerFunc {
	everything := everywhereToo(build)
	return func(w http.ResponseWriter, r *http.Request) {
		v := &visit{s: s, w: w, r: r}
		if !v.enter() {
			return
		}
		select {
		case s.streams <- struct{}{}:
			defer func() { <-s.streams }()
		default:
			http.Error(w, "too many live pages are open: close some", http.StatusServiceUnavailable)
			return
		}
		rc := http.NewResponseController(w)
		if err := rc.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("X-Accel-Buffering", "no")
		v.live(rc, build, everything)
	}
}

// live sends updates until the browser leaves, the session ends or a write is refused. What went wrong is said by ending: the page
// says that the connection is lost and comes back by itself.
//
// own are the page's own parts, build those and what every page has. A page that was loaded with other parts than there are when its
// stream begins has nothing that they could replace, and is loaded again.
func (v *visit) live(rc *http.ResponseController, own, build parts) {
	all, machine, err := own(v)
	if loaded := v.r.URL.Query().Get("parts"); err == nil && loaded != "" && loaded != idsOf(all) {
		err = errOtherParts
	}
	if err != nil {
		v.over(rc, err)
		return
	}
	ctx, cancel := context.WithCancel(v.ctx())
	defer cancel()
	dirty := make(chan struct{}, 1)
	dirty <- struct{}{} // before the watch, which fills it too
	go v.s.watch(ctx, cancel, machine, dirty)
	st := &liveState{seen: map[string]drawnPart{}}
	beat, peek := time.NewTicker(beatEvery), time.NewTicker(peekEvery)
	defer beat.Stop()
	defer peek.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-peek.C:
			if _, err := v.s.cfg.Accounts.Peek(ctx, v.session.Secret); errors.Is(err, auth.ErrDenied) {
				v.over(rc, fault.New(fault.Denied, "show the page", "", err, "sign in again"))
				return
			}
		case <-beat.C:
			fmt.Fprint(v.w, "event: beat\ndata: .\n\n")
		case <-dirty:
			if err := v.update(st, build); err != nil {
				v.over(rc, err)
				return
			}
		}
		if rc.Flush() != nil {
			return
		}
		pause(ctx, dirty, st)
	}
}

// idsOf are the ids of parts, in their order.
func idsOf(all []part) string {
	ids := make([]string, len(all))
	for i, p := range all {
		ids[i] = p.id
	}
	return strings.Join(ids, ".")
}

// errOtherParts: the page has other parts now than it was loaded with, such as when the first machine comes.
var errOtherParts = errors.New("the page has other parts now")

// over makes the browser load the page again where only that helps: what it shows is gone, is not for this person, or has other parts.
func (v *visit) over(rc *http.ResponseController, err error) {
	if k := fault.Of(err, "", "").Kind; k == fault.NotFound || k == fault.Denied || errors.Is(err, errOtherParts) {
		fmt.Fprint(v.w, "event: over\ndata: .\n\n")
		rc.Flush()
	}
}

// pause holds updates back so that a page is redrawn once in liveEvery, however much happens.
func pause(ctx context.Context, dirty chan struct{}, st *liveState) {
	if !st.sent {
		return
	}
	st.sent = false
	t := time.NewTimer(liveEvery)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// liveState is what one browser shows.
type liveState struct {
	// ids are the parts that the page has.
	ids  string
	seen map[string]drawnPart
	turn int
	sent bool
}

// update sends what differs from what the browser shows.
func (v *visit) update(st *liveState, build parts) error {
	all, _, err := build(v)
	if err != nil {
		return err
	}
	ids := idsOf(all)
	if st.ids != "" && st.ids != ids {
		return errOtherParts
	}
	st.ids = ids
	f := v.frame("")
	var out strings.Builder
	for _, p := range all {
		d, err := v.draw(f, p)
		if err != nil {
			return err
		}
		st.diff(&out, d)
	}
	st.turn++
	st.sent = true
	if out.Len() == 0 {
		_, err = fmt.Fprint(v.w, "event: beat\ndata: .\n\n")
		return err
	}
	for line := range strings.Lines(out.String()) {
		fmt.Fprintf(v.w, "data: %s\n", strings.TrimRight(line, "\r\n"))
	}
	_, err = fmt.Fprint(v.w, "\n")
	return err
}

// diff writes the parts of d that are new to the browser.
func (st *liveState) diff(out *strings.Builder, d drawnPart) {
	old, known := st.seen[d.id]
	st.seen[d.id] = d
	if known && old.sum == d.sum {
		return
	}
	if known && len(d.kids) > 0 && old.order == d.order {
		before := map[string]drawnPart{}
		for _, k := range old.kids {
			before[k.id] = k
		}
		changed := false
		for _, k := range d.kids {
			if was := before[k.id]; was.sum != k.sum {
				st.send(out, k, was.mark != k.mark && k.mark != "")
				changed = true
			}
		}
		if changed {
			return
		}
	}
	st.send(out, d, known && d.mark != "" && old.mark != d.mark)
}

func (st *liveState) send(out *strings.Builder, d drawnPart, marked bool) {
	html := d.html
	if marked {
		html = strings.Replace(html, `class="`, `class="changed-`+string(rune('a'+st.turn%2))+` `, 1)
	}
	fmt.Fprintf(out, "<hx-partial hx-target=\"#%s\" hx-swap=\"outerMorph\">%s</hx-partial>\n", d.id, html)
}

// watch says on dirty that something happened, until ctx ends or the API's stream does; then it ends the page's. The browser says so
// and comes back by itself, and is sent whatever it missed.
func (s *Server) watch(ctx context.Context, end func(), machine string, dirty chan<- struct{}) {
	defer end()
	// The first beat says that the watch stands: what happened between the page's first look and that is in no change.
	stands := false
	err := s.cfg.API.Watch(ctx, api.WatchFrom{Machine: machine}, func(c api.Change) error {
		if c.Kind == api.ChangeBeat && stands {
			return nil
		}
		stands = true
		select {
		case dirty <- struct{}{}:
		default:
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		s.cfg.Log.Info("page's watch ended", "machine", machine, "error", err)
	}
}
