package qemu

import (
	"encoding/json"
	"testing"
)

func TestKeyArguments(t *testing.T) {
	t.Parallel()
	got, err := json.Marshal(keyArguments([]string{"alt", "sysrq", "f"}))
	const want = `{"keys":[{"type":"qcode","data":"alt"},{"type":"qcode","data":"sysrq"},{"type":"qcode","data":"f"}]}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}
