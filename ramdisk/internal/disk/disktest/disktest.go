// Package disktest is the twin of the machine's disks: disks in memory that lie, fail, vanish and swap their names on demand, and
// the conformance suite that every Device must pass.
//
// It is for tests only; nothing in production imports it.
package disktest

import (
	"errors"
	"io"
	"sync"

	"firstlight/ramdisk/internal/disk"
)

// ErrIO is what a failing medium answers.
var ErrIO = errors.New("input/output error")

// ErrGone is what a removed device answers.
var ErrGone = errors.New("no such device")

// Faults spoil a Disk. The zero value is an honest disk.
type Faults struct {
	// ZeroOutKeeps, DiscardKeeps and WriteKeeps answer success and keep the old data. ZeroOutKeeps may be undone by a write.
	ZeroOutKeeps, DiscardKeeps, WriteKeeps bool
	// DiscardHalf zeroes the first half of a discarded range only.
	DiscardHalf bool
	// NoZeroOut and NoDiscard say that the device cannot.
	NoZeroOut, NoDiscard bool
	// WriteErrorFrom makes writes and zeroing that reach this offset fail; 0 is off.
	WriteErrorFrom int64
	// FlushErrorAfter fails Flush once that many bytes were changed; 0 is off.
	FlushErrorAfter int64
	// ShortWriteAt makes the write that covers this offset accept half of its bytes without an error; 0 is off.
	ShortWriteAt int64
	// ReadErrorFrom makes reads that reach this offset fail; 0 is off.
	ReadErrorFrom int64
	// GoneAfter removes the device after that many changed bytes; 0 is off.
	GoneAfter int64
}

// Disk is one disk in memory.
type Disk struct {
	Info disk.Disk

	mu       sync.Mutex
	data     []byte
	faults   Faults
	identity disk.Disk
	changed  int64
	discards int
	zeroouts int
	flushes  int
	open     int
	gone     bool
	rereads  int
	busy     int
	// life counts crashes: handles of an earlier life are dead.
	life int
	// stable is what the medium holds for certain; nil for a disk without a write cache.
	stable []byte
	hold   *Hold
	// changes counts down to a power cut of seed; 0 is never.
	changes int
	seed    uint64
}

// New makes a disk of size bytes whose every 512-byte sector starts with its serial and offset, as a used disk would.
func New(serial string, size int64) *Disk {
	d := &Disk{Info: disk.Disk{Name: "sd" + "a", Serial: serial, Model: "TWIN", Size: size, LogicalBlock: 512, PhysicalBlock: 512,
		Transport: "scsi", Sequence: uint64(len(serial)) + uint64(size), Discards: true}}
	d.identity = d.Info
	d.data = make([]byte, size)
	for off := int64(0); off < size; off += 16 {
		copy(d.data[off:], "old data, keep!!")
	}
	return d
}

// Named gives the disk its kernel name.
func (d *Disk) Named(name string) *Disk {
	d.Info.Name, d.identity.Name = name, name
	return d
}

// Spoil sets the faults.
func (d *Disk) Spoil(f Faults) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = f
	return d
}

// Exchange makes an open handle belong to another disk than the scan saw.
func (d *Disk) Exchange(edit func(*disk.Disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	edit(&d.identity)
}

// Busy makes the next n re-reads of the partition table fail as if somebody held the disk.
func (d *Disk) Busy(n int) { d.mu.Lock(); d.busy = n; d.mu.Unlock() }

// Data returns a copy of the content.
func (d *Disk) Data() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]byte(nil), d.data...)
}

// SetData overwrites the content from off on.
func (d *Disk) SetData(off int64, b []byte) { d.mu.Lock(); copy(d.data[off:], b); d.mu.Unlock() }

// Changed is how many bytes writes, zeroing and discards tried to change: 0 is an untouched disk.
func (d *Disk) Changed() int64 { d.mu.Lock(); defer d.mu.Unlock(); return d.changed }

// Discards, ZeroOuts, Flushes, Rereads and Open count calls and open handles.
func (d *Disk) Discards() int { d.mu.Lock(); defer d.mu.Unlock(); return d.discards }
func (d *Disk) ZeroOuts() int { d.mu.Lock(); defer d.mu.Unlock(); return d.zeroouts }
func (d *Disk) Flushes() int  { d.mu.Lock(); defer d.mu.Unlock(); return d.flushes }
func (d *Disk) Rereads() int  { d.mu.Lock(); defer d.mu.Unlock(); return d.rereads }
func (d *Disk) Open() int     { d.mu.Lock(); defer d.mu.Unlock(); return d.open }

// Machine is a disk.System over twins.
type Machine struct {
	Disks []*Disk
	// BeforeOpen runs between a scan and an open: the moment in which a rack changes.
	BeforeOpen func(name string)
	// Excluded are further devices that the scan lists.
	Excluded []disk.Disk
}

