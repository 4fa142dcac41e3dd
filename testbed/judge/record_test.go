package judge

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// activeRecord is a record of a machine that went the whole way, as the control plane prints it.
func activeRecord(t *testing.T) *Record {
	t.Helper()
	var steps []string
	for i, stage := range Stages {
		var commands []string
		kinds := map[string][]string{"wipe": {"disk.wipe"}, "diag": {"diag.nvml", "diag.dcgm"}, "deploy": {"deploy.image"},
			"kexec": {"boot.kexec"}, "active": {"inventory.refresh"}}[stage]
		for j, kind := range kinds {
			commands = append(commands, fmt.Sprintf(`{"id":"c%d-%d","kind":%q,"key_id":"K","issued":"2026-05-01T12:%02d:00.000Z","ended":"2026-05-01T12:%02d:01.000Z",
				"state":"succeeded","message":"skipped: no GPU","attested":true,"progress":null}`, i, j, kind, i, i))
		}
		state := "done"
		if stage == "diag" {
			state = "skipped"
		}
		steps = append(steps, fmt.Sprintf(`{"name":%q,"state":%q,"why":"skipped: no GPU","start":"2026-05-01T12:%02d:00.000Z","end":"2026-05-01T12:%02d:02.000Z","commands":[%s]}`,
			stage, state, i, i, strings.Join(commands, ",")))
	}
	text := `{"name":"m","state":"active","node_key_id":"N","connected":{"role":"node","boot_id":"b"},"workflows":1,"workflow":{"state":"done","steps":[` +
		strings.Join(steps, ",") + `]}}`
	var r Record
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

func TestActiveRecord(t *testing.T) {
	t.Parallel()
	if bad := names(Active(activeRecord(t))); bad != "" {
		t.Fatal(bad)
	}
	for name, c := range map[string]struct {
		spoil func(r *Record)
		want  string
	}{
		"not active":          {func(r *Record) { r.State = "provisioning" }, "record: active"},
		"session as ram disk": {func(r *Record) { r.Connected.Role = "ramdisk" }, "record: active"},
		"no node key":         {func(r *Record) { r.NodeKeyID = "" }, "record: active"},
		"step missing":        {func(r *Record) { r.Workflow.Steps = r.Workflow.Steps[1:] }, "record: every step"},
		"step without end":    {func(r *Record) { r.Step("join").End = nil }, "record: every step"},
		"steps out of order":  {func(r *Record) { r.Step("kexec").End = r.Step("kexec").Start }, ""},
		"silent skip":         {func(r *Record) { r.Step("tftp").State, r.Step("tftp").Why = "skipped", "" }, "record: every step"},
		"unsigned command":    {func(r *Record) { r.Step("wipe").Commands[0].KeyID = "" }, "record: signed commands"},
		"not attested":        {func(r *Record) { r.Step("deploy").Commands[0].Attested = false }, "record: signed commands"},
		"no wipe":             {func(r *Record) { r.Step("wipe").Commands = nil }, "record: signed commands"},
		"no refresh":          {func(r *Record) { r.Step("active").Commands = nil }, "record: signed commands"},
		"GPU test passed":     {func(r *Record) { r.Step("diag").State = "done" }, "record: no GPU"},
	} {
		r := activeRecord(t)
		c.spoil(r)
		bad := names(Active(r))
		if c.want != "" && !strings.Contains(bad, c.want) {
			t.Errorf("%s: complaints %q, want one about %q", name, bad, c.want)
		}
	}
}

func TestFirstFailedFollowsTheOrderOfStages(t *testing.T) {
	t.Parallel()
	r := activeRecord(t)
	r.Step("deploy").State = "failed"
	r.Step("script").State = "failed"
	if got := r.FirstFailed(); got == nil || got.Name != "script" {
		t.Errorf("first failed step = %+v, want script", got)
	}
	if !r.Over("script") || !r.Reached("wipe") || r.Over("none") {
		t.Error("Over and Reached disagree with the steps' states")
	}
}

func TestCauseSaysThingsOnce(t *testing.T) {
	t.Parallel()
	r := &Record{Failure: &Failure{Step: "wipe", What: "wipe disk FLT2: no disk has this serial number; there is FLT1", Why: "no disk has this serial number; there is FLT1"}}
	if got := r.Cause(); strings.Count(got, "there is FLT1") != 1 || !strings.HasPrefix(got, "wipe: ") {
		t.Errorf("cause = %q, want the step first and the cause once", got)
	}
}
