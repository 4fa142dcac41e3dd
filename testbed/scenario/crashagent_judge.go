package scenario

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"firstlight/testbed/judge"
	"firstlight/testbed/qemu"
)

// judgeEnd gives the machine power again and judges how the workflow ends. The disk's file is looked at before, while nothing runs.
func (r *run) judgeEnd(ctx context.Context, m *machine, d death, prefix string, from int64, died time.Time) error {
	if !d.alone {
		for _, c := range d.bytes(r, m) {
			r.add(named(prefix, c))
		}
	}
	if err := m.comeBack(ctx, d); err != nil {
		return err
	}
	waits, err := r.awaitEnd(ctx, m)
	if err != nil {
		return err
	}
	took := time.Since(died)
	for _, c := range judge.Failed(m.record, d.stage, d.cause) {
		r.add(named(prefix, c))
	}
	r.add(judge.Of(prefix+"it ends in time", took <= d.within, "%.0f s after the death, at most %s", took.Seconds(), d.within))
	if !d.alone && d.back == "" {
		r.add(judge.Of(prefix+"the waiting says since when and until when", slices.ContainsFunc(waits, waitingSaid.MatchString), "it waited for: %q", waits))
	}
	r.add(m.saysItHolds(prefix, d.holds))
	if d.alone {
		return r.judgeStill(ctx, m, d, prefix)
	}
	return r.judgeNoSystem(m, prefix, from)
}

// awaitEnd returns when the workflow is over, with what it waited for until then.
func (r *run) awaitEnd(ctx context.Context, m *machine) (waits []string, err error) {
	for {
		rec, err := r.show(ctx, m)
		if err != nil {
			return nil, err
		}
		m.say.record(rec)
		if rec.Waiting != nil && !slices.Contains(waits, rec.Waiting.For) {
			waits = append(waits, rec.Waiting.For)
			m.say.say("           waits for %s", rec.Waiting.For)
		}
		if slices.Contains(over, rec.State) {
			return waits, nil
		}
		if err := r.wait(ctx, rec); err != nil {
			return nil, err
		}
	}
}

// saysItHolds compares the record's word on the target with what it must be.
func (m *machine) saysItHolds(prefix, holds string) judge.Check {
	for _, d := range m.record.DiskState {
		if d.Serial == m.disk().serial {
			return judge.Of(prefix+"the record says what the disk holds", d.Holds == holds && d.Why != "", "disk %s holds %s: %s", d.Serial, d.Holds, d.Why)
		}
	}
	return judge.Fail(prefix+"the record says what the disk holds", "it says nothing of disk %s", m.disk().serial)
}

// judgeStill checks that a machine whose agent was killed writes nothing any more, and its disk.
func (r *run) judgeStill(ctx context.Context, m *machine, d death, prefix string) error {
	before, err := m.counters(ctx)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(quietTime):
	}
	after, err := m.counters(ctx)
	if err != nil {
		return err
	}
	b, a := before[m.box.target], after[m.box.target]
	r.add(judge.Of(prefix+"nothing is written afterwards", a.WriteOps == b.WriteOps && a.UnmapOps == b.UnmapOps,
		"%d more writes and %d more discards within %s", a.WriteOps-b.WriteOps, a.UnmapOps-b.UnmapOps, quietTime))
	if err := m.pause(ctx); err != nil {
		return err
	}
	for _, c := range d.bytes(r, m) {
		r.add(named(prefix, c))
	}
	return nil
}

// judgeNoSystem checks that no deployed system started since that place of the serial log.
func (r *run) judgeNoSystem(m *machine, prefix string, from int64) error {
	serial, err := judge.ReadSerial(m.serialPath())
	if err != nil {
		return err
	}
	line := judge.OSLine.FindString(serial[min(int(from), len(serial)):])
	r.add(judge.Of(prefix+"no system starts from the disk", line == "", "%d bytes on the serial line since the death; a system's line: %q", len(serial)-int(from), line))
	return nil
}

