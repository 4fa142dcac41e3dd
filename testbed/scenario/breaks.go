package scenario

import (
	"context"
	"fmt"
	"regexp"

	"firstlight/testbed/fault"
	"firstlight/testbed/fixtures"
	"firstlight/testbed/judge"
)

// breakKind spoils one link. Everything that it does, it does from outside.
type breakKind struct {
	name string
	what string
	core bool
	// stage is the first one that must fail, for a cause that matches cause.
	stage string
	cause *regexp.Regexp

	// pauseAfter are stages after which paused is called while the machine stands still.
	pauseAfter []string
	// image spoils the image, without leaves boot programs out, serial changes the record's disk serial.
	image   fixtures.Variant
	without []string
	serial  func(string) string
	// setup runs before the appliance starts, enrolled before the machine is provisioned, step with each new record.
	setup    func(r *run) error
	enrolled func(ctx context.Context, r *run) error
	step     func(ctx context.Context, r *run, rec *judge.Record) error
	paused   func(ctx context.Context, r *run, stage string) error
	// judge says what else must hold when the run has ended; the machine stands still, or is off.
	judge func(ctx context.Context, r *run) []judge.Check
}

// hooks are the break's; none at all for nil.
func (b *breakKind) hooks() breakKind {
	if b == nil {
		return breakKind{}
	}
	return *b
}

// breakKinds in the order of the stages where they show.
func breakKinds() []breakKind {
	return []breakKind{
		tftpBreak(), scriptBreak(), assertionBreak(), pinBreak(), workerKeyBreak(), wrongSerialBreak(), manifestBreak(), chunkBreak(), kexecBreak(), tokenBreak(),
	}
}

func breakNames(keep func(breakKind) bool) []string {
	var out []string
	for _, b := range breakKinds() {
		if keep(b) {
			out = append(out, b.name)
		}
	}
	return out
}

func findBreak(name string) *breakKind {
	for _, b := range breakKinds() {
		if b.name == name {
			return &b
		}
	}
	return nil
}

// judgeBreak looks at a run that must have failed: where, why, and what must not have happened.
func (r *run) judgeBreak(ctx context.Context) error {
	b := r.spoil
	if err := r.pause(ctx); err != nil {
		return err
	}
	first := "none"
	if s := r.record.FirstFailed(); s != nil {
		first = s.Name
	}
	r.add(judge.Of("break: first failed stage", first == b.stage && r.record.State == "failed", "first failed stage is %s (want %s), machine is %s", first, b.stage, r.record.State))
	r.add(judge.Of("break: cause is named", b.cause.MatchString(r.record.Cause()), "%s", r.record.Cause()))
	f := r.record.Failure
	r.add(judge.Of("break: failure says what to do next", f != nil && f.What != "" && f.Why != "" && f.Next != "", "%s", next(f)))
	r.add(judge.Of("break: machine is no node", r.record.Workflows == 1 && (r.record.Connected == nil || r.record.Connected.Role != "node"),
		"%d workflows, session of boot %s", r.record.Workflows, bootOf(r.record)))
	if b.judge != nil {
		r.add(b.judge(ctx, r)...)
	}
	return nil
}

func next(f *judge.Failure) string {
	if f == nil {
		return "record has no failure"
	}
	return f.Next
}

func tftpBreak() breakKind {
	return breakKind{
		name: "tftp", what: "the boot program is missing on the site", stage: "tftp",
		cause: regexp.MustCompile(regexp.QuoteMeta(fixtures.UEFIProgram)), without: []string{fixtures.UEFIProgram},
		judge: func(ctx context.Context, r *run) []judge.Check {
			s, t, err := r.trace(ctx, r.machine)
			if err != nil {
				return []judge.Check{judge.Fail("packets", "%v", err)}
			}
			refused := 0
			for _, x := range t.TFTP {
				if x.Error != "" && x.Bytes == 0 {
					refused++
				}
			}
			return append(r.untouched(ctx), judge.Of("packets: TFTP refused", refused > 0 && len(s.Scripts(t)) == 0,
				"%d requests answered by an error, %d scripts asked for", refused, len(s.Scripts(t))))
		},
	}
}

func wrongSerialBreak() breakKind {
	return breakKind{
		name: "wrong-serial", what: "the record's disk serial ends in another digit than the disk's", core: true, stage: "wipe",
		cause:  regexp.MustCompile(`(?s)FLT[0-9a-f]+4.*FLT[0-9a-f]+5|FLT[0-9a-f]+5.*FLT[0-9a-f]+4`),
		serial: func(s string) string { return s[:len(s)-1] + "4" },
		judge:  func(ctx context.Context, r *run) []judge.Check { return r.untouched(ctx) },
	}
}

func kexecBreak() breakKind {
	const kernel = "/vmlinuz"
	return breakKind{
		name: "kexec", what: "the image lacks its kernel", stage: "kexec", cause: regexp.MustCompile(`vmlinuz`),
		image: fixtures.Variant{Name: "no-kernel", Spoil: func(ctx context.Context, raw string) error { return fault.RemoveFromESP(ctx, raw, kernel) }},
		judge: func(_ context.Context, r *run) []judge.Check {
			serial, err := judge.ReadSerial(r.serialPath())
			if err != nil {
				return []judge.Check{judge.Fail("serial", "%v", err)}
			}
			return []judge.Check{judge.Of("serial: no deployed system", judge.OSLine.FindString(serial) == "", "the deployed system's line is %q", judge.OSLine.FindString(serial)),
				named("deploy: ", judge.NoTrace(r.disk().path, r.disk().pattern))}
		},
	}
}

func workerKeyBreak() breakKind {
	var stranger string
	return breakKind{
		name: "worker-key", what: "commands are signed by a key outside the trust bundle", core: true, stage: "wipe",
		cause: regexp.MustCompile(`(?i)untrusted|not trusted|trust`), pauseAfter: []string{"inventory"},
		// The boot commands go to the site's agent, which checks them too: so the key changes when the machine has joined.
		paused: func(ctx context.Context, r *run, _ string) error {
			if err := r.stopServe(); err != nil {
				return err
			}
			var err error
			if stranger, err = fault.StrangeWorker(r.pkiDir()); err != nil {
				return err
			}
			return r.startServe(ctx)
		},
		judge: func(ctx context.Context, r *run) []judge.Check {
			state, key := "none", ""
			if s := r.record.Step("wipe"); s != nil {
				for _, c := range s.Commands {
					if c.Kind == "disk.wipe" {
						state, key = c.State, c.KeyID
					}
				}
			}
			return append(r.untouched(ctx), judge.Of("record: command was rejected", state == "rejected" && key == stranger,
				"disk.wipe is %s, signed by %s; the stranger's key is %s", state, key, stranger))
		},
	}
}

// spoiled is the check that a fault was met.
func spoiled(what string, paths []string) judge.Check {
	return judge.Of("fault was met", len(paths) > 0, "%d answers spoiled (%s)", len(paths), what)
}

func errorText(err error) string {
	if err == nil {
		return "no error"
	}
	return fmt.Sprint(err)
}
