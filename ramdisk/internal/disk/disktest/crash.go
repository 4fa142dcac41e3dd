package disktest

import (
	"bytes"
	"math/rand/v2"

	"firstlight/ramdisk/internal/disk"
)

// Hold stops a disk in the middle of its work.
type Hold struct {
	// Reached is closed when a change is held.
	Reached <-chan struct{}

	off     int64
	reached chan struct{}
	release chan struct{}
}

// Release lets the held change, and all later ones, go on. It may be called once.
func (h *Hold) Release() { close(h.release) }

// HoldAt holds the first write, zeroing or discard that reaches beyond off until Release.
func (d *Disk) HoldAt(off int64) *Hold {
	h := &Hold{off: off, reached: make(chan struct{}), release: make(chan struct{})}
	h.Reached = h.reached
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hold = h
	return h
}

// wait holds a change that ends at end. The caller holds the lock, which is given up meanwhile.
func (d *Disk) wait(end int64) {
	h := d.hold
	if h == nil || end <= h.off {
		return
	}
	d.hold = nil
	close(h.reached)
	d.mu.Unlock()
	<-h.release
	d.mu.Lock()
}

// Cached gives the disk a write cache that only Flush empties.
func (d *Disk) Cached() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stable = bytes.Clone(d.data)
	return d
}

// tornBlock is the unit in which a write cache is lost.
const tornBlock = 4096

// PowerCut ends every handle, and loses of what was not flushed each block or not, by seed. The disk is there again at once, as
// another device instance.
func (d *Disk) PowerCut(seed uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut(seed)
}

// CutBefore cuts the power by seed instead of the nth change from now on, counted from 1; 0 takes that back.
func (d *Disk) CutBefore(n int, seed uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes, d.seed = n, seed
}

// cutNow counts a change. The caller holds the lock.
func (d *Disk) cutNow() {
	if d.changes == 0 {
		return
	}
	if d.changes--; d.changes == 0 {
		d.cut(d.seed)
	}
}

// cut cuts. The caller holds the lock.
func (d *Disk) cut(seed uint64) {
	d.life++
	d.open = 0
	if d.stable != nil {
		r := rand.New(rand.NewPCG(seed, 0))
		for off := 0; off < len(d.data); off += tornBlock {
			end := min(off+tornBlock, len(d.data))
			if r.IntN(2) == 0 {
				copy(d.data[off:end], d.stable[off:end])
			}
		}
		copy(d.stable, d.data)
	}
	d.identity.Sequence++
	d.Info.Sequence = d.identity.Sequence
}

// Kill ends every handle, as the death of its process does; the disk itself loses nothing.
func (d *Disk) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.life++
	d.open = 0
}

// Blocks sets the logical block size.
func (d *Disk) Blocks(n int) *Disk {
	d.Info.LogicalBlock, d.identity.LogicalBlock = n, n
	return d
}

// At sets the disk's address.
func (d *Disk) At(address string) *Disk {
	d.Info.Address, d.identity.Address = address, address
	return d
}

var _ disk.Reader = (*Machine)(nil)
