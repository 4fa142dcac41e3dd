package disk

import (
	"errors"
	"unsafe"
)

// Align is what buffers are aligned to: the largest logical block in use, and a page.
const Align = 4096

// ErrUnsupported: the device cannot do that.
var ErrUnsupported = errors.New("the device does not support it")

// Buffer returns n zeroed bytes whose address fits direct I/O. n should be a multiple of the disk's logical block.
func Buffer(n int) []byte {
	b := make([]byte, n+Align)
	skip := 0
	if r := int(uintptr(unsafe.Pointer(&b[0])) % Align); r != 0 {
		skip = Align - r
	}
	return b[skip : skip+n : skip+n]
}

// Aligned says whether p can be given to direct I/O.
func Aligned(p []byte) bool {
	return len(p) == 0 || uintptr(unsafe.Pointer(&p[0]))%Align == 0
}
