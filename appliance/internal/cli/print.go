package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"firstlight/appliance/internal/executor"
	"firstlight/appliance/internal/fleet"
	"firstlight/appliance/internal/images"
)

// marks show a step's state at a glance, on any terminal.
var marks = map[fleet.StepState]string{
	fleet.StepCancelled: "x", fleet.StepPending: ".", fleet.StepRunning: ">", fleet.StepPaused: "=", fleet.StepDone: "+", fleet.StepFailed: "!", fleet.StepSkipped: "-",
}

// clock is the time of day, UTC; the date is in the first line.
func clock(t fleet.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("15:04:05")
}

func day(t fleet.Time) string { return t.UTC().Format("2006-01-02 15:04:05") + " UTC" }

// plain keeps text from the wire from making lines or moving the cursor.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, s)
}

// size is bytes for people.
func size(n int64) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%d MiB", (n+1<<19)>>20)
}

func showMachine(w io.Writer, m fleet.Machine) {
	fmt.Fprintf(w, "%s: %s%s\n", m.Name, m.State, with(m))
	if x := m.Waiting; x != nil {
		fmt.Fprintf(w, "waiting for %s, since %s%s\n", plain(x.For), clock(x.Since), until(x.Until))
		fmt.Fprintf(w, "next: %s\n", plain(x.Next))
	}
	if f := m.Failure; f != nil {
		fmt.Fprintf(w, "failed at %s: %s\ncause: %s\nnext: %s\n", f.Step, plain(f.What), plain(f.Why), plain(f.Next))
	}
	if x := m.Cancel; x != nil {
		verb := "cancelled"
		if x.Outcome == "" {
			verb = "cancel ordered"
		}
		fmt.Fprintf(w, "%s at %s by %s: %s\n", verb, x.Step, plain(x.By), plain(dash(x.Reason)))
		if x.Outcome != "" {
			fmt.Fprintf(w, "outcome: %s\nnext: %s\n", plain(x.Outcome), plain(x.Next))
		}
	}
	if m.Protected != nil {
		fmt.Fprintln(w, plain(m.Protected.String()))
	}
	for _, a := range m.Alarms {
		fmt.Fprintf(w, "alarm %s: %s\n", day(a.Time), plain(a.Text))
	}
	if m.Workflow != nil {
		fmt.Fprintln(w)
		showSteps(w, m.Workflow.Steps)
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	defer t.Flush()
	for _, row := range facts(m) {
		if row[1] != "" {
			fmt.Fprintf(t, "%s\t%s\n", row[0], plain(row[1]))
		}
	}
}

func with(m fleet.Machine) string {
	if m.Workflow == nil {
		return ""
	}
	return fmt.Sprintf(", image %s, workflow %s since %s", m.Image, m.Workflow.ID, day(m.Workflow.Started))
}

func until(t fleet.Time) string {
	if t.IsZero() {
		return ", without limit"
	}
	return ", until " + clock(t)
}

func showSteps(w io.Writer, steps []fleet.Step) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	defer t.Flush()
	for _, s := range steps {
		fmt.Fprintf(t, "%s %s\t%s\t%s\t%s\t%s\n", marks[s.State], s.Name, s.State, clock(s.Start), took(s), plain(s.Why+progress(s)))
	}
}

func took(s fleet.Step) string {
	if s.Start.IsZero() || s.End.IsZero() {
		return ""
	}
	return fmt.Sprintf("%.1f s", s.End.Sub(s.Start.Time).Round(100*time.Millisecond).Seconds())
}

// progress of the command that a running step waits for.
func progress(s fleet.Step) string {
	for _, c := range s.Commands {
		p := c.Progress
		if s.State != fleet.StepRunning || c.State != fleet.CommandRunning || p == nil {
			continue
		}
		if p.Unit == "bytes" {
			return fmt.Sprintf("%s: %s of %s", p.What, size(int64(p.Done)), size(int64(p.Total)))
		}
		return fmt.Sprintf("%s: %d of %d %s", p.What, p.Done, p.Total, p.Unit)
	}
	return ""
}

