package tftp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
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
	// defaultBlock is the block size without the option (RFC 1350); minBlock and maxBlock are RFC 2348's.
	defaultBlock, minBlock, maxBlock = 512, 8, 65464
	// maxOptions bounds the options of one request.
	maxOptions = 16
	// maxAskedTimeout bounds the timeout option in seconds (RFC 2349 has up to 255): a longer wish is not granted, because a
	// transfer that nobody acknowledges would hold its place for long.
	maxAskedTimeout = 10
	// maxRequest is what is read of a request in bytes. RFC 2347 ends at 512; a longer one is still answered with its fault.
	maxRequest = 2048
)

// request is a read or write request.
type request struct {
	op         uint16
	name, mode string
	options    []option
}

// option is one of RFC 2347; its name is in lower case.
type option struct{ name, value string }

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
	words, ok := texts(b[2:])
	if r.name, words = first(words); !ok || len(words) == 0 {
		// Whoever asked for too long a name is told so; the rest of the packet does not matter.
		return r, fmt.Errorf("%w: name or mode without an end", errRequest)
	}
	r.mode, words = first(words)
	for len(words) >= 2 && len(r.options) < maxOptions {
		r.options = append(r.options, option{strings.ToLower(words[0]), words[1]})
		words = words[2:]
	}
	return r, nil
}

// texts splits b at its NULs; ok says that it ends in one. What follows the last is returned too where it is not empty.
func texts(b []byte) (all []string, ok bool) {
	for len(b) > 0 {
		text, rest, found := bytes.Cut(b, []byte{0})
		all = append(all, string(text))
		if !found {
			return all, false
		}
		if len(all) >= 2+2*maxOptions {
			return all, true
		}
		b = rest
	}
	return all, len(all) > 0
}

func first(words []string) (string, []string) {
	if len(words) == 0 {
		return "", nil
	}
	return words[0], words[1:]
}

// terms are what client and server agree on for one transfer.
type terms struct {
	block int
	// timeout is the client's wish; zero where it had none.
	timeout time.Duration
	// granted are the options of the OACK, in the order of the request; none of them means that there is no OACK.
	granted []option
}

// agree answers the options of a request for a file of size bytes; blocks are at most largest bytes. An option that is unknown,
// malformed or not to be had is left out, as if it had not been asked for (RFC 2347).
func agree(asked []option, size int64, largest int) terms {
	t := terms{block: min(defaultBlock, largest)}
	seen := map[string]bool{}
	for _, o := range asked {
		n, err := strconv.ParseUint(o.value, 10, 63)
		if err != nil || seen[o.name] {
			continue
		}
		switch {
		case o.name == "blksize" && n >= minBlock && n <= maxBlock:
			t.block = min(int(n), largest)
			n = uint64(t.block)
		case o.name == "timeout" && n >= 1 && n <= maxAskedTimeout:
			t.timeout = time.Duration(n) * time.Second
		case o.name == "tsize":
			n = uint64(size)
		case o.name == "windowsize" && n >= 1:
			n = 1
		default:
			continue
		}
		seen[o.name] = true
		t.granted = append(t.granted, option{o.name, strconv.FormatUint(n, 10)})
	}
	return t
}

func encodeOACK(options []option) []byte {
	b := binary.BigEndian.AppendUint16(nil, opOACK)
	for _, o := range options {
		b = append(append(append(append(b, o.name...), 0), o.value...), 0)
	}
	return b
}

func encodeError(code uint16, text string) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, opError), code)
	return append(append(b, text...), 0)
}
