package disk

import (
	"fmt"
	"io"
	"sync"
)

// Device is one disk, open for this process alone. Reads and writes bypass the page cache; offsets, lengths and buffers are
// multiples of the logical block (Buffer makes such buffers). Methods may be called from several goroutines at once.
type Device interface {
	io.ReaderAt
	// WriteAt is done only when every byte was accepted; it never reports a short write as success.
	io.WriterAt
	io.Closer
	// Identify reads what the open handle is, now, from the device behind it and not from its name.
	Identify() (Disk, error)
	// Flush returns when everything written is on the medium.
	Flush() error
}

// Zeroer is a Device that can have a range zeroed by kernel or drive. Success proves nothing.
type Zeroer interface{ ZeroOut(off, n int64) error }

// Discarder is a Device that can be told that a range is not needed. Success proves nothing.
type Discarder interface{ Discard(off, n int64) error }

// Repartitioner is a Device whose partition table the kernel can read again.
type Repartitioner interface{ RereadPartitions() error }

// System is the machine's disks.
type System interface {
	// Scan lists them afresh.
	Scan() ([]Disk, error)
	// Open opens one exclusively for writing. It does not judge identity: Claim does.
	Open(d Disk) (Device, error)
}

// Source is the content of one disk, open for reading only. Reads past the page cache want what Device says.
type Source interface {
	io.ReaderAt
	io.Closer
}

// Reader is a System whose disks can also be looked at, those that may never be written too, while others hold them.
type Reader interface {
	OpenRead(d Disk) (Source, error)
}

// Unaligned reads through buffers that fit direct I/O: offsets and lengths stay multiples of the logical block.
type Unaligned struct{ R io.ReaderAt }

// ReadAt reads.
func (u Unaligned) ReadAt(p []byte, off int64) (int, error) {
	b := Buffer(len(p))
	n, err := u.R.ReadAt(b, off)
	copy(p, b[:n])
	return n, err
}

// Claimed is a disk that was chosen by a selector and is held open. Its first write is preceded by a check that the open handle
// is still that disk; when it is not, nothing is ever written.
type Claimed struct {
	Disk Disk

	dev      Device
	selector Selector
	once     sync.Once
	checked  error
	mu       sync.Mutex
	wrote    bool
}

// Claim chooses, opens and checks. On any doubt nothing is opened for longer than the check and nothing is written.
func Claim(sys System, s Selector) (*Claimed, error) {
	disks, err := sys.Scan()
	if err != nil {
		return nil, err
	}
	d, err := Select(disks, s)
	if err != nil {
		return nil, err
	}
	dev, err := sys.Open(d)
	if err != nil {
		return nil, fmt.Errorf("open disk %s: %w", d, err)
	}
	c := &Claimed{Disk: d, dev: dev, selector: s}
	if err := c.Check(); err != nil {
		dev.Close()
		return nil, err
	}
	return c, nil
}

// Check compares the open handle with the scan and with the selector.
func (c *Claimed) Check() error {
	now, err := c.dev.Identify()
	if err != nil {
		return fmt.Errorf("check disk %s: %w: its identity cannot be read: %w", c.Disk, ErrDiffers, err)
	}
	if diff := same(c.Disk, now); diff != "" {
		return fmt.Errorf("check disk %s: %w: %s", c.Disk, ErrDiffers, diff)
	}
	if diff := c.selector.differs(now); diff != "" {
		return fmt.Errorf("check disk %s: %w: %s", c.Disk, ErrDiffers, diff)
	}
	return nil
}

// Wrote says whether a write was attempted.
func (c *Claimed) Wrote() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wrote
}

// arm is called before every write; the first one checks.
func (c *Claimed) arm() error {
	c.once.Do(func() {
		if c.checked = c.Check(); c.checked == nil {
			c.mu.Lock()
			c.wrote = true
			c.mu.Unlock()
		}
	})
	return c.checked
}

// ReadAt reads from the disk.
func (c *Claimed) ReadAt(p []byte, off int64) (int, error) { return c.dev.ReadAt(p, off) }

// WriteAt writes to the disk, all or an error.
func (c *Claimed) WriteAt(p []byte, off int64) (int, error) {
	if err := c.arm(); err != nil {
		return 0, err
	}
	n, err := c.dev.WriteAt(p, off)
	if err == nil && n != len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

// ZeroOut zeroes a range if the device can; ErrUnsupported otherwise.
func (c *Claimed) ZeroOut(off, n int64) error {
	z, ok := c.dev.(Zeroer)
	if !ok {
		return ErrUnsupported
	}
	if err := c.arm(); err != nil {
		return err
	}
	return z.ZeroOut(off, n)
}

// Discard discards a range if the device can; ErrUnsupported otherwise.
func (c *Claimed) Discard(off, n int64) error {
	d, ok := c.dev.(Discarder)
	if !ok {
		return ErrUnsupported
	}
	if err := c.arm(); err != nil {
		return err
	}
	return d.Discard(off, n)
}

// Flush makes everything written durable.
func (c *Claimed) Flush() error { return c.dev.Flush() }

// RereadPartitions makes the kernel read the partition table again; ErrUnsupported where it cannot.
func (c *Claimed) RereadPartitions() error {
	r, ok := c.dev.(Repartitioner)
	if !ok {
		return ErrUnsupported
	}
	return r.RereadPartitions()
}

// Close gives the disk back.
func (c *Claimed) Close() error { return c.dev.Close() }
