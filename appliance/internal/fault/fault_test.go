package fault

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestLines(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  *Error
		want string
	}{
		{"plain", New(Invalid, "add machine", "m1", errors.New("no MAC"), "give one"),
			"add machine m1|cause: no MAC|next: give one"},
		{"cause that repeats the head", New(Invalid, "add machine", "m1", errors.New(`add machine "m1": no MAC`), "give one"),
			"add machine m1|cause: no MAC|next: give one"},
		{"foreign text makes no line", New(Internal, "show machine", "a\nb", errors.New("x\x1b[2Jy"), ""),
			"show machine a b|cause: x [2Jy|next: see the appliance's log, then try again"},
		{"no object", New(Unavailable, "list machines", "", nil, "wait"), "list machines|cause: unknown|next: wait"},
	} {
		l := tc.err.Lines()
		if got := strings.Join(l[:], "|"); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestJSONKeepsEverything(t *testing.T) {
	in := New(Conflict, "provision", "m1", errors.New("busy"), "wait")
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out Error
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if out.Lines() != in.Lines() || out.Kind != in.Kind {
		t.Errorf("got %+v, want %+v", out, *in)
	}
}

func TestOf(t *testing.T) {
	in := New(NotFound, "show machine", "m1", errors.New("not known"), "list")
	if got := Of(fmt.Errorf("api: %w", in), "x", "y"); got != in {
		t.Errorf("got %v, want the error inside", got)
	}
	if got := Of(errors.New("disk"), "x", "y"); got.Kind != Internal || got.Error() != "x y: disk" {
		t.Errorf("got %v, want an internal error", got)
	}
}

func TestExitCodesDiffer(t *testing.T) {
	seen := map[int]Kind{0: "success"}
	for _, k := range []Kind{Internal, Usage, Invalid, NotFound, Conflict, Denied, Unavailable} {
		if other, ok := seen[k.ExitCode()]; ok {
			t.Errorf("%s and %s share exit code %d", k, other, k.ExitCode())
		}
		seen[k.ExitCode()] = k
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"kind":"usage","op":"a","object":"b","cause":"c","next":"d"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var e Error
		if json.Unmarshal(data, &e) != nil {
			return
		}
		for _, l := range e.Lines() {
			if strings.ContainsAny(l, "\n\r\x1b") {
				t.Errorf("line %q can move the cursor", l)
			}
		}
	})
}