// judgeCameBack judges a machine that lost its power after its deploy: it starts the installed system from its disk and is a node.
func (r *run) judgeCameBack(ctx context.Context, m *machine, stage string, from int64) error {
	prefix := m.name + ": " + stage + ": "
	kexec := m.record.Step("kexec")
	r.add(judge.Of(prefix+"the machine becomes active", m.record.State == "active", "machine is %s: %s", m.record.State, m.record.Cause()))
	if m.record.State != "active" || kexec == nil {
		return nil
	}
	r.add(judge.Of(prefix+"the record says how it went", stage != "kexec" || kexec.Why != "", "kexec is %s: %q", kexec.State, kexec.Why))
	waiting, cancel := context.WithTimeout(ctx, serialLimit)
	defer cancel()
	words, _, err := qemu.WaitSerial(waiting, m.serialPath(), judge.OSLine, from)
	if err != nil {
		r.add(judge.Fail(prefix+"the installed system starts from the disk", "%v", err))
		return ctx.Err()
	}
	os, err := judge.ParseOS(words)
	if err != nil {
		return err
	}
	r.add(judge.Of(prefix+"the installed system starts from the disk", os.Nonce == r.image.Nonce && os.DiskSerial == m.disk().serial,
		"nonce %s (image has %s), root on disk %s (ours is %s)", os.Nonce, r.image.Nonce, os.DiskSerial, m.disk().serial))
	if err := r.awaitSession(ctx, m, os.BootID); err != nil {
		return err
	}
	r.add(judge.Of(prefix+"its node agent has a session of that boot", bootOf(m.record) == os.BootID, "session of boot %s, serial line says %s", bootOf(m.record), os.BootID))
	r.add(m.saysItHolds(prefix, holdsImage))
	return nil
}

// stillPattern: nothing was written.
func stillPattern(_ *run, m *machine) []judge.Check {
	return []judge.Check{judge.Untouched(m.disk().path, m.disk().pattern)}
}

// halfPattern: a wipe began and did not end, from outside: some of the pattern is gone, and some is left.
func halfPattern(_ *run, m *machine) []judge.Check {
	d := m.disk()
	whole, none := judge.Untouched(d.path, d.pattern), judge.NoTrace(d.path, d.pattern)
	return []judge.Check{
		judge.Of("the disk is partly wiped", !whole.OK && !none.OK, "%s; %s", whole.Detail, none.Detail),
		judge.AllZero("disk starts nothing", d.path, 0, 1<<20),
	}
}

// allClean: no trace is left.
func allClean(_ *run, m *machine) []judge.Check {
	return []judge.Check{judge.NoTrace(m.disk().path, m.disk().pattern), judge.AllZero("disk is all zero", m.disk().path, 0, 0)}
}

// startsNothing: a deploy began and did not end: there is something of the image, and no copy of its partition table.
func startsNothing(_ *run, m *machine) []judge.Check {
	d := m.disk()
	all := judge.AllZero("", d.path, 0, 0)
	return []judge.Check{
		judge.Of("the disk is partly written", !all.OK, "%s", all.Detail),
		judge.AllZero("disk starts no half system: its start", d.path, 0, 1<<20),
		judge.AllZero("disk starts no half system: its end", d.path, -(1 << 20), 0),
		judge.NoTrace(d.path, d.pattern),
	}
}

// runsAlready: the installed system has started, and writes as it likes; its disk is judged by what it starts next.
func runsAlready(*run, *machine) []judge.Check { return nil }

// wholeImage: every byte of the image is there before its system first runs.
func wholeImage(r *run, m *machine) []judge.Check {
	var out []judge.Check
	for _, c := range judge.Deployed(m.disk().path, r.image.Manifest, filepath.Join(r.image.Dir, "blobs")) {
		out = append(out, named(fmt.Sprintf("disk %s: ", m.disk().serial), c))
	}
	return out
}