func facts(m fleet.Machine) [][2]string {
	session := "none"
	if c := m.Connected; c != nil {
		session = fmt.Sprintf("as %s since %s, boot %s", c.Role, day(c.Since), c.BootID)
	}
	rows := [][2]string{
		{"node", m.NodeID}, {"node key", m.NodeKeyID}, {"session", session}, {"MACs", strings.Join(m.MACs, " ")}, {"UUID", m.UUID},
		{"disks", strings.Join(m.DiskSerials, " ")}, {"BMC", controller(m.BMC)},
	}
	if m.Firmware != "" {
		rows = append(rows, [2]string{"boots by", m.Firmware + ", as a person said: network boots order it at the BMC"})
	}
	for _, d := range m.DiskState {
		since := ""
		if !d.Since.IsZero() {
			since = " since " + day(d.Since)
		}
		rows = append(rows, [2]string{"disk " + plain(d.Serial), "holds " + d.Holds + since + ": " + d.Why})
	}
	if h := m.Hardware; h != nil {
		rows = append(rows, [2]string{"hardware", strings.TrimSpace(h.Manufacturer + " " + h.Product)}, [2]string{"serial", h.Serial},
			[2]string{"firmware", strings.TrimSpace(h.FirmwareMode + " " + h.FirmwareVersion)})
	}
	return rows
}

func controller(b fleet.BMC) string {
	if b.URL == "" {
		return ""
	}
	return b.User + " at " + b.URL
}

func listDiscovered(w io.Writer, all []fleet.Machine) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no discovered machines; unknown machines are booted only with boot.discovery = true")
		return
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "NAME\tMAC\tSERIAL\tPRODUCT\tDISKS\tSINCE")
	for _, m := range all {
		h := m.Hardware
		if h == nil {
			h = &fleet.Hardware{}
		}
		disks := []string{}
		for _, d := range h.Disks {
			disks = append(disks, d.Serial)
		}
		since := ""
		if m.Waiting != nil {
			since = day(m.Waiting.Since)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", m.Name, dash(strings.Join(m.MACs, " ")), dash(plain(h.Serial)),
			dash(plain(strings.TrimSpace(h.Manufacturer+" "+h.Product))), dash(plain(strings.Join(disks, " "))), since)
	}
}

func showPreview(w io.Writer, p executor.Preview) {
	fmt.Fprintf(w, "would install image %s on machine %s (%s), MACs %s, by its controller %s\n", p.Image, p.Machine, p.NodeID, strings.Join(p.MACs, " "), controller(p.BMC))
	for _, d := range p.Disks {
		fmt.Fprintf(w, "disk %s would be %s; model %s, %s, holds %s\n", plain(d.Serial), d.Would, dash(plain(d.Model)), size(int64(d.SizeBytes)), d.Holds)
		if d.Doubt != "" {
			fmt.Fprintf(w, "  doubt: %s\n", plain(d.Doubt))
		}
	}
	fmt.Fprintln(w, "no other disk would be written; nothing was sent")
}

func listMachines(w io.Writer, all []fleet.Machine) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no machines yet; add one with `firstlight machine add`")
		return
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "NAME\tSTATE\tIMAGE\tMAC\tNOW")
	for _, m := range all {
		what := ""
		switch {
		case m.Failure != nil:
			what = m.Failure.Step + ": " + m.Failure.Why
		case m.Cancel != nil && m.Waiting == nil:
			what = "cancelled at " + m.Cancel.Step + ": " + m.Cancel.Outcome
		case m.Waiting != nil:
			what = "waiting for " + m.Waiting.For
		}
		if m.Protected != nil {
			what = strings.TrimSuffix("protected; "+what, "; ")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", m.Name, m.State, dash(m.Image), dash(strings.Join(m.MACs, " ")), plain(what))
	}
}

func listImages(w io.Writer, all []images.Image) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no images yet; add one with `firstlight image add`")
		return
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "NAME\tSIZE\tSTORED\tADDED\tMANIFEST")
	for _, i := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", i.Name, size(i.RawSize), size(i.StoredSize), day(fleet.At(i.Added)), i.ManifestSHA256)
	}
}

func listEvents(w io.Writer, all []fleet.Event) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no events yet")
		return
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	defer t.Flush()
	for _, e := range all {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", day(e.Time), dash(plain(e.Machine)), plain(e.Kind), plain(e.Message))
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