// Scan lists the disks.
func (m *Machine) Scan() ([]disk.Disk, error) {
	var out []disk.Disk
	for _, d := range m.Disks {
		d.mu.Lock()
		out = append(out, d.Info)
		d.mu.Unlock()
	}
	return append(out, m.Excluded...), nil
}

// Open opens by name, as a kernel does.
func (m *Machine) Open(want disk.Disk) (disk.Device, error) {
	if m.BeforeOpen != nil {
		m.BeforeOpen(want.Name)
	}
	for _, d := range m.Disks {
		d.mu.Lock()
		if d.identity.Name == want.Name && !d.gone {
			if d.open > 0 {
				d.mu.Unlock()
				return nil, errors.New("device or resource busy")
			}
			d.open++
			d.mu.Unlock()
			return &handle{d, d.life}, nil
		}
		d.mu.Unlock()
	}
	return nil, ErrGone
}

// OpenRead opens by name for reading, whoever else has the disk open.
func (m *Machine) OpenRead(want disk.Disk) (disk.Source, error) {
	for _, d := range m.Disks {
		d.mu.Lock()
		found, life := d.identity.Name == want.Name && !d.gone, d.life
		d.mu.Unlock()
		if found {
			return source{&handle{d, life}}, nil
		}
	}
	return nil, ErrGone
}

// source is a handle that cannot write and is not counted.
type source struct{ h *handle }

func (s source) ReadAt(p []byte, off int64) (int, error) { return s.h.ReadAt(p, off) }
func (s source) Close() error                            { return nil }

type handle struct {
	*Disk
	life int
}

// dead says that the device is gone, or that this handle's process is. The caller holds the lock.
func (h *handle) dead() bool { return h.gone || h.life != h.Disk.life }

func (h *handle) Identify() (disk.Disk, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead() {
		return disk.Disk{}, ErrGone
	}
	return h.identity, nil
}

func (h *handle) check(p []byte, off int64, n int64) error {
	block := int64(h.identity.LogicalBlock)
	switch {
	case h.dead():
		return ErrGone
	case off < 0 || n < 0 || off+n > int64(len(h.data)):
		return io.EOF
	case off%block != 0 || n%block != 0 || !disk.Aligned(p):
		return errors.New("invalid argument: not aligned")
	}
	return nil
}

func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.check(p, off, int64(len(p))); err != nil {
		return 0, err
	}
	if f := h.faults.ReadErrorFrom; f > 0 && off+int64(len(p)) > f {
		return 0, ErrIO
	}
	return copy(p, h.data[off:]), nil
}

func (h *handle) change(off, n int64) error {
	h.wait(off + n)
	h.cutNow()
	if h.dead() {
		return ErrGone
	}
	if f := h.faults.WriteErrorFrom; f > 0 && off+n > f {
		return ErrIO
	}
	h.changed += n
	if g := h.faults.GoneAfter; g > 0 && h.changed > g {
		h.gone = true
		return ErrGone
	}
	return nil
}

func (h *handle) WriteAt(p []byte, off int64) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := int64(len(p))
	if err := h.check(p, off, n); err != nil {
		return 0, err
	}
	if err := h.change(off, n); err != nil {
		return 0, err
	}
	if s := h.faults.ShortWriteAt; s > 0 && off <= s && s < off+n {
		copy(h.data[off:], p[:n/2])
		return int(n / 2), nil
	}
	if !h.faults.WriteKeeps {
		copy(h.data[off:], p)
	}
	return len(p), nil
}

func (h *handle) ZeroOut(off, n int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.zeroouts++
	if h.faults.NoZeroOut {
		return disk.ErrUnsupported
	}
	if err := h.check(nil, off, n); err != nil {
		return err
	}
	if err := h.change(off, n); err != nil {
		return err
	}
	if !h.faults.ZeroOutKeeps {
		clear(h.data[off : off+n])
	}
	return nil
}

func (h *handle) Discard(off, n int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.discards++
	if h.faults.NoDiscard {
		return disk.ErrUnsupported
	}
	if err := h.check(nil, off, n); err != nil {
		return err
	}
	if err := h.change(off, n); err != nil {
		return err
	}
	switch {
	case h.faults.DiscardKeeps:
	case h.faults.DiscardHalf:
		clear(h.data[off : off+n/2])
	default:
		clear(h.data[off : off+n])
	}
	return nil
}

func (h *handle) Flush() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flushes++
	if h.dead() {
		return ErrGone
	}
	if f := h.faults.FlushErrorAfter; f > 0 && h.changed >= f {
		return ErrIO
	}
	if h.stable != nil {
		copy(h.stable, h.data)
	}
	return nil
}

func (h *handle) RereadPartitions() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rereads++
	if h.busy > 0 {
		h.busy--
		return errors.New("device or resource busy")
	}
	return nil
}

// Close gives the handle back; one whose process died was closed by the kernel.
func (h *handle) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life == h.Disk.life {
		h.open--
	}
	return nil
}
