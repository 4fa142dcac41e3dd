package wipe

import (
	"fmt"
	"strings"
	"sync"

	"firstlight/ramdisk/internal/disk"
)

// Progress is how far a command is.
type Progress struct {
	// Done is out of Total bytes of all disks, each written once and read back once.
	Done, Total int64
	Disks       []DiskProgress
}

// DiskProgress is one disk of it.
type DiskProgress struct {
	Disk disk.Disk
	// Done is out of twice the disk's size: writing, then reading back.
	Done int64
	// Begun says that the disk's turn has come.
	Begun bool
	// Outcome is empty while the disk is worked on.
	Outcome string
}

// phase is what is done to the disk now.
func (p DiskProgress) phase() string {
	switch {
	case p.Outcome != "":
		return p.Outcome
	case !p.Begun:
		return "waiting"
	case p.Done <= p.Disk.Size:
		return "erasing"
	}
	return "reading back"
}

func (p DiskProgress) String() string {
	name := p.Disk.Serial
	if name == "" {
		name = p.Disk.WWN
	}
	switch done := p.Done; p.phase() {
	case "erasing":
		return fmt.Sprintf("%s erasing %d %%", name, percent(done, p.Disk.Size))
	case "reading back":
		return fmt.Sprintf("%s reading back %d %%", name, percent(done-p.Disk.Size, p.Disk.Size))
	}
	return name + " " + p.phase()
}

func percent(n, of int64) int64 {
	if of <= 0 {
		return 0
	}
	return int64(float64(n) / float64(of) * 100)
}

// maxNamed bounds the disks that one line of progress names.
const maxNamed = 8

// String names each disk: "FL-A reading back 40 %, FL-B clean". Of more than maxNamed those that are worked on come first.
func (p Progress) String() string { return p.line(DiskProgress.String) }

// Phases is String without numbers: it changes when something for people happens.
func (p Progress) Phases() string {
	return p.line(func(d DiskProgress) string { return d.Disk.Serial + d.Disk.WWN + " " + d.phase() })
}

func (p Progress) line(word func(DiskProgress) string) string {
	var busy, rest []string
	for _, d := range p.Disks {
		if ph := d.phase(); len(p.Disks) > maxNamed && ph != "erasing" && ph != "reading back" {
			rest = append(rest, word(d))
		} else {
			busy = append(busy, word(d))
		}
	}
	all := append(busy, rest...)
	if len(all) > maxNamed {
		all = append(all[:maxNamed], fmt.Sprintf("and %d more", len(all)-maxNamed))
	}
	return strings.Join(all, ", ")
}

// progress collects what the disks' goroutines tell.
type progress struct {
	mu  sync.Mutex
	now Progress
	cmd Command
}

func newProgress(cs []*disk.Claimed, cmd Command) *progress {
	p := &progress{cmd: cmd}
	for _, c := range cs {
		p.now.Total += 2 * c.Disk.Size
		p.now.Disks = append(p.now.Disks, DiskProgress{Disk: c.Disk})
	}
	return p
}

func (p *progress) begin(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.Disks[i].Begun = true
	p.tell()
}

func (p *progress) set(i int, done int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.Disks[i].Done = done
	p.tell()
}

func (p *progress) end(i int, r DiskResult) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.Disks[i].Outcome = r.Outcome
	p.tell()
	if p.cmd.Ended != nil {
		p.cmd.Ended(r)
	}
}

// tell passes a copy on. The caller holds the lock.
func (p *progress) tell() {
	if p.cmd.Progress == nil {
		return
	}
	out := Progress{Total: p.now.Total, Disks: append([]DiskProgress(nil), p.now.Disks...)}
	for _, d := range out.Disks {
		out.Done += d.Done
	}
	p.cmd.Progress(out)
}
