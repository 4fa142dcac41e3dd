package tftp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Operations (RFC 1350, section 5; RFC 2347).
const (
	opRead  = 1
	opWrite = 2
	opData  = 3
	opAck   = 4
	opError = 5
	opOACK  = 6
)

// Error codes (RFC 1350, appendix; RFC 2347).
const (
	codeUndefined = 0
	codeNotFound  = 1
	codeAccess    = 2
	codeIllegal   = 4
	codeOption    = 8
)

const (
	// defaultBlock is the block size without the option (RFC 1350), and the least that the library grants; minBlock and maxBlock
	// are RFC 2348's.
	defaultBlock, minBlock, maxBlock = 512, 8, 65464
	// maxOptions bounds the options of one request.
	maxOptions = 16
	// maxRequest is what is read of a request in bytes. RFC 2347 ends at 512; a longer one is still answered with its fault.
	maxRequest = 2048
)

// request is a read or write request as the library gets to see it: of its options, those that are valid and that the library
// knows. All others are left out, as if they had not been asked for (RFC 2347).
type request struct {
	op         uint16
	name, mode string
	// block is the size asked for; 0 where there was no valid wish.
	block int
	// size says that the client asks for the file's.
	size bool
}

var errRequest = errors.New("malformed request")

// parseRequest reads a packet that came to the service's port. Anything but a request is an error, to be dropped.
func parseRequest(b []byte) (request, error) {
	if len(b) < 2 {
		return request{}, fmt.Errorf("%w: %d bytes", errRequest, len(b))
	}
	r := request{op: binary.BigEndian.Uint16(b)}
	if r.op != opRead && r.op != opWrite {
		return request{}, fmt.Errorf("%w: operation %d", errRequest, r.op)
	}
	name, b, _ := bytes.Cut(b[2:], []byte{0})
	mode, b, ended := bytes.Cut(b, []byte{0})
	// Whoever asked for too long a name is told so; the rest of the packet does not matter.
	r.name, r.mode = string(name), string(mode)
	if !ended {
		return r, fmt.Errorf("%w: name or mode without an end", errRequest)
	}
	for range maxOptions {
		var option, value []byte
		option, b, _ = bytes.Cut(b, []byte{0})
		if value, b, ended = bytes.Cut(b, []byte{0}); !ended {
			break
		}
		r.option(string(option), string(value))
	}
	return r, nil
}

// option notes a valid option; of two with one name the first counts.
func (r *request) option(name, value string) {
	n, err := strconv.ParseUint(value, 10, 63)
	switch name = strings.ToLower(name); {
	case err != nil:
	case name == "blksize" && n >= minBlock && n <= maxBlock && r.block == 0:
		r.block = int(n)
	case name == "tsize":
		r.size = true
	}
}

// granted is the block size of the transfer, where largest is what the path carries.
func (r request) granted(largest int) int { return max(defaultBlock, min(r.block, largest)) }

// encode writes the request for the library, which compares options by case. A size of under 512 is left out: the library has no
// smaller blocks, and to grant more than was asked is not allowed (RFC 2348).
func (r request) encode(largest int) []byte {
	words := []string{r.name, "octet"}
	if r.block >= defaultBlock {
		words = append(words, "blksize", strconv.Itoa(r.granted(largest)))
	}
	if r.size {
		words = append(words, "tsize", "0")
	}
	return append(binary.BigEndian.AppendUint16(nil, r.op), strings.Join(words, "\x00")+"\x00"...)
}

func encodeError(code uint16, text string) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, opError), code)
	return append(append(b, text...), 0)
}

func encodeAck(number uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, opAck), number)
}
