package web

import (
	"strings"
	"testing"
)

func kid(id, text, mark string) drawnPart {
	html := `<tr class="row" id="` + id + `">` + text + `</tr>`
	return drawnPart{id: id, html: html, sum: digest(html), mark: mark}
}

func rowsOf(kids ...drawnPart) drawnPart {
	d := drawnPart{id: "rows", kids: kids}
	for _, k := range kids {
		d.order += k.id + " "
		d.html += k.html
	}
	d.html = `<tbody class="list" id="rows">` + d.html + `</tbody>`
	d.sum = digest(d.html)
	return d
}

func TestLiveSendsWhatChanged(t *testing.T) {
	t.Parallel()
	st := &liveState{seen: map[string]drawnPart{}}
	send := func(d drawnPart) string {
		var out strings.Builder
		st.diff(&out, d)
		st.turn++
		return out.String()
	}
	if got := send(rowsOf(kid("a", "1", "x"), kid("b", "2", "x"))); !strings.Contains(got, `hx-target="#rows"`) || strings.Contains(got, "changed-") {
		t.Errorf("at first the whole list comes, without a mark: %q", got)
	}
	if got := send(rowsOf(kid("a", "1", "x"), kid("b", "2", "x"))); got != "" {
		t.Errorf("nothing changed and %q was sent", got)
	}
	got := send(rowsOf(kid("a", "1", "x"), kid("b", "3", "x")))
	if !strings.Contains(got, `hx-target="#b"`) || strings.Contains(got, `#a"`) || strings.Contains(got, "changed-") {
		t.Errorf("progress comes alone and unmarked: %q", got)
	}
	first := send(rowsOf(kid("a", "1", "x"), kid("b", "4", "y")))
	second := send(rowsOf(kid("a", "1", "x"), kid("b", "5", "z")))
	if !strings.Contains(first, `class="changed-`) || !strings.Contains(second, `class="changed-`) || strings.Contains(first, "changed-a") == strings.Contains(second, "changed-a") {
		t.Errorf("two changes of state are marked one after the other:\n%q\n%q", first, second)
	}
	if got := send(rowsOf(kid("b", "5", "z"))); !strings.Contains(got, `hx-target="#rows"`) {
		t.Errorf("a row less sends the list: %q", got)
	}
}

func TestWhatAMomentIsCalledIsNoChange(t *testing.T) {
	t.Parallel()
	a := digest(`<p><time datetime="x" data-say="ago">2 min ago</time> <input name="key" value="k-00ff"></p>`)
	b := digest(`<p><time datetime="x" data-say="ago">3 min ago</time> <input name="key" value="k-11aa"></p>`)
	c := digest(`<p><time datetime="y" data-say="ago">3 min ago</time> <input name="key" value="k-11aa"></p>`)
	if a != b || b == c {
		t.Error("the digest follows the words of a moment, or not the moment")
	}
}
