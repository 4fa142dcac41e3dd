package wipe

import (
	"sync"

	"firstlight/ramdisk/internal/disk"
)

// Ledger remembers which disks were proven clean in this boot, by which workflow. The zero value is empty and ready. Anything that
// begins to write to a disk forgets it first.
type Ledger struct {
	mu    sync.Mutex
	clean map[entry]bool
}

type entry struct {
	workflow, serial, wwn string
	namespace             uint32
	sequence              uint64
	size                  int64
}

func key(workflow string, d disk.Disk) entry {
	return entry{workflow, d.Serial, d.WWN, d.Namespace, d.Sequence, d.Size}
}

// Record notes a clean disk.
func (l *Ledger) Record(workflow string, d disk.Disk) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.clean == nil {
		l.clean = map[entry]bool{}
	}
	l.clean[key(workflow, d)] = true
}

// Take says whether the workflow found the disk clean, and forgets it for every workflow: its caller is about to write.
func (l *Ledger) Take(workflow string, d disk.Disk) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := workflow != "" && l.clean[key(workflow, d)]
	for k := range l.clean {
		if k.sequence == d.Sequence && k.serial == d.Serial && k.wwn == d.WWN && k.namespace == d.Namespace {
			delete(l.clean, k)
		}
	}
	return was
}
