package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"time"
)

// Bounds of watching a serial log.
const (
	serialPause  = 50 * time.Millisecond
	maxSerialLog = 256 << 20 // bytes of one log that are searched
	maxLineShown = 200       // bytes of the last line that an error repeats
)

// WaitSerial waits until the text of the file at path matches re, looking from
// byte offset on, and returns the match and the offset behind it. The file need
// not exist yet. When ctx ends, the error shows the last line of the log: what
// the machine was doing instead.
//
// The guest writes bytes, not lines: a pattern that must see a whole line ends
// in \r or \n.
func WaitSerial(ctx context.Context, path string, re *regexp.Regexp, fromOffset int64) (match []string, end int64, err error) {
	tick := time.NewTicker(serialPause)
	defer tick.Stop()
	var text []byte
	for {
		more, err := readFrom(path, fromOffset+int64(len(text)))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, 0, fmt.Errorf("watch %s: %w", path, err)
		}
		if len(more) > 0 {
			text = append(text, more...)
			if at := re.FindSubmatchIndex(text); at != nil {
				return submatches(text, at), fromOffset + int64(at[1]), nil
			}
			if len(text) > maxSerialLog {
				return nil, 0, fmt.Errorf("watch %s: more than %d bytes without %q", path, maxSerialLog, re)
			}
		}
		select {
		case <-ctx.Done():
			return nil, 0, fmt.Errorf("watch %s for %q: %w; last line: %q", path, re, ctx.Err(), lastLine(text))
		case <-tick.C:
		}
	}
}

func readFrom(path string, offset int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxSerialLog))
}

func submatches(text []byte, at []int) []string {
	out := make([]string, len(at)/2)
	for i := range out {
		if at[2*i] >= 0 {
			out[i] = string(text[at[2*i]:at[2*i+1]])
		}
	}
	return out
}

// lastLine is the last line that has text.
func lastLine(text []byte) string {
	text = bytes.TrimRight(text, "\r\n\t \x00")
	if i := bytes.LastIndexAny(text, "\r\n"); i >= 0 {
		text = text[i+1:]
	}
	if len(text) > maxLineShown {
		text = text[len(text)-maxLineShown:]
	}
	return string(text)
}
