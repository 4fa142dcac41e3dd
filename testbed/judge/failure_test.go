package judge

import (
	"regexp"
	"testing"
)

func TestFailedNeedsStageCauseAndNextStep(t *testing.T) {
	t.Parallel()
	r := Record{State: "failed", Failure: &Failure{Step: "wipe", What: "disk.wipe failed", Why: "no disk has serial S2", Next: "correct the record"},
		Workflow: &Workflow{Steps: []Step{{Name: "wipe", State: "failed"}}}}
	if got := Failed(&r, "wipe", regexp.MustCompile("S2")); !AllOK(got) {
		t.Errorf("got %+v, want all to hold", got)
	}
	silent := r
	silent.Failure = &Failure{Step: "wipe", What: "disk.wipe failed", Why: "no disk has serial S2"}
	active := r
	active.Connected = &Connection{Role: "node"}
	for name, got := range map[string][]Check{
		"another stage": Failed(&r, "deploy", regexp.MustCompile("S2")), "another cause": Failed(&r, "wipe", regexp.MustCompile("S3")),
		"no next step": Failed(&silent, "wipe", regexp.MustCompile("S2")), "a node all the same": Failed(&active, "wipe", regexp.MustCompile("S2")),
		"no failure": Failed(&Record{State: "active"}, "wipe", regexp.MustCompile("S2")),
	} {
		if AllOK(got) {
			t.Errorf("%s: got %+v, want one that does not hold", name, got)
		}
	}
}

func TestToldNeedsEveryWord(t *testing.T) {
	t.Parallel()
	events := []Event{{Kind: "boot.refused", Message: "no machine has this MAC", Fields: map[string]string{"mac": "52:54:00:77:00:01"}}}
	if c := Told(events, "boot.refused", "No machine", "52:54:00:77:00:01"); !c.OK {
		t.Errorf("got %+v, want ok", c)
	}
	if c := Told(events, "boot.refused", "discovery"); c.OK {
		t.Errorf("got %+v, want a failure: the word is missing", c)
	}
	if c := Told(events, "boot.ignored"); c.OK {
		t.Errorf("got %+v, want a failure: the kind is missing", c)
	}
}
